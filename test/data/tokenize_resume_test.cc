// Interruptions of ./tokenize: whatever happens, and however often, the same command ends with the
// same bytes, and what has a final name is whole.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "data/journal.h"
#include "data/publish.h"
#include "test/data/tokenize_cli.h"

namespace loqal {
namespace {

class TokenizeResume : public TokenizeCli {
 protected:
  static constexpr int kInputs = 12;
  const std::string command_ = "--tokenizer gpt2 --out t --shard-tokens 20000 in_*.json.gz";

  void write_inputs(int documents) {
    for (int i = 0; i < kInputs; i++)
      write(cat("in_", 10 + i, ".json.gz"), gzip(json_lines(uint64_t(i), documents)));
  }
  /// All files of the set named t, by name.
  std::map<std::string, std::string> set() const {
    std::map<std::string, std::string> files;
    for (const std::string& name : names())
      if (name.starts_with("t.") || name.starts_with("t_")) files[name] = read(name);
    return files;
  }
  void remove_set() {
    for (const auto& [name, bytes] : set()) std::filesystem::remove(path(name));
  }
};

TEST_F(TokenizeResume, JobsDoNotChangeTheBytes) {
  write_inputs(60);
  expect(command_ + " --jobs 1", 0, {});
  const auto one = set();
  EXPECT_GT(one.size(), 5u);
  for (const int jobs : {2, 3, 16}) {
    remove_set();
    expect(cat(command_, " --jobs ", jobs), 0, {});
    EXPECT_TRUE(set() == one) << jobs;
  }
}

// D12: unchanged inputs and options cost nothing, changed ones are noticed.
TEST_F(TokenizeResume, NothingIsDoneTwice) {
  write_inputs(10);
  const std::string done = "t.json: up to date";
  const auto is_redone = [&](const std::string& command) {
    return run(command).output.find(done) == std::string::npos;
  };
  EXPECT_TRUE(is_redone(command_));
  const auto whole = set();
  EXPECT_FALSE(is_redone(command_));
  EXPECT_FALSE(is_redone(command_ + " --jobs 1 --on-error skip"));
  EXPECT_TRUE(set() == whole);
  EXPECT_TRUE(is_redone(command_ + " --eos after"));
  EXPECT_TRUE(is_redone(command_));
  std::filesystem::remove(path("t_000000.bin"));
  EXPECT_TRUE(is_redone(command_));
  EXPECT_TRUE(set() == whole);
  write("in_15.json.gz", gzip(json_lines(99, 10)));
  EXPECT_TRUE(is_redone(command_));
  EXPECT_FALSE(set() == whole);
  write("in_15.json.gz", gzip("{\"text\":5}\n{\"text\":\"a\"}\n"));
  EXPECT_TRUE(is_redone(command_ + " --on-error skip"));
  EXPECT_FALSE(is_redone(command_ + " --on-error skip"));
  expect(command_, 1, {"in_15.json.gz:1: text is no string"});  // not: up to date
}

// kill -9 at twenty random moments, then to the end: the bytes of a run that nobody disturbed.
TEST_F(TokenizeResume, KilledTwentyTimes) {
  write_inputs(400);
  const auto start = std::chrono::steady_clock::now();
  expect(command_, 0, {});
  const std::chrono::duration<double> undisturbed = std::chrono::steady_clock::now() - start;
  const auto whole = set();
  remove_set();
  const PhiloxStream random(11, Purpose::test);
  const std::string binary =
      std::filesystem::absolute(std::getenv("LOQAL_BIN_DIR") ? std::getenv("LOQAL_BIN_DIR") : ".")
          .string();
  int killed = 0, resumed = 0;
  // Later ones may live longer, and there are more than twenty, until one got behind a whole input
  // on a machine that has become slower.
  for (uint64_t i = 0; i < 20 || (resumed == 0 && i < 80); i++) {
    if (std::filesystem::exists(path("t.json"))) remove_set();
    fflush(stdout);  // or the child prints it again
    const pid_t child = fork();
    if (child == 0) {
      if (chdir(dir_.c_str()) != 0 || !freopen("log", "w", stdout)) _exit(1);
      execl("/bin/sh", "sh", "-c", cat("exec ", binary, "/tokenize ", command_).c_str(), nullptr);
      _exit(1);
    }
    std::this_thread::sleep_for(undisturbed * (random.bits(i) % 100) / 100 * (1 + double(i) / 20));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
    resumed += read("log").find("going on   behind") != std::string::npos;
    for (const auto& [name, bytes] : set())
      if (name.ends_with(".bin")) {
        EXPECT_TRUE(bytes == whole.at(name)) << name;
      }
  }
  expect(command_, 0, {});
  EXPECT_TRUE(set() == whole);
  EXPECT_GT(killed, 5);
  EXPECT_GT(resumed, 0);
}

// A signal ends it in order; the earlier run's set stays until the new one is complete.
TEST_F(TokenizeResume, SignalsKeepWhatIsDone) {
  write("a.txt", "old");
  expect("--tokenizer gpt2 --out t a.txt", 0, {});
  const std::string old = read("t_000000.bin");
  // Enough work for minutes, so that the signal always meets it. (A background job of a shell
  // ignores SIGINT, so `timeout` sends it; without --foreground it may come twice, which ends at
  // once.)
  std::string inputs;
  write("big.txt", std::string(1 << 20, 'x') + "\n");
  for (int i = 0; i < 3000; i++) inputs += " big.txt";
  for (const auto& [signal, code] : {std::pair("INT", 130), std::pair("TERM", 143)}) {
    const TokenizeResult r = run("--tokenizer gpt2 --out t --split line" + inputs,
                                 cat("timeout --foreground --preserve-status -s ", signal, " 1.5"));
    EXPECT_EQ(r.exit_code, code) << r.output.substr(0, 2000);
    EXPECT_NE(r.output.find("of 3000 inputs are done: the same command goes on"), std::string::npos)
        << r.output.substr(0, 2000);
    EXPECT_EQ(read("t_000000.bin"), old);
    EXPECT_TRUE(std::filesystem::exists(path("t.partial")));
  }
  expect("--tokenizer gpt2 --out t a.txt", 0, {"up to date"});  // and what was begun is given up
  EXPECT_FALSE(std::filesystem::exists(path("t.partial")));
}

// A limit on the file size stands for a full disk: the same failing write, in the third input.
TEST_F(TokenizeResume, AfterAFullDiskItGoesOn) {
  write_inputs(100);
  const std::string big_shards = "--tokenizer gpt2 --out t in_*.json.gz";
  expect(big_shards, 0, {});
  const auto whole = set();
  const size_t kilobytes = whole.at("t_000000.bin").size() / 1024;
  remove_set();
  const TokenizeResult r = run(big_shards, cat("ulimit -f ", kilobytes / 2, " && trap '' XFSZ &&"));
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.output.find("t_000000.bin.tmp: cannot write"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("of 12 inputs are done"), std::string::npos) << r.output;
  expect(big_shards, 0, {"going on   behind"});
  EXPECT_TRUE(set() == whole);
}

// A shard that was closed, its header written, after the last input that is done: it is reopened.
TEST_F(TokenizeResume, AShardThatWasClosedSinceIsGoneOnWith) {
  write_inputs(60);
  const std::string small = "--tokenizer gpt2 --out t --shard-tokens 4000 in_*.json.gz";
  expect(small, 0, {});
  const auto whole = set();
  ASSERT_GT(whole.size(), size_t(3 * kInputs)) << "an input fills several shards";
  remove_set();
  const std::string fine = read("in_15.json.gz");
  write("in_15.json.gz", fine.substr(0, fine.size() - 200));
  expect(small, 1, {"in_15.json.gz: damaged gzip", "5 of 12 inputs are done"});
  write("in_15.json.gz", fine);
  const TokenizeResult r = run(small);
  EXPECT_EQ(r.output.find("starting over"), std::string::npos) << r.output;
  EXPECT_NE(r.output.find("going on   behind 5 of 12"), std::string::npos) << r.output;
  auto resumed = set();
  EXPECT_EQ(resumed.size(), whole.size());
  for (const auto& [name, bytes] : whole)
    if (name != "t.json") {  // which has the files' times
      EXPECT_TRUE(resumed[name] == bytes) << name;
    }
}

TEST_F(TokenizeResume, AFileThatChangesWhileItIsReadIsRefused) {
  std::string lines;
  for (int i = 0; i < 6000; i++) lines += std::string(1000, 'x') + "\n";
  write("a.txt", lines);
  // It grows all the time, so that it does between the first look at it and the last, whenever
  // these are.
  const TokenizeResult r =
      run(cat("--tokenizer gpt2 --out t --split line a.txt 2>&1 & while kill -0 $!; do echo y >>",
              path("a.txt"), "; sleep 0.01; done 2>/dev/null; wait $!"));
  EXPECT_NE(r.exit_code, 0) << r.output;
  EXPECT_NE(r.output.find("a.txt: changed while it was read"), std::string::npos) << r.output;
}

// What was written is checked before anything is added to it.
TEST_F(TokenizeResume, DamagedLeftoversAreNotTrusted) {
  write_inputs(30);
  const std::string one_shard = "--tokenizer gpt2 --out t in_*.json.gz";
  expect(one_shard, 0, {});
  const auto whole = set();
  remove_set();
  const std::string fine = read("in_21.json.gz");
  const auto interrupt = [&] {
    write("in_21.json.gz", fine.substr(0, fine.size() / 2));
    expect(one_shard, 1, {"in_21.json.gz: damaged gzip", "11 of 12 inputs are done"});
    write("in_21.json.gz", fine);
  };
  interrupt();
  std::string tmp = read("t_000000.bin.tmp");
  tmp[2000] ^= 1;
  write("t_000000.bin.tmp", tmp);
  expect(one_shard, 0, {"starting over: ", "t_000000.bin.tmp: damaged"});
  EXPECT_EQ(set().at("t_000000.bin"), whole.at("t_000000.bin"));
  remove_set();
  interrupt();
  write("t.partial", read("t.partial") + "{\"source\":{\"pa");  // a line that a crash cut
  expect(one_shard, 0, {"going on   behind 11 of 12"});
  EXPECT_EQ(set().at("t_000000.bin"), whole.at("t_000000.bin"));
  remove_set();
  interrupt();
  write("in_10.json.gz", gzip(json_lines(77, 30)));  // an input that was done has changed
  expect(one_shard, 0, {"360 written"});
  EXPECT_NE(set().at("t_000000.bin"), whole.at("t_000000.bin"));
}

// At each step of publication, with an earlier set in place: the next command finishes it.
TEST_F(TokenizeResume, PublicationIsFinished) {
  write_inputs(20);
  write("a.jsonl", json_lines(5, 200));
  const std::string old_command = "--tokenizer gpt2 --out t --shard-tokens 5000 a.jsonl";
  expect(old_command, 0, {});
  const auto old = set();
  expect(command_, 0, {});
  const auto fresh = set();
  ASSERT_GT(old.size(), fresh.size());  // some old shards are surplus
  for (size_t named = 0; named <= fresh.size() - 1; named++) {
    remove_set();
    for (const auto& [name, bytes] : old)
      if (name != "t.json") write(name, bytes);
    size_t i = 0;
    for (const auto& [name, bytes] : fresh) {
      if (name == "t.json") write("t.json.new", bytes);
      else write(i++ < named ? name : name + ".tmp", bytes);
    }
    EXPECT_ERROR(check_published(path("t_000000.bin")), "t.json.new");
    expect("--verify t.json", 1, {"interrupted while it replaced"});
    expect(command_, 0, {"up to date"});
    EXPECT_TRUE(set() == fresh) << named;
  }
}

// Two at once would write the same files.
TEST_F(TokenizeResume, OnlyOneAtATime) {
  write("a.jsonl", json_lines(1, 10));
  const Journal journal(path("t"));
  expect("--tokenizer gpt2 --out t a.jsonl", 1, {"another ./tokenize"});
  expect("--tokenizer gpt2 --out u a.jsonl", 0, {});
}

}  // namespace
}  // namespace loqal
