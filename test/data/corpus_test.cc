#include "data/corpus.h"

#include <filesystem>

#include "test/data/data_test_util.h"

namespace loqal {
namespace {

constexpr int32_t kTag = 0x6c61716c;

class CorpusTest : public DataTest {
 protected:
  /// A shard with loqal's words: vocabulary and low half of the tokenizer hash.
  void write_tagged(const std::string& name, int vocab, int32_t hash) const {
    write(name, llmc_shard(distinct_ids(0, 11),
                           {{3, kTag}, {4, 1}, {5, vocab}, {6, -1}, {7, 1}, {8, -1}, {9, hash}}));
  }
};

TEST_F(CorpusTest, WindowsTileEachShard) {
  write("b_1.bin", llmc_shard(distinct_ids(100, 10)));
  write("b_0.bin", llmc_shard(distinct_ids(0, 9)));
  write("b_2.bin", llmc_shard(distinct_ids(200, 1)));
  Corpus corpus({path("b_*.bin"), path("b_0.bin")}, "training", 1000);
  ASSERT_EQ(corpus.files().size(), 3u);  // sorted, each once
  EXPECT_EQ(corpus.files()[0].path, path("b_0.bin"));
  EXPECT_EQ(corpus.tokens(), 20);
  EXPECT_EQ(corpus.windows(4), 2 + 2 + 0);
  EXPECT_EQ(corpus.dropped(4), 20 - 16);
  int32_t in[4], out[4];
  corpus.window(2, 4, in, out);  // the first of the second shard
  EXPECT_EQ(in[0], 100);
  EXPECT_EQ(out[3], 104);
  corpus.window(1, 4, in, out);
  EXPECT_EQ(in[0], 4);
  EXPECT_EQ(out[3], 8);
  corpus.window(7, 2, in, out);  // another T
  EXPECT_EQ(in[0], 106);
}

TEST_F(CorpusTest, NoMatchIsAnImmediateError) {
  write("a.bin", llmc_shard(distinct_ids(0, 9)));
  EXPECT_ERROR(Corpus({path("a.bin"), path("c_*.bin")}, "validation", 10), "validation",
               path("c_*.bin"));
}

// D1: the ids of a shard are checked when it is first needed, and name it.
TEST_F(CorpusTest, IdsAreCheckedBeforeABatchOfThemIsUsed) {
  write("a.bin", llmc_shard(distinct_ids(0, 9)));
  write("b.bin", llmc_shard(distinct_ids(5, 9)));
  Corpus corpus({path("*.bin")}, "training", 13);
  int32_t in[8], out[8];
  corpus.window(0, 8, in, out);
  EXPECT_ERROR(corpus.window(1, 8, in, out), "b.bin", "token 8", "id 13", "size 13");
}

// D2: both files and both numbers.
TEST_F(CorpusTest, DisagreementsNameBothSides) {
  write_tagged("a.bin", 512, 7);
  write_tagged("b.bin", 512, 8);
  write_tagged("c.bin", 600, 7);
  write("plain.bin", llmc_shard(distinct_ids(0, 11)));
  const auto corpus = [&](std::vector<std::string> names, int vocab,
                          const TokenizerInfo* tokenizer = nullptr) {
    for (std::string& name : names) name = path(name);
    return Corpus(names, "training", vocab, tokenizer);
  };
  EXPECT_ERROR(corpus({"a.bin"}, 511), "a.bin", "512", "511", "model");
  EXPECT_ERROR(corpus({"a.bin", "b.bin"}, 512), "a.bin", "b.bin", "0007", "0008");
  EXPECT_ERROR(corpus({"a.bin", "c.bin"}, 600), "a.bin", "c.bin", "512", "600");
  const TokenizerInfo other_vocab{"t.model", 500, 7}, other_hash{"t.model", 512, 9},
      same{"t.model", 512, 7};
  EXPECT_ERROR(corpus({"a.bin"}, 512, &other_vocab), "a.bin", "512", "t.model", "500");
  EXPECT_ERROR(corpus({"a.bin"}, 512, &other_hash), "a.bin", "0007", "t.model", "0009");
  const Corpus good = corpus({"a.bin", "plain.bin"}, 512, &same);
  EXPECT_EQ(good.vocab_size(), 512);
  EXPECT_EQ(good.eos(), 1);
  EXPECT_EQ(good.tokenizer_hash(), 7u);
  EXPECT_EQ(corpus({"plain.bin"}, 512, &other_vocab).vocab_size(), 0);
}

/// Rows of 5: "5 6 </s> pad pad" and so on, with the pad id that the header names.
class PaddedCorpusTest : public CorpusTest {
 protected:
  Corpus corpus(const std::vector<uint16_t>& ids, int pad) const {
    write("p.bin",
          llmc_shard(ids, {{3, kTag}, {4, 1}, {5, 10}, {6, -1}, {7, 1}, {8, pad}, {11, 5}}));
    return Corpus({path("p.bin")}, "training", 10);
  }
  static std::vector<int32_t> targets(Corpus corpus, int64_t row, std::vector<int32_t> in) {
    std::vector<int32_t> tokens(5), out(5);
    corpus.window(row, 5, tokens.data(), out.data());
    EXPECT_EQ(tokens, in);
    return out;
  }
  using V = std::vector<int32_t>;
};

// Hugging Face's labels, shifted: padding and the place behind the row are no targets.
TEST_F(PaddedCorpusTest, WindowsAreRowsAndPaddingIsNoTarget) {
  const std::vector<uint16_t> ids = {5, 6, 1, 0, 0, 7, 8, 9, 4, 1, 3, 1, 0, 0, 0};
  EXPECT_EQ(corpus(ids, 0).windows(5), 3);
  EXPECT_EQ(corpus(ids, 0).dropped(5), 0);
  EXPECT_EQ(targets(corpus(ids, 0), 0, {5, 6, 1, 0, 0}), (V{6, 1, -1, -1, -1}));
  EXPECT_EQ(targets(corpus(ids, 0), 1, {7, 8, 9, 4, 1}), (V{8, 9, 4, 1, -1}));
  EXPECT_EQ(targets(corpus(ids, 0), 2, {3, 1, 0, 0, 0}), (V{1, -1, -1, -1, -1}));
}

// Where eos pads, the first one is text: the model must learn to end (LoQT's 7B runs mask it).
TEST_F(PaddedCorpusTest, TheFirstOfPaddingEosIsATarget) {
  const std::vector<uint16_t> ids = {5, 6, 1, 1, 1, 7, 8, 9, 4, 1, 7, 1, 8, 9, 1};
  EXPECT_EQ(targets(corpus(ids, 1), 0, {5, 6, 1, 1, 1}), (V{6, 1, -1, -1, -1}));
  EXPECT_EQ(targets(corpus(ids, 1), 1, {7, 8, 9, 4, 1}), (V{8, 9, 4, 1, -1}));
  EXPECT_EQ(targets(corpus(ids, 1), 2, {7, 1, 8, 9, 1}), (V{1, 8, 9, 1, -1}));
}

TEST_F(PaddedCorpusTest, OtherLengthsAndPackedFilesAreRefused) {
  EXPECT_ERROR(corpus({5, 6, 1, 0, 0}, 0).windows(4), "rows of 5", "reads 4", "--seq-len 5");
  EXPECT_ERROR(corpus({5, 6, 1, 0}, 0), "rows of 5", "4 tokens");
  EXPECT_ERROR(corpus({5, 6, 1, 0, 0}, -1), "pad -1");
  corpus({5, 6, 1, 0, 0}, 0);
  write("plain.bin", llmc_shard(distinct_ids(0, 10)));
  EXPECT_ERROR(Corpus({path("*.bin")}, "training", 10), "p.bin", "plain.bin", "rows of 5");
}

// Above 2^24 tokens a shard of ours is not read as a whole when it is opened; its windows are
// checked one by one. (A sparse file: the bad id lies in the last window.)
TEST_F(CorpusTest, LargeShardsAreCheckedWindowByWindow) {
  const int64_t tokens = (int64_t(1) << 24) + 1;
  write("big.bin", llmc_shard<uint16_t>({}, {{2, int32_t(tokens)}, {3, kTag}, {4, 1}, {5, 9}}));
  std::filesystem::resize_file(path("big.bin"), 1024 + 2 * size_t(tokens));
  std::fstream file(path("big.bin"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(1024 + 2 * (tokens - 2));
  file.put(9);
  file.close();
  Corpus corpus({path("big.bin")}, "training", 9);
  std::vector<int32_t> in(1024), out(1024);
  corpus.window(0, 1024, in.data(), out.data());
  EXPECT_ERROR(corpus.window(corpus.windows(1024) - 1, 1024, in.data(), out.data()),
               cat("token ", tokens - 2), "id 9", "size 9");
}

// A crash of ./tokenize between the names of two shards: old ones and new ones look alike.
TEST_F(CorpusTest, HalfReplacedShardsAreRefused) {
  write("t_000000.bin", llmc_shard(distinct_ids(0, 9)));
  write("u_000000.bin", llmc_shard(distinct_ids(0, 9)));
  write("t.json.new", "{}");
  EXPECT_ERROR(Corpus({path("*.bin")}, "training", 10), "t_000000.bin", "t.json.new",
               "same ./tokenize command");
  EXPECT_EQ(Corpus({path("u_*.bin")}, "training", 10).tokens(), 9);
}

TEST_F(CorpusTest, MoreShardsThanStayOpen) {
  for (int i = 0; i < 70; i++)
    write(cat("s_", 100 + i, ".bin"), llmc_shard(distinct_ids(i * 5, 5)));
  Corpus corpus({path("s_*.bin")}, "training", 1000);
  int32_t in[4], out[4];
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < 70; i++) {
      corpus.window(i, 4, in, out);
      ASSERT_EQ(in[0], i * 5);
    }
}

// Scanning is what costs: with more shards than stay open every batch would scan some again.
TEST_F(CorpusTest, AShardIsScannedOnceUnlessItsFileChanges) {
  for (int i = 0; i < 70; i++)
    write(cat("s_", 100 + i, ".bin"), llmc_shard(distinct_ids(i * 6, 6)));
  Corpus corpus({path("s_*.bin")}, "training", 1000);
  int32_t in[4], out[4];
  const auto all = [&] {
    for (int i = 0; i < 70; i++) corpus.window(i, 4, in, out);
  };
  all();
  // A bad id behind the first shard's window, and the time as before: only a scan would see it.
  const std::filesystem::path first = path("s_100.bin");
  const auto time = std::filesystem::last_write_time(first);
  write("s_100.bin", llmc_shard<uint16_t>({0, 1, 2, 3, 4, 1000}));
  std::filesystem::last_write_time(first, time);
  EXPECT_EQ(error_of(all), "");
  EXPECT_EQ(error_of(all), "");
  std::filesystem::last_write_time(first, time + std::chrono::seconds(2));
  EXPECT_ERROR(all(), "s_100.bin", "id 1000");
}

// D2: training and validation data by one tokenizer; what one side does not know is no difference.
TEST_F(CorpusTest, OneTokenizerForTrainingAndValidation) {
  const auto corpus = [&](const std::string& name, const std::string& role) {
    return Corpus({path(name)}, role, 1000);
  };
  const auto file = [&](const char* name, int vocab, int bos, int eos, int hash) {
    write(name,
          llmc_shard(distinct_ids(0, 11),
                     {{3, kTag}, {4, 1}, {5, vocab}, {6, bos}, {7, eos}, {8, -1}, {9, hash}}));
  };
  file("a.bin", 512, 1, 2, 7);
  file("vocab.bin", 600, 1, 2, 7), file("hash.bin", 512, 1, 2, 8), file("eos.bin", 512, 1, 3, 7);
  file("no_hash.bin", 512, -1, 2, 0);
  write("plain.bin", llmc_shard(distinct_ids(0, 11)));
  const Corpus a = corpus("a.bin", "training");
  const auto check = [&](const char* name) { a.check_same_tokenizer(corpus(name, "validation")); };
  EXPECT_ERROR(check("vocab.bin"), "training", "validation", "a.bin", "vocab.bin", "512", "600");
  EXPECT_ERROR(check("hash.bin"), "a.bin", "hash.bin", "0007", "0008", "one tokenizer");
  EXPECT_ERROR(check("eos.bin"), "a.bin", "eos.bin", "eos id 2", "has 3");
  for (const char* name : {"a.bin", "no_hash.bin", "plain.bin"})
    EXPECT_EQ(error_of([&] { check(name); }), "") << name;
  EXPECT_EQ(error_of([&] { corpus("plain.bin", "training").check_same_tokenizer(a); }), "");
}

TEST_F(CorpusTest, StartTokenIsWhatStandsBeforeATextInTheData) {
  const auto start = [&](const std::vector<uint16_t>& ids, int bos, int eos) {
    write("0.bin", llmc_shard<uint16_t>({}));  // an empty shard says nothing
    write("t.bin", llmc_shard(ids, {{3, kTag}, {4, 1}, {5, 100}, {6, bos}, {7, eos}, {8, -1}}));
    return Corpus({path("*.bin")}, "training", 100).start_token();
  };
  EXPECT_EQ(start({1, 5, 6, 2, 1, 7, 2}, 1, 2), 1);  // bos before each text
  EXPECT_EQ(start({5, 6, 2, 7, 8, 2}, 1, 2), 2);     // eos after each text: between two
  EXPECT_EQ(start({2, 5, 6, 2, 7, 8}, -1, 2), 2);    // before each text
  EXPECT_EQ(start({5, 6, 7, 8, 1, 9}, 1, 2), -1);    // made without either
  EXPECT_EQ(start({5, 6, 7, 8}, -1, -1), -1);
  std::vector<uint16_t> late(size_t(1) << 20, 5);
  late.push_back(2);
  EXPECT_EQ(start(late, 1, 2), -1) << "only the start is searched";
  EXPECT_EQ(Corpus({path("0.bin")}, "training", 100).start_token(), -1);
}

TEST_F(CorpusTest, ARewrittenShardIsNoticed) {
  const std::string file = write("a.bin", llmc_shard(distinct_ids(0, 20)));
  Corpus corpus({file}, "training", 100);
  write("a.bin", llmc_shard(distinct_ids(0, 9)));
  int32_t in[4], out[4];
  EXPECT_ERROR(corpus.window(3, 4, in, out), "had 20 tokens", "now 9");
}

}  // namespace
}  // namespace loqal
