// ./tokenize as the user runs it: exit codes, messages, files. The binary is in $LOQAL_BIN_DIR [.].
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include <cstdlib>

#include "core/suggest.h"
#include "data/sha256.h"
#include "data/shard.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

TEST(Suggest, Closest) {
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);  // the textbook example
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(closest("--vocb", {"--vocab", "--out", "--bos"}), "--vocab");
  EXPECT_EQ(closest("x", {}), "");
}

struct Result {
  int exit_code;
  std::string output;  // stdout and stderr
};

class TokenizeCli : public DataTest {
 protected:
  /// The test's folder holds gpt2/, a byte-level tokenizer: ids 0..255, <|endoftext|> 256.
  TokenizeCli() {
    std::filesystem::create_directory(path("gpt2"));
    nlohmann::json vocabulary = {{"<|endoftext|>", 256}};
    int other = 256;
    for (int b = 0; b < 256; b++) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
      const int c = printable ? b : other++;
      const std::string utf8 = c < 128 ? std::string(1, char(c))
                                       : std::string{char(0xC0 | c >> 6), char(0x80 | (c & 63))};
      vocabulary[utf8] = b;
    }
    write("gpt2/encoder.json", vocabulary.dump());
    write("gpt2/vocab.bpe", "#version: 0.2\n");
  }

  Result run(const std::string& arguments, const std::string& before = "") {
    const char* folder = std::getenv("LOQAL_BIN_DIR");
    const auto binary = std::filesystem::absolute(folder ? folder : ".") / "tokenize";
    EXPECT_TRUE(std::filesystem::exists(binary)) << binary;
    const std::string command =
        cat("cd ", dir_.string(), " && ", before, " ", binary.string(), " ", arguments, " 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    Result result;
    char buffer[4096];
    while (const size_t n = fread(buffer, 1, sizeof buffer, pipe)) result.output.append(buffer, n);
    const int status = pclose(pipe);
    result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return result;
  }

  void expect(const std::string& arguments, int exit_code, const std::vector<std::string>& parts) {
    const Result r = run(arguments);
    EXPECT_EQ(r.exit_code, exit_code) << arguments << "\n" << r.output;
    for (const std::string& part : parts)
      EXPECT_NE(r.output.find(part), std::string::npos) << part << " in:\n" << r.output;
  }

  std::vector<int32_t> ids(const std::string& name) const {
    const Shard shard(path(name), 0);
    std::vector<int32_t> out(size_t(shard.header().tokens));
    shard.read(0, int64_t(out.size()), out.data());
    return out;
  }
};

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
  expect("--show t_000001.bin 2", 0, {"3 tokens of 2 bytes", "vocabulary 257", "256 99 \n"});
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
  const Result r = run("--tokenizer gpt2 --out t a.txt", "ulimit -f 100 && trap '' XFSZ &&");
  EXPECT_EQ(r.exit_code, 1) << r.output;
  EXPECT_NE(r.output.find("t_000000.bin.tmp: cannot write"), std::string::npos) << r.output;
  EXPECT_EQ(names(), (std::vector<std::string>{"a.txt", "gpt2"}));
}

TEST_F(TokenizeCli, SignalsLeaveTheEarlierRun) {
  write("a.txt", "old");
  expect("--tokenizer gpt2 --out t a.txt", 0, {});
  const std::string old = read("t_000000.bin");
  // Enough work for minutes, so that the signal always meets it. (A background job of a shell
  // ignores SIGINT, so `timeout` sends it.)
  std::string inputs;
  write("big.txt", std::string(1 << 20, 'x') + "\n");
  for (int i = 0; i < 3000; i++) inputs += " big.txt";
  for (const auto& [signal, code] : {std::pair("INT", 130), std::pair("TERM", 143)}) {
    const Result r = run("--tokenizer gpt2 --out t --split line" + inputs,
                         cat("timeout --preserve-status -s ", signal, " 0.5"));
    EXPECT_EQ(r.exit_code, code) << r.output.substr(0, 2000);
    EXPECT_EQ(read("t_000000.bin"), old);
    EXPECT_EQ(names(),
              (std::vector<std::string>{"a.txt", "big.txt", "gpt2", "t.json", "t_000000.bin"}));
  }
}

}  // namespace
}  // namespace loqal
