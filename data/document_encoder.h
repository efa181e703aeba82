// A document to the ids that stand for it in a shard: text, separators and, in padded shards,
// padding. And the counts that the summary is made of.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/json.h"
#include "data/tokenizer.h"

namespace loqal {

/// Sums over documents; the same for any number of threads.
struct Counts {
  int64_t documents = 0;    ///< written
  int64_t empty = 0;        ///< without a token, so nothing is written for them
  int64_t changed = 0;      ///< that decode to another text (normalization, unknown characters)
  int64_t cut = 0;          ///< longer than a row
  int64_t bytes = 0;        ///< of text read
  int64_t encoded = 0;      ///< tokens of that text, before rows cut it
  int64_t text_tokens = 0;  ///< written
  int64_t unknown = 0;      ///< of those
  int64_t separators = 0, padding = 0;

  void add(const Counts& more);
  Json to_json() const;
  static Counts from_json(const Json& json, const std::string& where);
};

/// Where separators stand, and whether rows are padded.
struct Layout {
  int bos_before = -1, eos_before = -1, eos_after = -1;  ///< ids; -1: none
  int row_length = 0;                                    ///< of --pad-to; 0: packed
  int pad = -1;                                          ///< the id that fills rows
  std::string description;  ///< of the separators, for people and the manifest
};

/// `bos`, `eos`: "before", "after" (eos only), "none", or "" for the tokenizer's usual place.
/// `tokenizer_path` is for the messages. Usage error for an id that the tokenizer does not have.
///
/// Rows are padded with the pad id, or with eos where there is none and eos ends each document: the
/// first eos of a row is then text, and what follows is padding (data/corpus.h masks it so).
Layout choose_layout(const Tokenizer& tokenizer, const std::string& tokenizer_path, std::string bos,
                     std::string eos, int row_length);

/// Not thread-safe: one per thread.
class DocumentEncoder {
 public:
  DocumentEncoder(std::unique_ptr<Tokenizer> tokenizer, const Layout& layout)
      : tokenizer_(std::move(tokenizer)), layout_(layout) {}

  /// Appends the document's ids (none for an empty one) and counts it. In a padded shard it is one
  /// row: text beyond it is cut, the separators stay, as in Hugging Face's truncation.
  void append(const std::string& document, std::vector<int32_t>* ids, Counts* counts);

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  Layout layout_;
};

}  // namespace loqal
