// Tokenizers: text to ids and back. Two families: SentencePiece models (data/spm_tokenizer.cc,
// through its library) and GPT-2's byte-level BPE (data/gpt2_tokenizer.cc).
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/sha256.h"

namespace loqal {

/// Not thread-safe (it may cache words): one per thread, see clone().
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  /// The same tokenizer for another thread; what does not change is shared.
  virtual std::unique_ptr<Tokenizer> clone() const = 0;

  /// Ids of valid UTF-8. No bos or eos is added, and text that looks like a special token
  /// ("</s>", "<|endoftext|>") never becomes its id.
  virtual std::vector<int32_t> encode(std::string_view text) = 0;
  /// Error for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  /// decode(ids) == text, perhaps cheaper: `ids` are encode(text).
  virtual bool restores(std::span<const int32_t> ids, std::string_view text) const {
    return decode(ids) == text;
  }

  virtual int vocab_size() const = 0;
  virtual int bos() const = 0;  ///< -1: none; as eos, pad and unk
  virtual int eos() const = 0;
  virtual int pad() const = 0;
  virtual int unk() const = 0;
  /// Where this family's models expect the end-of-text id: GPT-2 before each document (as llm.c
  /// writes it), SentencePiece models after.
  virtual bool eos_goes_before() const = 0;

  /// The first 8 bytes (big-endian) of the SHA-256 of the files' contents, one after the other.
  uint64_t hash() const { return hash_; }
  const std::vector<std::string>& files() const { return files_; }  ///< for a checkpoint to copy

 protected:
  /// Reads a file whole and makes it part of files() and hash().
  std::string load_file(const std::string& path);

 private:
  Sha256 digest_;  // of all files so far
  std::vector<std::string> files_;
  uint64_t hash_ = 0;
};

/// A SentencePiece model, or a folder with tokenizer.model, spiece.model, encoder.json + vocab.bpe
/// or vocab.json + merges.txt. Error (exit 1) if it is none of them or damaged.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& model_path);
std::unique_ptr<Tokenizer> load_gpt2(const std::string& vocab_json, const std::string& merges);

}  // namespace loqal
