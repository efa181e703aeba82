// What ./tokenize does, without its command line: texts in, token shards and a manifest out.
#pragma once
#include <ostream>
#include <string>
#include <vector>

#include "data/text_reader.h"

namespace loqal {

struct TokenizeOptions {
  std::vector<std::string> inputs;
  std::string tokenizer;  ///< path for load_tokenizer
  std::string out;        ///< prefix of the shards and of the manifest
  std::string bos, eos;   ///< "before", "after" (eos only), "none"; "": by the tokenizer
  ReadOptions read;
  std::string split = "file";  ///< as given, for the manifest
  int64_t shard_tokens = 100'000'000;
  int row_length = 0;     ///< of --pad-to: one document a row of so many tokens
  int jobs = 1;           ///< threads; the output does not depend on them
  bool terminal = false;  ///< the log is one: progress is redrawn in place
};

/// Writes PREFIX_000000.bin ... and PREFIX.json; progress and a summary go to `log`. Nothing of an
/// earlier run with this prefix changes unless everything was written. Documents without tokens are
/// counted, and get no separator. Error if no document has any, or more are skipped than read.
///
/// False if interrupted. Then, as after an error or a kill, PREFIX.partial tells the same call
/// which inputs are complete, and it goes on behind them. If PREFIX.json says that the same inputs
/// (paths, sizes, times of change) were tokenized in the same way, nothing is done.
bool tokenize(const TokenizeOptions& options, std::ostream& log);

struct TrainSpmOptions {
  std::vector<std::string> inputs;
  std::string out;  ///< writes out.model
  int vocab = 0;
  std::string type = "unigram";  ///< or "bpe"
  ReadOptions read;
};

/// Trains a SentencePiece model that keeps text as it is: identity normalization, byte fallback,
/// blanks and newlines kept, dummy prefix and single digits as Llama has them; ids unk 0, bos 1,
/// eos 2. Uses a seeded uniform sample of at most 2 M pieces and 64 MB, so memory does not grow
/// with the corpus; the same input gives the same bytes. Error, and no file, if the corpus cannot
/// fill `vocab`.
void train_spm(const TrainSpmOptions& options, std::ostream& log);

/// Error unless every input is a readable regular file: before hours of work, not after.
void check_inputs(const std::vector<std::string>& inputs);
/// One line for each reason that documents were skipped for, with the first places.
void print_skipped(const SkipReport& skipped, std::ostream& log);

}  // namespace loqal
