#include "data/shard.h"

#include "data/sha256.h"
#include "data/shard_writer.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

class ShardTest : public DataTest {
 protected:
  ShardHeader header(int vocab) const {
    ShardHeader h;
    h.vocab_size = vocab;
    h.bos = 1, h.eos = 2;
    h.tokenizer_hash = 0x0123456789abcdef;
    return h;
  }
  void write_shards(const std::vector<int32_t>& ids, int vocab, int64_t shard_tokens) const {
    ShardWriter writer(path("t"), header(vocab), shard_tokens);
    writer.write(ids);
    writer.finish();
    writer.publish();
  }
};

TEST_F(ShardTest, ReadsPlainLlmcFiles) {
  const std::string file = write("a.bin", llmc_shard<uint16_t>({5, 6, 65535}));
  const Shard shard(file, 0);
  EXPECT_EQ(shard.header().tokens, 3);
  EXPECT_EQ(shard.header().vocab_size, 0);  // unknown
  EXPECT_EQ(shard.header().eos, -1);
  int32_t ids[3];
  shard.read(0, 3, ids);
  EXPECT_EQ(ids[2], 65535);
  const Shard wide(write("b.bin", llmc_shard<uint32_t>({70000, 1})), 0);
  wide.read(0, 1, ids);
  EXPECT_EQ(ids[0], 70000);
}

// What llm.c's reader relies on: words 0 to 2 and the size (llmc/dataloader.h).
TEST_F(ShardTest, WritesFilesThatLlmcReads) {
  write_shards({3, 1, 4, 1, 5}, 50257, 100);
  const std::string bytes = read("t_000000.bin");
  int32_t words[3];
  std::memcpy(words, bytes.data(), sizeof words);
  EXPECT_EQ(words[0], 20240520);
  EXPECT_EQ(words[1], 1);
  EXPECT_EQ(words[2], 5);
  ASSERT_EQ(bytes.size(), 1024u + 2 * 5);
  EXPECT_EQ(bytes.substr(1024), std::string("\3\0\1\0\4\0\1\0\5\0", 10));
  const ShardHeader back = read_shard_header(path("t_000000.bin"));
  EXPECT_EQ(back.vocab_size, 50257);
  EXPECT_EQ(back.bos, 1);
  EXPECT_EQ(back.eos, 2);
  EXPECT_EQ(back.pad, -1);
  EXPECT_EQ(back.tokenizer_hash, 0x0123456789abcdefu);
  EXPECT_EQ(back.row_length, 0);
}

// D3: 70,000 pieces need 32 bits; 65,536 are the most that 16 hold.
TEST_F(ShardTest, WidthFollowsTheVocabulary) {
  EXPECT_EQ(bytes_per_token(65536), 2);
  EXPECT_EQ(bytes_per_token(65537), 4);
  write_shards({69999, 65536}, 70000, 100);
  const Shard shard(path("t_000000.bin"), 70000);
  EXPECT_EQ(shard.header().bytes_per_token, 4);
  int32_t ids[2];
  shard.read(0, 2, ids);
  EXPECT_EQ(ids[0], 69999);
  EXPECT_EQ(ids[1], 65536);
}

TEST_F(ShardTest, WriterRefusesIdsOutsideTheVocabulary) {
  EXPECT_ERROR(write_shards({1, 512}, 512, 100), "token 0", "id 512", "0 to 511");
  EXPECT_ERROR(write_shards({-1}, 512, 100), "id -1");
  EXPECT_TRUE(names().empty());  // and leaves no .tmp
}

TEST_F(ShardTest, DocumentsStraddleShardsAndNamesAreLlmcs) {
  ShardWriter writer(path("t"), header(100), 4);
  for (const int n : {3, 3, 2}) writer.write(std::vector<int32_t>(size_t(n), n));
  EXPECT_EQ(names(), (std::vector<std::string>{"t_000000.bin.tmp", "t_000001.bin.tmp"}));
  const auto shards = writer.finish();
  writer.publish();
  ASSERT_EQ(shards.size(), 2u);  // 8 tokens: no empty third shard
  EXPECT_EQ(shards[1].sha256, sha256_file(path("t_000001.bin")));
  int32_t ids[4];
  Shard(path("t_000001.bin"), 100).read(0, 4, ids);
  EXPECT_EQ((std::vector<int32_t>(ids, ids + 4)), (std::vector<int32_t>{3, 3, 2, 2}));
}

TEST_F(ShardTest, AnEarlierRunIsReplacedOnlyOnSuccess) {
  write_shards(std::vector<int32_t>(40, 7), 100, 10);
  write("t_extra.bin", "not a shard of ours");
  const std::string old = read("t_000000.bin");
  {
    ShardWriter writer(path("t"), header(100), 30);
    writer.write(std::vector<int32_t>(50, 8));
    writer.finish();
  }  // not published
  EXPECT_EQ(read("t_000000.bin"), old);
  EXPECT_EQ(names().size(), 6u);
  write_shards(std::vector<int32_t>(50, 8), 100, 30);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"t.json", "t_000000.bin", "t_000001.bin", "t_extra.bin"}));
}

// D1: one id equal to the vocabulary size, and 65535.
TEST_F(ShardTest, ScanNamesFileOffsetIdAndVocabulary) {
  std::vector<uint16_t> ids(40000, 511);
  write("good.bin", llmc_shard(ids));
  EXPECT_NO_THROW(Shard(path("good.bin"), 512).scan());
  ids[33333] = 512;
  write("eq.bin", llmc_shard(ids));
  EXPECT_ERROR(Shard(path("eq.bin"), 512).scan(), "eq.bin", "token 33333", "id 512", "size 512");
  ids[33333] = 511, ids.back() = 65535;
  write("max.bin", llmc_shard(ids));
  EXPECT_ERROR(Shard(path("max.bin"), 512).scan(), "max.bin", "token 39999", "id 65535",
               "size 512");
  // The header's own vocabulary counts as well.
  write("own.bin", llmc_shard<uint16_t>({1, 9}, {{3, 0x6c61716c}, {4, 1}, {5, 9}}));
  EXPECT_ERROR(Shard(path("own.bin"), 512).scan(), "token 1", "id 9", "size 9");
}

// D4: every wrong file is one line with path, expected and found.
TEST_F(ShardTest, WrongFilesSayWhatTheyAre) {
  const std::string good = llmc_shard<uint16_t>({1, 2, 3});
  const auto check = [&](const std::string& bytes, const std::vector<std::string>& parts) {
    const std::string file = write("x.bin", bytes);
    const std::string message = error_of([&] { read_shard_header(file); });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_NE(message.find(file), std::string::npos) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message;
  };
  check("", {"1024", "0 bytes", "empty"});
  check("abc", {"1024", "3 bytes"});
  check(std::string(4096, '\xff'), {"20240520", "0xFF"});
  check("<!DOCTYPE html><html>" + std::string(2000, ' '), {"HTML"});
  check(gzip(std::string("text")) + std::string(2000, 'x'), {"gzip"});
  check(std::string("\x40\0\0\0\0\0\0\0{\"a\":{}}", 16) + std::string(2000, ' '), {"safetensors"});
  check(std::string(1024, 'x'), {"magic 2021161080"});  // 0x78787878
  check(llmc_shard<uint16_t>({1, 2, 3}, {{1, 0}}), {"version 1", "found 0"});
  check(llmc_shard<uint32_t>({1, 2, 3}, {{1, 1}}), {"version 7", "found 1"});
  check(good + "x", {"1030", "found 1031"});
  check(good.substr(0, good.size() - 1), {"1030", "found 1029"});
}

TEST_F(ShardTest, InconsistentHeadersAreRefused) {
  constexpr int32_t kTag = 0x6c61716c;
  const auto file = [&](std::vector<std::pair<int, int32_t>> words) {
    return write("x.bin", llmc_shard<uint16_t>({1, 2, 3}, words));
  };
  EXPECT_NO_THROW(read_shard_header(file({{3, kTag}, {4, 1}, {5, 100}, {6, -1}, {8, 99}})));
  EXPECT_ERROR(read_shard_header(file({{2, -1}})), "count -1");
  EXPECT_ERROR(read_shard_header(file({{3, 5}})), "words 3 and 4", "found 5");
  EXPECT_ERROR(read_shard_header(file({{3, kTag}, {4, 2}, {5, 100}})), "newer loqal");
  EXPECT_ERROR(read_shard_header(file({{3, kTag}, {4, 1}, {5, 70000}})), "vocabulary 70000");
  EXPECT_ERROR(read_shard_header(file({{3, kTag}, {4, 1}, {5, 100}, {7, 100}})), "word 7", "100");
  EXPECT_ERROR(read_shard_header(file({{3, kTag}, {4, 1}, {5, 100}, {11, -4}})), "row length -4");
  EXPECT_ERROR(read_shard_header(file({{3, kTag}, {4, 1}, {5, 100}, {255, 1}})), "word 255");
}

TEST_F(ShardTest, PrefixIsCheckedBeforeTheWorkAndFoldersAreMade) {
  EXPECT_NO_THROW(ShardWriter(path("new/folder/t"), header(10), 5));
  EXPECT_TRUE(std::filesystem::is_directory(path("new/folder")));
  EXPECT_ERROR(ShardWriter(path("") + "/", header(10), 5), "prefix");
}

}  // namespace
}  // namespace loqal
