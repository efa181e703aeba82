// Our encoders of unigram and BPE models against the library's, id for id.
#include "data/spm_bpe.h"
#include "data/unigram.h"

#include "core/philox.h"
#include "data/text_reader.h"
#include "data/tokenizer.h"
#include "data/utf8.h"
#include "test/data/data_test_util.h"

#if LOQAL_SENTENCEPIECE
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

namespace loqal {
namespace {

using Ids = std::vector<int>;

/// What tokenizers stumble over, and some plain text between.
const char* const kParts[] = {"the ",
                              "cat",
                              " sat",
                              "on",
                              "1984",
                              ".",
                              ", ",
                              " ",
                              "  ",
                              "\n",
                              "\t",
                              "\r\n",
                              "A",
                              "e\u0301",
                              "\u00e9",
                              "a\u0308\u0323",
                              "\ufb01",
                              "\uff21",
                              "\uff0c",
                              "\u2581",
                              "\u2581a",
                              "\u3000",
                              "\u00a0",
                              "\u200b",
                              "\ufeff",
                              "\ufffd",
                              "\u00ad",
                              "\u0085",
                              "\u2028",
                              "\x01",
                              "\x7f",
                              "\u4e2d\u6587",
                              "\u0e33",
                              "\uac00",
                              "\u1100\u1161",
                              "\U0001f600",
                              "\U0001f468\u200d",
                              "\u00bd",
                              "\u2460",
                              "\ufdfa",
                              "</s>",
                              "<unk>",
                              "~^{}",
                              "x",
                              "rain"};

class SpmEncoderTest : public DataTest {
 protected:
  static std::string random_text(uint64_t seed, uint32_t parts) {
    const PhiloxStream random(seed, Purpose::test);
    std::string text;
    for (uint32_t i = 0; i < parts; i++) {
      const uint32_t draw = random.bits(i);
      if (draw % 64 == 63) text.push_back('\0');
      else text += kParts[draw % std::size(kParts)];
    }
    return text;
  }
  /// A model of the library's own making, with its usual options but for `options`.
  void train(std::unordered_map<std::string, std::string> options) {
    std::vector<std::string> sentences;
    for (uint64_t i = 0; i < 400; i++) {
      std::string s = random_text(1000 + i, 30);
      std::erase(s, '\0');
      sentences.push_back(s);
    }
    class Iterator : public sentencepiece::SentenceIterator {
     public:
      explicit Iterator(const std::vector<std::string>& s) : s_(s) {}
      bool done() const override { return i_ == s_.size(); }
      void Next() override { i_++; }
      const std::string& value() const override { return s_[i_]; }
      sentencepiece::util::Status status() const override { return {}; }

     private:
      const std::vector<std::string>& s_;
      size_t i_ = 0;
    } iterator(sentences);
    options.insert({{"vocab_size", "400"},
                    {"hard_vocab_limit", "false"},
                    {"minloglevel", "3"},
                    {"num_threads", "1"},
                    {"character_coverage", "0.99"}});
    std::string bytes;
    const auto status = sentencepiece::SentencePieceTrainer::Train(options, &iterator, &bytes);
    ASSERT_TRUE(status.ok()) << status.ToString();
    load(bytes);
  }
  void load(const std::string& bytes) {
    ASSERT_TRUE(library_.LoadFromSerializedProto(bytes).ok());
    SpmModel model;
    ASSERT_TRUE(parse_spm_model(bytes, &model));
    ASSERT_EQ(int(model.pieces.size()), library_.GetPieceSize());
    for (int id = 0; id < library_.GetPieceSize(); id++) {
      ASSERT_EQ(model.pieces[size_t(id)].text, library_.IdToPiece(id));
      ASSERT_EQ(model.pieces[size_t(id)].score, library_.GetScore(id));
    }
    unigram_ = Unigram::make(model);
    bpe_ = SpmBpe::make(model);
  }
  void expect_same(const std::string& text) {
    Ids expected;
    ASSERT_TRUE(library_.Encode(text, &expected).ok());
    const std::vector<int32_t> found = unigram_ ? unigram_->encode(text) : bpe_->encode(text);
    if (found == expected) return;
    const auto at = std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
    ADD_FAILURE() << "differs at piece " << at.first - found.begin() << " of " << expected.size()
                  << " of: " << text.substr(0, 300);
  }
  void expect_same_on_random_texts(uint32_t longest = 200000) {
    ASSERT_NE(unigram_ == nullptr, bpe_ == nullptr);
    for (const char* text : {"", " ", "  ", "\n", "a", " a ", "\u2581", "\u200b", "\u3000 "})
      expect_same(text);
    for (uint64_t i = 0; i < 3000; i++) expect_same(random_text(i, 1 + uint32_t(i % 40)));
    expect_same(random_text(99999, longest));  // about a megabyte: sums near a float's precision
  }

  sentencepiece::SentencePieceProcessor library_;
  std::unique_ptr<const Unigram> unigram_;
  std::unique_ptr<const SpmBpe> bpe_;
};

TEST_F(SpmEncoderTest, LikeT5) {
  train({{"normalization_rule_name", "nmt_nfkc"}});
  expect_same_on_random_texts();
}

TEST_F(SpmEncoderTest, LikeOurOwn) {
  train({{"normalization_rule_name", "identity"},
         {"remove_extra_whitespaces", "false"},
         {"byte_fallback", "true"},
         {"allow_whitespace_only_pieces", "true"}});
  expect_same_on_random_texts();
}

TEST_F(SpmEncoderTest, OtherOptions) {
  train({{"normalization_rule_name", "nfkc_cf"}, {"add_dummy_prefix", "false"}});
  expect_same_on_random_texts();
  train({{"normalization_rule_name", "nfkc"},
         {"remove_extra_whitespaces", "false"},
         {"split_by_whitespace", "false"}});
  expect_same_on_random_texts();
}

TEST_F(SpmEncoderTest, Bpe) {
  constexpr uint32_t kLongest = 20000;  // the library's time grows faster than the text
  train({{"model_type", "bpe"}, {"normalization_rule_name", "nmt_nfkc"}});
  ASSERT_NE(bpe_, nullptr);
  expect_same_on_random_texts(kLongest);
  train({{"model_type", "bpe"},
         {"normalization_rule_name", "identity"},
         {"remove_extra_whitespaces", "false"},
         {"byte_fallback", "true"},
         {"allow_whitespace_only_pieces", "true"}});
  expect_same_on_random_texts(kLongest);
  train({{"model_type", "bpe"}, {"user_defined_symbols", "cat,</s>,atrain,\u0301"}});
  expect_same_on_random_texts(kLongest);
  train({{"model_type", "bpe"}, {"split_by_whitespace", "false"}});  // pieces go across words
  expect_same_on_random_texts(kLongest);
}

TEST_F(SpmEncoderTest, OtherKindsAreLeftToTheLibrary) {
  const auto expect_none = [&] {
    EXPECT_EQ(unigram_, nullptr);
    EXPECT_EQ(bpe_, nullptr);
  };
  for (const char* type : {"unigram", "bpe"}) {
    train({{"model_type", type}, {"treat_whitespace_as_suffix", "true"}});
    expect_none();
  }
  train({{"user_defined_symbols", "<sep>"}});
  expect_none();
  train({{"model_type", "char"}});
  expect_none();
}

/// With the reference data beside the checkout, and the 6 MB document of the shared cases.
class SharedSpmEncoderTest : public SpmEncoderTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(shared_)) GTEST_SKIP() << "no " << shared_;
  }
  void load_file(const std::string& name) {
    std::ostringstream bytes;
    bytes << std::ifstream(shared_ + "data/tokenizers/" + name, std::ios::binary).rdbuf();
    load(bytes.str());
  }
  /// Number of documents in all files of the folder.
  int expect_same_on(const std::string& folder) {
    int documents = 0;
    for (const auto& entry : std::filesystem::directory_iterator(shared_ + folder)) {
      const std::string name = entry.path().string();
      if (name.find(".json") == std::string::npos && name.find(".utf8") == std::string::npos)
        continue;
      ReadOptions options;
      options.skip_bad = true;
      SkipReport skipped;
      TextReader reader(name, options, &skipped);
      for (std::string document; reader.next(&document); documents++) expect_same(document);
    }
    return documents;
  }
  const std::string shared_ = "../shared/";
};

TEST_F(SharedSpmEncoderTest, T5) {
  load_file("t5/spiece.model");
  ASSERT_NE(unigram_, nullptr);
  EXPECT_EQ(expect_same_on("data/c4/en"), 3000);
  EXPECT_EQ(expect_same_on("data/c4/other"), 500 + 1480 + 1);
  EXPECT_GT(expect_same_on("cases/inputs"), 400);
}

TEST_F(SharedSpmEncoderTest, Bpe) {
  for (const char* name : {"axlearn-bpe32k-c4/bpe_32k_c4.model", "stories/tok512.model"}) {
    load_file(name);
    ASSERT_NE(bpe_, nullptr) << name;
    EXPECT_EQ(expect_same_on("data/c4/en"), 3000);
  }
}

}  // namespace
}  // namespace loqal
#endif
