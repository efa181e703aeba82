// Random damage (test/core/fuzz.h) to every kind of data file.
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "data/shard.h"
#include "data/text_reader.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "test/core/fuzz.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

class FuzzTest : public DataTest {
 protected:
  Damage damage;
};

TEST_F(FuzzTest, ShardHeader) {
  const std::string seeds[] = {
      llmc_shard<uint16_t>({1, 2, 3}),
      llmc_shard<uint32_t>({1, 2, 3}, {{3, 0x6c61716c}, {4, 1}, {5, 70000}, {6, 1}, {7, 2}})};
  int accepted = 0;
  for (int i = 0; i < 20000; i++) {
    std::string bytes = seeds[i % 2];
    // Damage near the start: most of a header is zeros.
    bytes = damage(bytes.substr(0, 48)) + bytes.substr(48);
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());  // no slack behind the end
    try {
      const ShardHeader h = parse_shard_header(exact.data(), std::min<size_t>(exact.size(), 1024),
                                               exact.size(), "fuzz");
      EXPECT_EQ(uint64_t(h.file_bytes()), exact.size());
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 10000);  // the damage does reach the checks
}

TEST_F(FuzzTest, JsonLinesAndGzip) {
  const std::string json =
      "{\"text\":\"a \\ud83d\\ude00 \\u0000 b\",\"url\":\"http:\\/\\/x\",\"n\":[1,2e5,{}]}\n"
      "{\"timestamp\":null,\"text\":\"caf\xc3\xa9\"}\n\n{\"text\":\"end\"}\n";
  const std::string seeds[] = {json, gzip(json), gzip(json) + gzip(json)};
  const int memory = memfd_create("fuzz", 0);  // rewriting a file on disk 3000 times takes seconds
  const std::string file = cat("/proc/self/fd/", memory);
  int64_t documents = 0;
  for (int i = 0; i < 3000; i++) {
    ReadOptions options;
    options.skip_bad = i % 4 == 0;
    options.split = Split(i % 3);
    options.max_doc_bytes = 1 + damage.draw(200);
    const std::string bytes = damage(seeds[i % 3]);
    ASSERT_EQ(ftruncate(memory, 0), 0);
    ASSERT_EQ(pwrite(memory, bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    SkipReport skipped;
    try {
      TextReader reader(file, options, &skipped);
      for (std::string document; reader.next(&document);) documents++;
    } catch (const Error& e) {
      EXPECT_FALSE(options.skip_bad) << e.what();
    }
  }
  close(memory);
  EXPECT_GT(documents, 500);
}

TEST_F(FuzzTest, Gpt2Tokenizer) {
  nlohmann::json vocabulary;
  for (int b = 0; b < 256; b++) vocabulary[spelling(b)] = b;
  int next = 256;
  for (const char* piece : {"he", "ll", "hell", "hello", "<|endoftext|>"})
    vocabulary[piece] = next++;
  const std::string pieces = vocabulary.dump();
  const std::string merges = "#version: 0.2\nh e\nl l\nhe ll\nhell o\n";
  const FastDir dir;
  int accepted = 0;
  for (int i = 0; i < 500; i++) {  // 4 ms each under ASan
    // Two of three times the merges: few damages of 256 bytes' pieces leave a vocabulary.
    dir.write("encoder.json", i % 3 == 0 ? damage(pieces) : pieces);
    dir.write("vocab.bpe", i % 3 == 0 ? merges : damage(merges));
    try {
      const auto t = load_gpt2(dir / "encoder.json", dir / "vocab.bpe");
      for (const int32_t id : t->encode("hello hell \xc3\xa9")) {
        ASSERT_GE(id, 0);
        ASSERT_LT(id, t->vocab_size());
      }
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 20);
  EXPECT_LT(accepted, 250);
}

#if LOQAL_SENTENCEPIECE
TEST_F(FuzzTest, SentencePieceModel) {
  const char* syllables[] = {"the", "ca", "sat", "on", "a", "ma", "whi", "rai", "fe", "so"};
  std::string lines;
  while (lines.size() < 10000) {
    lines += syllables[damage.draw(10)];
    if (damage.draw(2) == 0) lines += damage.draw(10) == 0 ? ".\n" : " ";
  }
  write("in.txt", lines);
  const FastDir dir;
  for (const char* type : {"unigram", "bpe"}) {
    std::ostringstream log;
    train_spm({{path("in.txt")}, path("m"), 300, type, {}}, log);
    const std::string model = read("m.model");
    int accepted = 0;
    for (int i = 0; i < 1000; i++) {
      dir.write("m.model", damage(model));
      try {
        const auto t = load_sentencepiece(dir / "m.model");
        for (const int32_t id : t->encode("the cat sat on \xc3\xa9"))
          ASSERT_LT(id, t->vocab_size());
        accepted++;
      } catch (const Error&) {
      }
    }
    EXPECT_LT(accepted, 950) << type;
  }
}
#endif

}  // namespace
}  // namespace loqal
