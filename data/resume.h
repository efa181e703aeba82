// What ./tokenize has done before: the journal of an interrupted run, the manifest of a complete
// one.
#pragma once
#include <string>
#include <vector>

#include "core/json.h"
#include "data/document_encoder.h"
#include "data/journal.h"
#include "data/shard_writer.h"
#include "data/tokenize.h"

namespace loqal {

/// An input as the manifest and the journal record it.
struct Source {
  std::string path;
  int64_t bytes = 0, modified = 0;  ///< size; time of the last change, in nanoseconds
  std::string sha256;
  int64_t documents = 0;  ///< read, empty ones included
};

/// Path, size and time: the rest is known when it has been read.
Source describe_source(const std::string& path);
int64_t input_bytes(const std::string& path);
Json to_json(const Source& source);
Json to_json(const SkipReport& skipped);

/// Tokenizer and options, as far as the output depends on them. Not what a bad document does: as
/// long as there was none, it makes no difference.
Json describe_work(const TokenizeOptions& options, const Tokenizer& tokenizer,
                   const Layout& layout);

struct Resumed {
  std::vector<Source> sources;  ///< complete: the first ones of the inputs
  Counts counts;
  SkipReport skipped;
  ShardProgress progress;
};

/// A line of the journal, for `source`, which is complete. Counts and skipped are sums over all
/// inputs so far; of the complete shards only those behind the first `known`.
Json journal_entry(const Source& source, const Counts& counts, const SkipReport& skipped,
                   const ShardProgress& progress, size_t known);
/// As much as is of the same work and unchanged inputs; nothing if it is other work.
Resumed resumable_work(const Journal& journal, const TokenizeOptions& options, const Json& work);

/// True if PREFIX.json is about the same work on the same inputs and its shards are there.
bool is_up_to_date(const TokenizeOptions& options, const Json& work);

}  // namespace loqal
