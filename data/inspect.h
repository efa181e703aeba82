// A look at finished shards: are they what was written, and what do they say?
#pragma once
#include <ostream>
#include <string>

namespace loqal {

/// Reads all that PREFIX.json names: every shard's header, ids and SHA-256. Each difference is a
/// line in `log`; Error at the end if there was one. Sources are not needed and not looked at.
void verify_shards(const std::string& manifest_path, std::ostream& log);

/// Document `number` (of a padded shard: row), from 0, of the shard at `path`: its ids, and its
/// text if a tokenizer is at hand: `tokenizer`, or with "" the one that the manifest beside the
/// shard names, if it is still there. A document that began in the shard before is document 0.
/// Error if there are not so many, or if nothing says where documents begin.
void show_document(const std::string& path, int64_t number, const std::string& tokenizer,
                   std::ostream& log);

}  // namespace loqal
