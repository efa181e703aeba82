// How a finished set of shards gets its names, so that a crash at any moment leaves the earlier
// set, the new one, or something that every reader recognizes as neither.
//
// PREFIX.json.new is the point of no return: the new manifest, written when all shards are complete
// as *.tmp. Then the old manifest goes, the shards get their names, the earlier run's surplus ones
// go, and PREFIX.json.new becomes PREFIX.json. Whoever finds PREFIX.json.new finds a set between
// two names: ./tokenize brings it to its end, the trainer refuses it.
#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace loqal {

/// `manifest` has "shards": [{"file": name, ...}], all of which exist as *.tmp.
void publish_shards(const std::string& prefix, const Json& manifest);
/// Does what an interrupted publish_shards() had left to do. Nothing if there was none.
void finish_publication(const std::string& prefix);
/// Error if the set that the shard at `path` belongs to is between two names.
void check_published(const std::string& path);

/// Error unless files PREFIX... can have their folder: before the work, not after.
void check_prefix(const std::string& prefix);
/// PREFIX_000042.bin
std::string shard_path(const std::string& prefix, int64_t index);
/// Where a shard grows before it has its name.
inline std::string tmp_path(const std::string& path) { return path + ".tmp"; }
/// Paths on disk of the form PREFIX_nnnnnn.bin, then `suffix`.
std::vector<std::string> existing_shards(const std::string& prefix, const std::string& suffix = "");
/// The prefix of a shard's path; "" if its name is of another form.
std::string prefix_of(const std::string& path);

}  // namespace loqal
