// SentencePiece models (unigram or BPE), through the library.
#include "core/error.h"
#include "data/sniff.h"
#include "data/tokenizer.h"

#if LOQAL_SENTENCEPIECE
#include <sentencepiece_processor.h>

namespace loqal {
namespace {

class SpmTokenizer : public Tokenizer {
 public:
  explicit SpmTokenizer(const std::string& path) : path_(path) {
    const std::string bytes = load_file(path);
    // A well-formed model starts with the protobuf field "pieces"; the library would report
    // anything else on stderr in its own words.
    const FileKind kind = sniff(bytes);
    const bool plausible = bytes.starts_with('\n') && kind == FileKind::other;
    const auto status = processor_.LoadFromSerializedProto(plausible ? bytes : std::string());
    if (!plausible || !status.ok() || processor_.GetPieceSize() == 0)
      fail(cat(path, ": not a SentencePiece model: expected its protobuf, found ",
               kind == FileKind::other ? cat(bytes.size(), " bytes of something else")
                                       : std::string(describe(kind))),
           "copy the file again, or train one with ./tokenize --train-spm");
  }

  std::vector<int32_t> encode(std::string_view text) override {
    std::vector<int> ids;
    check(processor_.Encode(absl::string_view(text.data(), text.size()), &ids));
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids)
      if (id < 0 || id >= vocab_size())
        fail(cat(path_, ": cannot decode id ", id, ": the vocabulary has ", vocab_size()));
    std::string text;
    check(processor_.Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

  int vocab_size() const override { return processor_.GetPieceSize(); }
  int bos() const override { return processor_.bos_id(); }
  int eos() const override { return processor_.eos_id(); }
  int pad() const override { return processor_.pad_id(); }
  int unk() const override { return processor_.unk_id(); }
  bool eos_goes_before() const override { return false; }

 private:
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) fail(cat(path_, ": SentencePiece: ", status.ToString()));
  }

  const std::string path_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& model_path) {
  return std::make_unique<SpmTokenizer>(model_path);
}

}  // namespace loqal

#else

namespace loqal {

std::unique_ptr<Tokenizer> load_sentencepiece(const std::string& model_path) {
  fail(cat(model_path, ": this loqal was built without SentencePiece"),
       "install libsentencepiece-dev and run make again");
}

}  // namespace loqal

#endif
