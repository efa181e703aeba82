// scripts/c4.sh: from shards of C4 to tokens, through kills and wrong options.
#include <chrono>
#include <regex>
#include <thread>

#include "test/scripts/c4_hub.h"

namespace loqal {
namespace {

TEST_F(C4Test, FromTheHubToTheTrainer) {
  const std::string options = "--shards 0-2 --val --tokenizer train:300";
  const Result first = run(command("hub", options));
  ASSERT_EQ(first.status, 0) << first.output;
  for (const std::string part :
       {"training 0-2 of 1024, validation 0 of 8: 0 done, 4 to do", "about 997.2MB",
        "[4/4] c4-train.00002-of-01024.json.gz", "All of them are tokenized."})
    EXPECT_CONTAINS(first.output, part);
  EXPECT_TRUE(read_file(here / "tokens/c4_spm_300.model") == read_file(model_));
  for (const int shard : {0, 1, 2}) expect_train_tokens(shard);
  expect_tokens("c4_val_00000", "en/c4-validation.00000-of-00008.json.gz");
  EXPECT_TRUE(fs::is_empty(here / "c4/en"));
  const std::string sha = run(cat("sha256sum <", hub(), kTrain, 1, kOf)).output.substr(0, 64);
  EXPECT_CONTAINS(first.output, sha);

  std::string hint = first.output.substr(first.output.find("./train --model"));
  hint.resize(hint.find(" --steps 10000\n"));
  EXPECT_CONTAINS(hint, " --val-data ");
  const Result trained =
      run(cat(hint, " --steps 1 --layers 1 --width 32 --heads 2 --ffn 32 ",
              "--seq-len 64 --batch-size 2 --eval-tokens 128 --out ", here / "out"));
  EXPECT_EQ(trained.status, 0) << trained.output;

  write_file_atomic(*dir_ / "requests", "");
  const Result second = run(command("hub", options));
  EXPECT_EQ(second.status, 0) << second.output;
  EXPECT_CONTAINS(second.output, "4 done, 0 to do");
  EXPECT_EQ(requests(), "");
}

/// Starts the command in a process group of its own; its output goes to `log`.
pid_t start(const std::string& command, const std::string& log) {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
    ::signal(SIGINT, SIG_DFL);  // a shell's background job ignores it, and so would the script
    execl("/bin/bash", "bash", "-c", cat("exec >>", log, " 2>&1; ", command).c_str(), nullptr);
    _exit(127);
  }
  setpgid(child, child);
  return child;
}

/// Sends the signal to the group after `ms`; returns waitpid's status.
int signal_after(pid_t group, int ms, int signal) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms));
  kill(-group, signal);
  int status = -1;
  waitpid(group, &status, 0);
  return status;
}

TEST_F(C4Test, KilledAnywhereItGoesOn) {
  const std::string line = command("slow", "--shards 0-2 --val");
  unsigned seed = 20240;
  int kills = 0;
  for (; kills < 20; kills++) {
    seed = seed * 1664525u + 1013904223u;
    const int status =
        signal_after(start(line, here / "log"), 30 + int((seed >> 16) % 250), SIGKILL);
    if (WIFEXITED(status)) break;
    for (const std::string& path : glob_files(here / "c4/en/*.gz"))
      EXPECT_TRUE(read_file(path) == read_file(hub("en/" + fs::path(path).filename().string())));
  }
  EXPECT_GT(kills, 3);
  const Result last = run(line);
  EXPECT_EQ(last.status, 0) << last.output << read_file(here / "log");
  for (const int shard : {0, 1, 2}) expect_train_tokens(shard);
  expect_tokens("c4_val_00000", "en/c4-validation.00000-of-00008.json.gz");
}

TEST_F(C4Test, CtrlCSaysThatNothingIsLost) {
  const int status =
      signal_after(start(command("slow", "--shards 0-2"), here / "log"), 300, SIGINT);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 130);
  EXPECT_CONTAINS(read_file(here / "log"), "the same command goes on from here");
  // Nothing of it runs any more: the folders are free.
  const Result result = run(command("ok", "--shards 0-2"));
  EXPECT_EQ(result.status, 0) << result.output;
  expect_train_tokens(2);
}

TEST_F(C4Test, OneAtATime) {
  create_directories(here / "tokens");
  const Result result = run(cat("exec 7<", here / "tokens", "; flock 7; ",
                                fake("flock", "exec /usr/bin/flock -n 8"), command("ok", "")));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "tokens is in use: by another scripts/c4.sh");
}

TEST_F(C4Test, ALocalFolderIsReadInPlace) {
  const Result result = run(local(hub("en/"), "--shards 0 --val"));
  EXPECT_EQ(result.status, 0) << result.output;
  expect_train_tokens(0);
  const Result upper = run(local("file://" + hub(), "--shards 0-1"));
  EXPECT_EQ(upper.status, 0) << upper.output;
  EXPECT_CONTAINS(upper.output, "1 done, 1 to do");
  expect_train_tokens(1);
  EXPECT_TRUE(fs::exists(hub() + kTrain + cat(0, kOf)));
  EXPECT_FALSE(fs::exists(here / "c4"));
  EXPECT_EQ(requests(), "");

  create_directories(here / "bad/en");
  write_file_atomic(here / "bad/" + kTrain + cat(3, kOf), "<html>");
  const Result bad = run(local(here / "bad", "--shards 3-4"));
  EXPECT_EQ(bad.status, 1);
  EXPECT_CONTAINS(bad.output, cat("\n  not gzip: ", here / "bad/", kTrain, 3, kOf, "\n"));
  EXPECT_CONTAINS(bad.output, "\n  missing: c4-train.00004-of-01024.json.gz\n");
  EXPECT_CONTAINS(bad.output, cat("there are: ", kTrain, 3, kOf));
}

TEST_F(C4Test, OtherConfigsHaveOtherCounts) {
  const Result result = run(command("ok", "--config realnewslike --shards 511 --val=all"));
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_CONTAINS(result.output, "about 45.6MB");  // of 15.4 GB: a 512th and the validation file
  expect_tokens("c4-realnewslike_train_00511", "realnewslike/c4-train.00511-of-00512.json.gz");
  expect_tokens("c4-realnewslike_val_00000", "realnewslike/c4-validation.00000-of-00001.json.gz");
  EXPECT_EQ(run(local(hub(), "--config en.noclean --shards 7168")).status, 2);
  EXPECT_CONTAINS(run(local(hub(), "--config en.noclean --val=63")).output,
                  "c4-validation.00063-of-00064.json.gz");
}

TEST_F(C4Test, ListsOfShards) {
  create_directories(here / "none");
  const auto named = [&](const std::string& list) {
    const Result result = run(local(here / "none", "--shards " + list));
    EXPECT_EQ(result.status, 1) << result.output;
    std::string numbers;
    const std::regex name("missing: c4-train[.]([0-9]+)-of-01024");
    for (std::sregex_iterator it(result.output.begin(), result.output.end(), name), end; it != end;
         ++it)
      numbers += (*it)[1].str() + " ";
    return numbers;
  };
  EXPECT_EQ(named("3"), "00003 ");
  EXPECT_EQ(named("0-2"), "00000 00001 00002 ");
  EXPECT_EQ(named("5-6,0,2,2-3"), "00000 00002 00003 00005 00006 ");
  EXPECT_EQ(named("00009,010"), "00009 00010 ");
  EXPECT_EQ(named("all").size(), 1024 * 6u);
  const std::pair<const char*, const char*> bad[] = {
      {"--shards 5-2", "the range 5-2 runs backwards"},
      {"--shards 1024", "en has shards 0 to 1023, found 1024"},
      {"--val=0-8", "--val 0-8: en has shards 0 to 7, found 8"},
      {"--shards 1,", "expected numbers and ranges such as 0-7"},
      {"--shards -1", "expected numbers and ranges such as 0-7"},
      {"--shards 1:3", "expected numbers and ranges such as 0-7"},
      {"--shards 99999999999999999999", "expected numbers and ranges such as 0-7"},
      {"--shards none", "nothing to do without --val"},
      {"--shards", "--shards needs a value"},
      {"--shard 3", "unknown option --shard\n  hint: did you mean --shards?"},
      {"7", "unknown option 7"},
      {"--config fr", "expected en, en.noblocklist, en.noclean or realnewslike"},
      {"--tokenizer train:x", "expected train:N with N pieces"},
      {"--tokenizer train:300 --shards none --val", "needs a training shard"}};
  for (const auto& [options, message] : bad) {
    const Result result = run(local(here / "none", options));
    EXPECT_EQ(result.status, 2) << options << "\n" << result.output;
    EXPECT_CONTAINS(result.output, message);
  }
  EXPECT_EQ(run(local("ftp://example.org", "")).status, 2);
  EXPECT_EQ(run(local("/none", "")).status, 1);
  EXPECT_EQ(run("C4_WAIT=soon " + script("")).status, 2);
  EXPECT_EQ(run(local(here / "none", "--tokenizer /none")).status, 1);
}

TEST_F(C4Test, TooSmallADiskIsSaidFirst) {
  const std::string df = fake("df", "echo Avail; echo 900000000");
  const Result full = run(df + command("ok", "--shards 0-2"));
  EXPECT_EQ(full.status, 1);
  EXPECT_CONTAINS(full.output, "not enough room in ");
  EXPECT_CONTAINS(full.output, "needed about 2.1GB, free 900.0MB");  // 319 MB x (3 x 1.5 + 2)
  EXPECT_EQ(requests(), "");
  EXPECT_EQ(run(df + command("ok", "--shards 0")).status, 0);
}

TEST_F(C4Test, AFailedStepIsNoSuccess) {
  const Result bad = run(local(hub(), "-- --eos nowhere"));
  EXPECT_EQ(bad.status, 2);
  EXPECT_EQ(bad.output.find("All of them are tokenized"), std::string::npos);
  EXPECT_CONTAINS(bad.output, "c4: not finished");
  const Result large = run(local(hub(), "--tokenizer train:50000"));
  EXPECT_EQ(large.status, 1);
  EXPECT_CONTAINS(large.output, "--vocab 50000: this text can fill a vocabulary of");
  EXPECT_EQ(large.output.find("All of them are tokenized"), std::string::npos);
}

TEST_F(C4Test, TokensOfAnotherTokenizerAreNotMixed) {
  ASSERT_EQ(run(local(hub(), "--shards 0")).status, 0);
  write_file_atomic(here / "other.model", "other");
  const Result result = run(local(hub(), "--shards 0-1 --tokenizer " + here / "other.model"));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "c4_train_00000_*.bin were made with another tokenizer than");
  EXPECT_FALSE(fs::exists(here / "tokens/c4_train_00001.json"));
}

// The form of the tokens is one for a folder; what only says how to work may change.
TEST_F(C4Test, TokensOfAnotherFormAreNotMixed) {
  ASSERT_EQ(run(local(hub(), "--shards 0 -- --jobs 1")).status, 0);
  EXPECT_EQ(run(local(hub(), "--shards 0-1 -- --jobs=2 --on-error skip")).status, 0);
  for (const char* shards : {"0", "0-2"}) {
    const Result result = run(local(hub(), cat("--shards ", shards, " -- --pad-to 64")));
    EXPECT_EQ(result.status, 1) << shards;
    EXPECT_CONTAINS(result.output, "other options of ./tokenize: found '', now '--pad-to 64'");
  }
  EXPECT_FALSE(fs::exists(here / "tokens/c4_train_00002.json"));
  fs::remove(here / "tokens/c4_train_00001_000000.bin");  // not finished any more
  EXPECT_CONTAINS(run(local(hub(), "--shards 0-1")).output, "1 done, 1 to do");
  EXPECT_TRUE(fs::exists(here / "tokens/c4_train_00001_000000.bin"));
}

}  // namespace
}  // namespace loqal
