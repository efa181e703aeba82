// Trains a SentencePiece model from a bounded sample of documents.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <queue>

#include "core/error.h"
#include "core/file.h"
#include "core/philox.h"
#include "data/shard_writer.h"
#include "data/tokenize.h"
#include "data/utf8.h"

#if LOQAL_SENTENCEPIECE
#include <sentencepiece_trainer.h>

namespace loqal {
namespace {

constexpr size_t kPieceBytes = 4096;         // longer documents are split, not dropped
constexpr size_t kSamplePieces = 2'000'000;  // the trainer needs about 20 bytes of memory a byte
constexpr size_t kSampleBytes = 64'000'000;
constexpr uint64_t kSampleSeed = 1;

/// Uniform sample without replacement of a stream of unknown length: every piece draws a number,
/// the smallest ones stay. Bounded in pieces and in bytes.
class Sample {
 public:
  void add(std::string piece) {
    const uint32_t draw = stream_.bits(seen_);
    bytes_ += piece.size();
    heap_.push({draw, seen_++, std::move(piece)});
    while (heap_.size() > kSamplePieces || bytes_ > kSampleBytes) {
      bytes_ -= heap_.top().text.size();
      heap_.pop();
    }
  }

  /// The sample in the order of the stream; empties it.
  std::vector<std::string> take() {
    std::vector<Entry> entries;
    for (; !heap_.empty(); heap_.pop()) entries.push_back(heap_.top());
    std::sort(entries.begin(), entries.end(),
              [](const Entry& a, const Entry& b) { return a.index < b.index; });
    std::vector<std::string> texts;
    for (Entry& entry : entries) texts.push_back(std::move(entry.text));
    return texts;
  }

  uint64_t seen() const { return seen_; }

 private:
  struct Entry {
    uint32_t draw;
    uint64_t index;
    std::string text;
    bool operator<(const Entry& o) const {
      return std::pair(draw, index) < std::pair(o.draw, o.index);
    }
  };
  const PhiloxStream stream_{kSampleSeed, Purpose::sample};
  std::priority_queue<Entry> heap_;  // the largest draw on top
  uint64_t seen_ = 0;
  size_t bytes_ = 0;
};

/// Where to cut text that is longer than kPieceBytes: behind a newline, else before a blank, else
/// between characters.
size_t cut_position(std::string_view text) {
  const std::string_view head = text.substr(0, kPieceBytes);
  if (const size_t n = head.rfind('\n'); n != std::string_view::npos) return n + 1;
  if (const size_t n = head.rfind(' '); n != std::string_view::npos && n > 0) return n;
  size_t end = kPieceBytes;
  while ((uint8_t(text[end]) & 0xC0) == 0x80) end--;
  return end;
}

void add_document(std::string document, Sample* sample) {
  // The library drops whole sentences that hold NUL or its own placeholder U+2585: drop only those.
  std::erase(document, '\0');
  constexpr std::string_view placeholder = "\xe2\x96\x85";
  if (document.find(placeholder) != std::string::npos) {
    std::string without;
    for (size_t at = 0, end; at < document.size(); at = end + placeholder.size()) {
      end = std::min(document.find(placeholder, at), document.size());
      without.append(document, at, end - at);
    }
    document = std::move(without);
  }
  std::string_view rest = document;
  while (rest.size() > kPieceBytes) {
    const size_t cut = cut_position(rest);
    sample->add(std::string(rest.substr(0, cut)));
    rest.remove_prefix(cut);
    if (rest.front() == ' ') rest.remove_prefix(1);  // the next piece's dummy prefix stands for it
  }
  if (!rest.empty()) sample->add(std::string(rest));
}

class Sentences : public sentencepiece::SentenceIterator {
 public:
  explicit Sentences(std::vector<std::string> texts) : texts_(std::move(texts)) {}
  bool done() const override { return next_ == texts_.size(); }
  void Next() override { next_++; }
  const std::string& value() const override { return texts_[next_]; }
  sentencepiece::util::Status status() const override { return {}; }

 private:
  const std::vector<std::string> texts_;
  size_t next_ = 0;
};

/// The library states the limits of --vocab in its message: the number behind `marker`, or 0.
int number_after(const std::string& message, const char* marker) {
  const size_t at = message.find(marker);
  return at == std::string::npos ? 0 : std::atoi(message.c_str() + at + std::strlen(marker));
}

[[noreturn]] void fail_training(const TrainSpmOptions& options, const std::string& status) {
  if (const int most = number_after(status, "a value <= "))
    fail(cat("--vocab ", options.vocab, ": this text can fill a vocabulary of ", most,
             " pieces at most"),
         cat("--vocab ", most, ", or more text"));
  if (const int least = number_after(status, cat(". ", options.vocab, " vs ").c_str()))
    fail(cat("--vocab ", options.vocab,
             ": 256 bytes, 3 special tokens and the characters of this "
             "text need ",
             least),
         cat("--vocab ", least, " or more"));
  fail(cat("training the tokenizer failed: ", status));
}

}  // namespace

void train_spm(const TrainSpmOptions& options, std::ostream& log) {
  check_inputs(options.inputs);
  check_prefix(options.out);
  Sample sample;
  SkipReport skipped;
  int64_t documents = 0;
  for (const std::string& path : options.inputs) {
    TextReader reader(path, options.read, &skipped);
    for (std::string document; reader.next(&document);) add_document(document, &sample);
    documents += reader.documents();
  }
  std::vector<std::string> texts = sample.take();
  if (texts.empty())
    fail(cat("no text to train on: ", documents, " documents read, all of them empty, ",
             skipped.total(), " skipped"));
  log << "documents  " << documents << " read, " << skipped.total() << " skipped\n";
  print_skipped(skipped, log);
  log << "pieces     " << texts.size() << " of " << sample.seen() << " (up to " << kPieceBytes
      << " bytes each) used for training" << std::endl;

  Sentences sentences(std::move(texts));
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      {{"model_type", options.type},
       {"vocab_size", cat(options.vocab)},
       {"normalization_rule_name", "identity"},
       {"remove_extra_whitespaces", "false"},
       {"add_dummy_prefix", "true"},
       {"byte_fallback", "true"},
       {"split_digits", "true"},
       {"allow_whitespace_only_pieces", "true"},
       {"character_coverage", "0.9999"},
       {"unk_id", "0"},
       {"bos_id", "1"},
       {"eos_id", "2"},
       {"pad_id", "-1"},
       // Sums are formed per thread: a fixed number of threads gives fixed bytes.
       {"num_threads", "2"},
       {"max_sentence_length", "1000000"},
       {"minloglevel", "3"}},
      &sentences, &model);
  if (!status.ok()) fail_training(options, status.ToString());
  write_file_atomic(options.out + ".model", model);
  log << "wrote      " << options.out << ".model, vocabulary " << options.vocab << std::endl;
}

}  // namespace loqal

#else

namespace loqal {

void train_spm(const TrainSpmOptions&, std::ostream&) {
  fail("--train-spm: this loqal was built without SentencePiece",
       "install libsentencepiece-dev and run make again");
}

}  // namespace loqal

#endif
