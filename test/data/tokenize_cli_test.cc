#include "test/data/tokenize_cli.h"

#include "core/suggest.h"
#include "data/sha256.h"

namespace loqal {
namespace {

TEST(Suggest, Closest) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);  // the textbook example
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(closest("--vocb", {"--vocab", "--out", "--bos"}), "--vocab");
  EXPECT_EQ(closest("x", {}), "");
}

TEST_F(TokenizeCli, WritesShardsAndManifest) {
  write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"\"}\n{\"text\":\"c\"}\n");
  write("b.txt", "d");
  expect("--tokenizer gpt2 --out t --shard-tokens 3 a.jsonl b.txt", 0,
         {"eos before (id 256)", "3 written, 1 empty, 0 skipped", "separators 3",
          "tokens     7 in 3 shards"});
  EXPECT_EQ(ids("t_000000.bin"), (std::vector<int32_t>{256, 'a', 'b'}));  // ends on the boundary
  EXPECT_EQ(ids("t_000001.bin"), (std::vector<int32_t>{256, 'c', 256}));
  EXPECT_EQ(ids("t_000002.bin"), (std::vector<int32_t>{'d'}));
  const auto m = nlohmann::json::parse(read("t.json"));
  EXPECT_EQ(m["tokens"], 7);
  EXPECT_EQ(m["documents"], 3);
  EXPECT_EQ(m["shards"][2]["file"], "t_000002.bin");
  EXPECT_EQ(m["shards"][2]["sha256"], sha256_file(path("t_000002.bin")));
  EXPECT_EQ(m["sources"][0]["sha256"], sha256_file(path("a.jsonl")));
  EXPECT_EQ(m["tokenizer"]["vocab_size"], 257);
  expect("--verify t.json", 0, {"t.json: 3 shards, 7 tokens, as written"});
  // Again with one shard: the surplus ones of the earlier run go.
  expect("--tokenizer gpt2 --out t --eos after --bos before a.jsonl b.txt", 0, {"separators 6"});
  EXPECT_EQ(names(),
            (std::vector<std::string>{"a.jsonl", "b.txt", "gpt2", "t.json", "t_000000.bin"}));
}

TEST_F(TokenizeCli, OptionsAreStrict) {
  write("a.txt", "text");
  expect("", 2, {"tokenize: error: --tokenizer is missing", "hint: "});
  expect("--tokenzer gpt2 --out t a.txt", 2, {"--tokenzer", "did you mean --tokenizer?"});
  expect("--tokenizer gpt2 --out t --eos sometimes a.txt", 2, {"--eos", "before,after,none"});
  expect("--tokenizer gpt2 --out t --shard-tokens 0 a.txt", 2, {"--shard-tokens 0", "1 to"});
  expect("--tokenizer gpt2 --out t --shard-tokens 1e10 a.txt", 2, {"--shard-tokens 1e10"});
  expect("--tokenizer gpt2 --out t --max-doc-bytes 0 a.txt", 2, {"--max-doc-bytes 0"});
  expect("--tokenizer gpt2 --out t", 2, {"INPUT is missing"});
  expect("--vocab 300 --tokenizer gpt2 --out t a.txt", 2, {"--vocab", "--train-spm"});
  expect("--train-spm --out t a.txt", 2, {"--train-spm", "--vocab"});
  expect("--train-spm --vocab 300 --tokenizer gpt2 --out t a.txt", 2, {"--tokenizer"});
  expect("--show a.txt 3 --out t", 2, {"--show", "--out"});
  expect("--help", 0, {"--max-doc-bytes"});
  EXPECT_EQ(names(), (std::vector<std::string>{"a.txt", "gpt2"}));
}

// D5, D6, D20: exit code 1, the file and the place named, nothing half-written, nothing claimed.
TEST_F(TokenizeCli, BadInputLeavesNothing) {
  std::string lines;
  for (int i = 0; i < 2000; i++) lines += cat("{\"text\":\"", i * 7919 % 10007, " ", i, "\"}\n");
  const std::string whole = gzip(lines);
  write("cut.json.gz", whole.substr(0, whole.size() * 6 / 10));
  write("bad.jsonl", "{\"text\":\"a\"}\n{\"text\":}\n");
  write("empty.txt", "");
  expect("--tokenizer gpt2 --out t cut.json.gz", 1, {"cut.json.gz: damaged gzip", "documents"});
  expect("--tokenizer gpt2 --out t bad.jsonl", 1, {"bad.jsonl:2: malformed JSON"});
  expect("--tokenizer gpt2 --out t empty.txt", 1, {"nothing to write"});
  expect("--tokenizer gpt2 --out t none.txt", 1, {"none.txt: no such input"});
  expect("--tokenizer none --out t bad.jsonl", 1, {"none: no such tokenizer"});
  expect("--show bad.jsonl 4", 1, {"bad.jsonl: not a token shard", "JSON"});
  EXPECT_EQ(names(), (std::vector<std::string>{"bad.jsonl", "cut.json.gz", "empty.txt", "gpt2"}));
  expect("--tokenizer gpt2 --out t --on-error skip cut.json.gz bad.jsonl", 0,
         {"2 skipped", "skipped 1: malformed JSON", "bad.jsonl:2", "unreadable or damaged"});
}

// A limit on the file size stands for a full disk: the same failing write.
TEST_F(TokenizeCli, FullDiskIsReportedAndLeavesNothing) {
  write("a.txt", std::string(200000, 'x'));
  const TokenizeResult r =
      run("--tokenizer gpt2 --out t a.txt", "ulimit -f 100 && trap '' XFSZ &&");
  EXPECT_EQ(r.exit_code, 1) << r.output;
  EXPECT_NE(r.output.find("t_000000.bin.tmp: cannot write"), std::string::npos) << r.output;
  EXPECT_EQ(names(), (std::vector<std::string>{"a.txt", "gpt2"}));
}

// D22 and the rest of shared/cases/reports.md, part A, on the inputs that come with it.
TEST_F(TokenizeCli, SharedCases) {
  const std::string cases = std::filesystem::absolute("../shared/cases/inputs").string() + "/";
  if (!std::filesystem::exists(cases)) GTEST_SKIP() << "no " << cases;
  const auto run_on = [&](const std::string& input, int code, std::vector<std::string> parts,
                          const std::string& options = "") {
    expect(cat("--tokenizer gpt2 --out t ", options, " ", cases, input), code, parts);
  };
  run_on("r01_good.json.gz", 0, {"400 written, 0 empty, 0 skipped", "separators 400"});
  run_on("r02_cut.json.gz", 1, {"r02_cut.json.gz: damaged gzip", "at byte 13122", "documents"});
  run_on("r02_cut.json.gz", 0, {"1 skipped", "unreadable or damaged"}, "--on-error skip");
  run_on("r03_badcrc.json.gz", 1, {"incorrect data check", "after 400 documents"});
  run_on("r04_html.json.gz", 1, {"HTML", "download it again"});
  run_on("r06_longline.json.gz", 0, {"3 written"});
  run_on("r07_roundtrip.json.gz", 0, {"10 written, 1 empty", "changed    0"});
  run_on("r08_alllong.json.gz", 0, {"0 skipped"});
  run_on("r10_val_empty.json.gz", 1, {"nothing to write"});
#if LOQAL_SENTENCEPIECE
  expect(cat("--train-spm --vocab 32000 --split line --out m ", cases, "r09_tiny.txt"), 1,
         {"--vocab 32000", "pieces at most", "hint: --vocab "});
  EXPECT_FALSE(std::filesystem::exists(path("m.model")));
#endif
}

TEST_F(TokenizeCli, PaddedRows) {
  write("a.jsonl", "{\"text\":\"abcdefgh\"}\n{\"text\":\"\"}\n{\"text\":\"x\"}\n");
  write("b.txt", "abc");
  expect("--tokenizer gpt2 --out t --pad-to 5 a.jsonl b.txt", 2, {"no pad id", "--eos after"});
  expect("--tokenizer gpt2 --out t --pad-to 5 --eos after --shard-tokens 4 a.jsonl", 2,
         {"--pad-to 5", "--shard-tokens 4"});
  expect("--tokenizer gpt2 --out t --pad-to 5 --eos after --shard-tokens 14 a.jsonl b.txt", 0,
         {"3 written, 1 empty", "tokens     15 in 2 shards", "1 documents cut (33.3 %)",
          "padding 26.7 %"});
  // Hugging Face's truncation: the end of the text goes, eos stays.
  EXPECT_EQ(ids("t_000000.bin"),
            (std::vector<int32_t>{'a', 'b', 'c', 'd', 256, 'x', 256, 256, 256, 256}));
  EXPECT_EQ(ids("t_000001.bin"), (std::vector<int32_t>{'a', 'b', 'c', 256, 256}));
  const ShardHeader h = read_shard_header(path("t_000001.bin"));
  EXPECT_EQ(h.row_length, 5);
  EXPECT_EQ(h.pad, 256);
  expect("--show t_000000.bin 1", 0,
         {"row 1, tokens 5 to 9", "120 256 256 256 256", "text       x\n"});
  expect("--show t_000000.bin 2", 1, {"has 2 rows", "number 2"});
}

TEST_F(TokenizeCli, ShowFindsDocuments) {
  write("a.jsonl", "{\"text\":\"ab\"}\n{\"text\":\"c\"}\n{\"text\":\"defg\"}\n");
  for (const std::string eos : {"before", "after"}) {
    expect("--tokenizer gpt2 --out t --shard-tokens 8 a.jsonl --eos " + eos, 0, {});
    expect("--show t_000000.bin 0", 0,
           {"vocabulary 257", "document 0, tokens 0 to 2", "text       ab\n"});
    expect("--show t_000000.bin 1", 0, {"document 1, tokens 3 to 4", "text       c\n"});
    expect("--show t_000000.bin 3", 1, {"has 3 documents"});
  }
  expect("--show t_000001.bin 0", 0, {"document 0, tokens 0 to 1", "text       g\n"});
  std::filesystem::rename(path("gpt2"), path("elsewhere"));
  expect("--show t_000000.bin 1", 0, {"99 256", "--tokenizer shows the text"});
  expect("--show t_000000.bin 1 --tokenizer elsewhere", 0, {"text       c\n"});
  write("plain.bin", llmc_shard<uint16_t>({256, 'a', 256, 'b', 'c'}));
  expect("--show plain.bin 0", 1, {"--tokenizer names the tokenizer"});
  expect("--show plain.bin 1 --tokenizer elsewhere", 0, {"unknown", "text       bc\n"});
}

TEST_F(TokenizeCli, VerifyNamesEveryDifference) {
  write("a.jsonl", json_lines(1, 40));
  expect("--tokenizer gpt2 --out t --shard-tokens 2000 a.jsonl", 0, {});
  expect("--verify t.json", 0, {"as written"});
  const std::string good = read("t_000001.bin");
  std::string bad = good;
  bad[3000] = char(bad[3000] ^ 1);  // another valid id
  write("t_000001.bin", bad);
  expect("--verify t.json", 1, {"t_000001.bin: expected SHA-256", "1 differences"});
  write("t_000001.bin", good.substr(0, good.size() - 2));
  std::filesystem::remove(path("t_000002.bin"));
  write("t_000099.bin", good);
  expect("--verify t.json", 1,
         {"t_000001.bin: expected 5024 bytes", "t_000002.bin: cannot open",
          "t_000099.bin: t.json does not name this shard", "3 differences"});
  expect("--verify t_000000.bin", 2, {"PREFIX.json"});
  expect("--verify gpt2/encoder.json", 1, {"expected a manifest"});
  expect("--verify t.json --out t", 2, {"--verify stands alone", "--out"});
}

// D6: a broken first line does not make a corpus of JSON one of plain text.
TEST_F(TokenizeCli, ANamedJsonFileStaysJson) {
  write("a.jsonl", "oops\n{\"text\":\"a\"}\n");
  expect("--tokenizer gpt2 --out t a.jsonl", 1, {"a.jsonl:1: malformed JSON"});
  expect("--tokenizer gpt2 --out t --on-error skip a.jsonl", 0,
         {"documents  1 written", "skipped 1"});
  EXPECT_EQ(ids("t_000000.bin"), (std::vector<int32_t>{256, 'a'}));
}

// Millions of empty documents are no text, but each takes a place in memory.
TEST_F(TokenizeCli, EmptyDocumentsTakeNoMemory) {
  write("blank.txt", std::string(8 << 20, '\n') + "x\n");
  const TokenizeResult r =
      run("--tokenizer gpt2 --out t --split line --on-error skip blank.txt", "ulimit -v 400000 &&");
  EXPECT_EQ(r.exit_code, kSanitized ? r.exit_code : 0) << r.output;
}

// An error in a long document ends the run, also when another one waits for its memory.
TEST_F(TokenizeCli, AnErrorInALongDocumentDoesNotHang) {
  nlohmann::json vocabulary = nlohmann::json::parse(read("gpt2/encoder.json"));
  vocabulary.erase("!");
  vocabulary["!!"] = '!';
  write("gpt2/encoder.json", vocabulary.dump());
  std::string lines;
  for (int i = 0; i < 6; i++) lines += std::string(1500000, 'a') + "!\n";
  write("a.txt", lines);
  const TokenizeResult r =
      run("--tokenizer gpt2 --out t --split line --jobs 3 a.txt", "timeout 60");
  EXPECT_EQ(r.exit_code, 1) << r.output;
  EXPECT_NE(r.output.find("no piece for byte 33"), std::string::npos) << r.output;
}

}  // namespace
}  // namespace loqal
