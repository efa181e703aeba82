// With the reference data beside the checkout (it is not needed to build or to use the program): id
// for id what llm.c and SentencePiece give.
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/file.h"
#include "data/sha256.h"
#include "data/shard.h"
#include "data/text_reader.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

using Ids = std::vector<int32_t>;

class ReferenceTest : public DataTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(data_ + "bin")) GTEST_SKIP() << "no reference data in " << data_;
  }
  Ids shard(const std::string& name) const {
    const Shard shard(data_ + "bin/" + name, 0);
    Ids ids(size_t(shard.header().tokens));
    shard.read(0, int64_t(ids.size()), ids.data());
    return ids;
  }
  const std::string data_ = "../shared/data/";
};

TEST_F(ReferenceTest, TinyShakespeare) {
  const auto t = load_tokenizer(data_ + "tokenizers/gpt2");
  ReadOptions options;
  options.split = Split::blank;
  SkipReport skipped;
  TextReader reader(data_ + "text/tinyshakespeare.txt", options, &skipped);
  Ids ids;
  for (std::string document; reader.next(&document);) {
    ids.push_back(t->eos());
    const Ids text = t->encode(document);
    ids.insert(ids.end(), text.begin(), text.end());
  }
  Ids expected = shard("tiny_shakespeare_val.bin");  // llm.c: the first 32,768 tokens
  EXPECT_EQ(expected.size(), 32768u);
  const Ids train = shard("tiny_shakespeare_train.bin");
  expected.insert(expected.end(), train.begin(), train.end());
  EXPECT_TRUE(ids == expected);
}

#if LOQAL_SENTENCEPIECE
TEST_F(ReferenceTest, GoldenTokenizations) {
  nlohmann::json golden;
  std::ifstream(data_ + "tokenizers/golden_tokenization.json") >> golden;
  for (const auto& [name, model] : golden["models"].items()) {
    const auto t = load_tokenizer(data_ + model["file"].get<std::string>());
    EXPECT_EQ(t->vocab_size(), model["vocab"].get<int>());
    for (const auto& c : model["cases"]) {
      const Ids ids = t->encode(c["text"].get<std::string>());
      EXPECT_EQ(ids, c["ids"].get<Ids>()) << name;
      EXPECT_EQ(t->decode(ids), c["decoded"].get<std::string>()) << name;
      const auto text = c["text"].get<std::string>();
      EXPECT_EQ(t->restores(ids, text), t->decode(ids) == text) << name << ": " << text;
      EXPECT_EQ(t->clone()->encode(text), ids);
    }
  }
}

// Twenty whole documents id for id, and all documents of three shards by their hash.
TEST_F(ReferenceTest, GoldenDocuments) {
  nlohmann::json golden;
  std::ifstream(data_ + "tokenizers/golden_tokenization.json") >> golden;
  for (const auto& [name, model] : golden["models"].items()) {
    const auto t = load_tokenizer(data_ + model["file"].get<std::string>());
    for (const auto& [file, expected] : model["shards"].items()) {
      SkipReport skipped;
      TextReader reader(data_ + file, {}, &skipped);
      Sha256 hash;
      int64_t tokens = 0, documents = 0;
      for (std::string document; reader.next(&document); documents++) {
        Ids ids = t->encode(document);
        tokens += int64_t(ids.size());
        if (documents < 20 && file.find("train.00000") != std::string::npos) {
          EXPECT_EQ(ids, model["docs20"][size_t(documents)].get<Ids>()) << name << documents;
        }
        ids.push_back(-1);
        hash.update(ids.data(), ids.size() * sizeof ids[0]);
      }
      EXPECT_EQ(documents, expected["docs"].get<int64_t>()) << name << " " << file;
      EXPECT_EQ(tokens, expected["tokens"].get<int64_t>()) << name << " " << file;
      EXPECT_EQ(to_hex(hash.digest()),
                expected["sha256_of_ids_u32le_each_doc_followed_by_ffffffff"].get<std::string>())
          << name << " " << file;
    }
  }
}

// The whole program: the same file but for the header's words behind magic, version and count.
TEST_F(ReferenceTest, Val1000ByteForByte) {
  for (const auto& [tokenizer, expected] :
       {std::pair("tokenizers/t5/spiece.model", "bin/c4_val1000_t5_eos.bin"),
        std::pair("tokenizers/gpt2", "bin/c4_val1000_gpt2.bin")}) {
    TokenizeOptions options;
    options.inputs = {data_ + "c4/en/c4-validation.00000-of-00001.json.gz"};
    options.tokenizer = data_ + tokenizer;
    options.out = dir_ / "t";
    options.jobs = 2;
    std::ostringstream log;
    ASSERT_TRUE(tokenize(options, log));
    std::string ours = read("t_000000.bin"), theirs = read_file(data_ + expected);
    ASSERT_EQ(ours.size(), theirs.size()) << expected;
    EXPECT_EQ(ours.substr(0, 12), theirs.substr(0, 12)) << expected;
    EXPECT_TRUE(ours.substr(1024) == theirs.substr(1024)) << expected;
  }
}
#endif

}  // namespace
}  // namespace loqal
