// SentencePiece models: loaded and decoded by the library, encoded by data/unigram.h and
// data/spm_bpe.h where they can.
#include "core/error.h"
#include "data/sniff.h"
#include "data/spm_bpe.h"
#include "data/tokenizer.h"
#include "data/unigram.h"

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
    auto processor = std::make_shared<sentencepiece::SentencePieceProcessor>();
    const auto status = processor->LoadFromSerializedProto(plausible ? bytes : std::string());
    if (!plausible || !status.ok() || processor->GetPieceSize() == 0)
      fail(cat(path, ": not a SentencePiece model: expected its protobuf, found ",
               kind == FileKind::other ? cat(bytes.size(), " bytes of something else")
                                       : std::string(describe(kind))),
           "copy the file again, or train one with ./tokenize --train-spm");
    processor_ = processor;
    SpmModel model;
    if (parse_spm_model(bytes, &model) && int(model.pieces.size()) == processor->GetPieceSize()) {
      unigram_ = Unigram::make(model);
      bpe_ = SpmBpe::make(model);
    }
    spellings_ = std::make_shared<const std::vector<std::string>>(spellings());
    const std::vector<int32_t> first = encode("a");
    adds_blank_ = !first.empty() && (*spellings_)[size_t(first[0])].starts_with(' ');
  }

  std::unique_ptr<Tokenizer> clone() const override {
    return std::make_unique<SpmTokenizer>(*this);
  }

  std::vector<int32_t> encode(std::string_view text) override {
    if (unigram_) return unigram_->encode(text);
    if (bpe_) return bpe_->encode(text);
    std::vector<int> ids;
    check(processor_->Encode(absl::string_view(text.data(), text.size()), &ids));
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    for (const int32_t id : ids)
      if (id < 0 || id >= vocab_size())
        fail(cat(path_, ": cannot decode id ", id, ": the vocabulary has ", vocab_size()));
    std::string text;
    check(processor_->Decode(std::vector<int>(ids.begin(), ids.end()), &text));
    return text;
  }

  /// The library's decoder takes as long as its encoder; this is for every document.
  bool restores(std::span<const int32_t> ids, std::string_view text) const override {
    size_t at = 0;
    for (size_t i = 0; i < ids.size(); i++) {
      std::string_view piece = (*spellings_)[size_t(ids[i])];
      // The blank that the model may put before a text is not part of it.
      if (i == 0 && adds_blank_ && piece.starts_with(' ')) piece.remove_prefix(1);
      if (!text.substr(at).starts_with(piece)) return false;
      at += piece.size();
    }
    return at == text.size();
  }

  int vocab_size() const override { return processor_->GetPieceSize(); }
  int bos() const override { return processor_->bos_id(); }
  int eos() const override { return processor_->eos_id(); }
  int pad() const override { return processor_->pad_id(); }
  int unk() const override { return processor_->unk_id(); }
  bool eos_goes_before() const override { return false; }

 private:
  void check(const sentencepiece::util::Status& status) const {
    if (!status.ok()) fail(cat(path_, ": SentencePiece: ", status.ToString()));
  }

  /// The text that each id stands for: U+2581 is a blank, <0x0A> a byte.
  std::vector<std::string> spellings() const {
    std::vector<std::string> all(size_t(processor_->GetPieceSize()), "");
    for (int id = 0; id < processor_->GetPieceSize(); id++) {
      std::string& text = all[size_t(id)];
      const std::string piece = processor_->IdToPiece(id);
      if (processor_->IsByte(id)) {
        text = char(std::stoi(piece.substr(3, 2), nullptr, 16));
      } else if (processor_->IsUnknown(id)) {
        text = kUnknown;
      } else {
        for (size_t at = 0; at < piece.size();) {
          const bool blank = piece.compare(at, 3, "\u2581") == 0;
          text += blank ? ' ' : piece[at];
          at += blank ? 3 : 1;
        }
      }
    }
    return all;
  }

  /// U+2047 between blanks, what the library decodes an unknown id to.
  static constexpr const char* kUnknown = " \u2047 ";

  const std::string path_;
  std::shared_ptr<const sentencepiece::SentencePieceProcessor> processor_;  // thread-safe
  std::shared_ptr<const Unigram> unigram_;  // one of the two; both null: the library encodes
  std::shared_ptr<const SpmBpe> bpe_;
  std::shared_ptr<const std::vector<std::string>> spellings_;  // [vocab_size]
  bool adds_blank_ = false;
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
