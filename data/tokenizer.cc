#include "data/tokenizer.h"

#include <filesystem>

#include "core/error.h"
#include "core/file.h"

namespace loqal {

std::string Tokenizer::load_file(const std::string& path) {
  const std::string content = read_file(path);
  files_.push_back(path);
  digest_.update(content);
  Sha256 copy = digest_;
  const Sha256::Digest digest = copy.digest();
  hash_ = 0;
  for (size_t i = 0; i < 8; i++) hash_ = hash_ << 8 | digest[i];
  return content;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  if (!fs::exists(path))
    fail(cat(path, ": no such tokenizer"), "expected a .model file or a folder");
  if (!fs::is_directory(path)) return load_sentencepiece(path);
  const auto in_folder = [&](const char* name) { return (fs::path(path) / name).string(); };
  for (const char* name : {"tokenizer.model", "spiece.model"})
    if (fs::exists(in_folder(name))) return load_sentencepiece(in_folder(name));
  for (const auto& [vocab, merges] :
       {std::pair("encoder.json", "vocab.bpe"), std::pair("vocab.json", "merges.txt")})
    if (fs::exists(in_folder(vocab)) && fs::exists(in_folder(merges)))
      return load_gpt2(in_folder(vocab), in_folder(merges));
  fail(cat(path,
           ": no tokenizer in this folder: expected tokenizer.model, spiece.model, "
           "encoder.json + vocab.bpe or vocab.json + merges.txt"));
}

}  // namespace loqal
