// scripts/c4.sh against a hub on this machine that misbehaves (c4_server.py lists how). Whatever it
// does, the end is right data or an error that explains, and a final name means complete contents.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <thread>

#include "test/core/files.h"
#include "test/scripts/run.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

/// `count` C4 lines of words that no other seed has, so that each file has tokens of its own.
std::string documents(unsigned seed, int count) {
  std::string text;
  for (int line = 0; line < count; line++) {
    text += "{\"text\":\"";
    for (int word = 0; word < 60; word++) {
      for (int letter = 0; letter < 6; letter++) {
        seed = seed * 1664525u + 1013904223u;
        text += char('a' + (seed >> 16) % 26);
      }
      text += word % 12 == 11 ? "\\n" : " ";
    }
    text += "\",\"timestamp\":\"2019-04-25T12:57:54Z\",\"url\":\"https://example.org/\"}\n";
  }
  return text;
}

constexpr const char* kTrain = "en/c4-train.0000";  // + digit + kOf
constexpr const char* kOf = "-of-01024.json.gz";

class C4Test : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    dir_ = new TempDir;
    const std::pair<std::string, int> files[] = {
        {cat(kTrain, 0, kOf), 80},
        {cat(kTrain, 1, kOf), 600},
        {cat(kTrain, 2, kOf), 300},
        {"en/c4-validation.00000-of-00008.json.gz", 100},
        {"realnewslike/c4-train.00511-of-00512.json.gz", 50},
        {"realnewslike/c4-validation.00000-of-00001.json.gz", 50}};
    for (const char* config : {"en", "realnewslike"}) create_directories(*dir_ / "hub/" + config);
    unsigned seed = 1;
    for (const auto& [name, count] : files) {
      write_file_atomic(*dir_ / "text", documents(seed++, count));
      run(cat("gzip -nc ", *dir_ / "text", " > ", *dir_ / "hub/", name));
    }
    server_ = popen(
        cat("exec /usr/bin/python3 test/scripts/c4_server.py ", *dir_ / "hub ", *dir_ / "requests")
            .c_str(),
        "r");
    if (fscanf(server_, "%d %d", &port_, &server_pid_) != 2) port_ = 0;
    model_ = *dir_ / "spm_300.model";
    trained_ = new Result(run(cat("./tokenize --train-spm --vocab 300 --out ", *dir_ / "spm_300 ",
                                  *dir_ / "hub/", kTrain, 0, kOf)));
  }
  static void TearDownTestSuite() {
    if (server_pid_ > 0) kill(server_pid_, SIGTERM);
    pclose(server_);
    delete dir_;
    delete trained_;
  }
  void SetUp() override {
    const char* bin = getenv("LOQAL_BIN_DIR");
    if (bin && std::string(bin) != ".") GTEST_SKIP() << "runs the release programs";
    if (port_ == 0 || run("command -v curl").status != 0)
      GTEST_SKIP() << "python3 or curl is missing: scripts/install_deps.sh test";
    if (trained_->output.find("built without SentencePiece") != std::string::npos) GTEST_SKIP();
    ASSERT_EQ(trained_->status, 0) << trained_->output;
    write_file_atomic(*dir_ / "requests", "");
  }

  /// The command line of a run in `here`, against the server in `mode`. No waits.
  std::string command(const std::string& mode, const std::string& options) const {
    return cat("no_proxy=127.0.0.1 C4_WAIT=0 C4_URL=http://127.0.0.1:", port_, "/", mode, " ",
               script(options));
  }
  std::string local(const std::string& url, const std::string& options) const {
    return cat("C4_URL=", url, " ", script(options));
  }
  std::string script(const std::string& options) const {
    const std::string tokenizer =
        options.find("--tokenizer") == std::string::npos ? "--tokenizer " + model_ : "";
    return cat("scripts/c4.sh --out ", here / "tokens", " --downloads ", here / "c4 ", tokenizer,
               " ", options);
  }
  static std::string hub(const std::string& name = "") { return *dir_ / "hub/" + name; }
  std::string download(int shard) const { return here / "c4/" + kTrain + cat(shard, kOf); }
  static std::string requests() { return read_file(*dir_ / "requests"); }

  /// The tokens of the prefix are what ./tokenize makes of that file of the hub.
  void expect_tokens(const std::string& prefix, const std::string& file) {
    const std::string reference = *dir_ / fs::path(file).filename().string();
    if (!fs::exists(reference + ".json"))
      run(cat("./tokenize --tokenizer ", model_, " --out ", reference, " ", hub(file)));
    ASSERT_TRUE(fs::exists(here / "tokens/" + prefix + ".json")) << prefix;
    EXPECT_TRUE(read_file(here / "tokens/" + prefix + "_000000.bin") ==
                read_file(reference + "_000000.bin"))
        << prefix;
  }
  void expect_train_tokens(int shard) {
    expect_tokens(cat("c4_train_0000", shard), kTrain + cat(shard, kOf));
  }
  /// Nothing in tokens/ or c4/ but, perhaps, a download's beginning.
  void expect_nothing_final() {
    for (const auto& entry : fs::recursive_directory_iterator(here.path))
      EXPECT_TRUE(entry.is_directory() || entry.path().extension() == ".part") << entry.path();
  }
  /// A program of this name that is found before the real one.
  std::string fake(const std::string& name, const std::string& body) {
    create_directories(here / "bin");
    write_file_atomic(here / "bin/" + name, "#!/bin/sh\n" + body + "\n");
    fs::permissions(here / "bin/" + name, fs::perms::owner_all);
    return cat("PATH=", here / "bin", ":$PATH ");
  }

  const TempDir here;  // of this test
  static TempDir* dir_;
  static FILE* server_;
  static int port_, server_pid_;
  static std::string model_;
  static Result* trained_;
};
TempDir* C4Test::dir_;
FILE* C4Test::server_;
int C4Test::port_, C4Test::server_pid_;
std::string C4Test::model_;
Result* C4Test::trained_;

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

TEST_F(C4Test, AMisbehavingServerCostsTriesOnly) {
  for (const char* mode : {"truncate", "reset", "norange", "status-500-2", "status-503-3",
                           "status-403-1", "status-408-1", "status-429-2", "crc-1"}) {
    SCOPED_TRACE(mode);
    remove_tree(here / "tokens");
    remove_tree(here / "c4");
    const Result result = run(command(mode, "--keep"));
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_CONTAINS(result.output, "try 2 of ");
    EXPECT_TRUE(read_file(download(0)) == read_file(hub() + kTrain + cat(0, kOf)));
    EXPECT_FALSE(fs::exists(download(0) + ".part"));
    expect_train_tokens(0);
  }
}

TEST_F(C4Test, ErrorsExplain) {
  const std::pair<const char*, const char*> cases[] = {
      {"status-401-99", "HTTP 401, the server wants a login"},
      {"status-403-99", "given up after 3 tries: HTTP 403, access refused"},
      {"status-418-99", "HTTP 418, not expected"},
      {"status-429-99", "given up after 8 tries: HTTP 429, too many requests"},
      {"status-429-99-after-7200", "the server asks to wait 7200 s"},
      {"status-500-99", "given up after 8 tries: HTTP 500, trouble at the server"},
      {"html", "the answer is a web page, not gzip: Content-Type text/html"},
      {"htmlgzip", "the answer is a web page, not gzip: it starts with \"<!DOCTYPE html>"},
      {"empty", "the answer is empty"},
      {"stuck", "(2000 of "},
      {"long", "given up after 8 tries: "},
      {"short", "given up after 8 tries: damaged: unexpected end of file ("},
      {"crc-99", "given up after 8 tries: damaged: "},
      {"hub-sha", "given up after 8 tries: sha256 is not 0000000"}};
  for (const auto& [mode, message] : cases) {
    SCOPED_TRACE(mode);
    const Result result = run(command(mode, ""));
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_CONTAINS(result.output, message);
    EXPECT_CONTAINS(result.output, "c4: not finished; what is complete is kept");
    expect_nothing_final();
    remove_tree(here / "c4");
  }
  const Result missing = run(command("ok", "--shards 7"));
  EXPECT_EQ(missing.status, 1);
  EXPECT_CONTAINS(missing.output,
                  "/ok/en/c4-train.00007-of-01024.json.gz: HTTP 404, there is no such file");
  // Port 1 is one that nobody listens to.
  const Result refused =
      run("no_proxy=127.0.0.1 C4_WAIT=0 C4_URL=http://127.0.0.1:1 " + script(""));
  EXPECT_EQ(refused.status, 1);
  EXPECT_CONTAINS(refused.output, "given up after 8 tries: Failed to connect");
  // Files of 4 KB at most: a disk that is full after those.
  const Result full = run("trap '' XFSZ; ulimit -f 8; " + command("ok", ""));
  EXPECT_EQ(full.status, 1);
  EXPECT_CONTAINS(full.output, ".part: cannot write: ");
  expect_nothing_final();
}

TEST_F(C4Test, APageInTheMiddleLosesNothing) {
  const Result result = run(command("late-html", ""));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "the answer is a web page");
  const auto half = fs::file_size(hub() + kTrain + cat(0, kOf)) / 2;
  EXPECT_EQ(fs::file_size(download(0) + ".part"), half - 1);
  EXPECT_EQ(run(command("ok", "")).status, 0);
  EXPECT_CONTAINS(requests(), cat("ok ", kTrain, 0, kOf, " bytes=", half - 2, "-"));
  expect_train_tokens(0);
}

TEST_F(C4Test, WaitsDoubleAndTheServersOwnCountsMore) {
  const std::string path = fake("sleep", "echo $1 >> " + here / "waits");
  const auto waits = [&](const std::string& mode) {
    fs::remove(here / "waits");
    std::string line = command(mode, "");
    run(path + line.replace(line.find("C4_WAIT=0 "), 10, ""));
    return read_file(here / "waits");
  };
  EXPECT_EQ(waits("status-502-99"), "5\n10\n20\n40\n80\n160\n320\n");
  EXPECT_EQ(waits("status-429-98-after-45"), "45\n45\n45\n45\n80\n160\n320\n");
  EXPECT_NEAR(std::atoi(waits("status-503-1-after-date").c_str()), 100, 5);
}

TEST_F(C4Test, GoesOnFromWhatIsThere) {
  const std::string whole = read_file(hub() + kTrain + cat(0, kOf));
  const std::string size = cat(whole.size());
  const std::pair<std::string, std::string> cases[] = {
      {whole.substr(0, 5000), "bytes=4999-"},                  // cut
      {whole, cat("bytes=", whole.size() - 1, "-")},           // complete but for its name
      {whole + "more", cat("bytes=", whole.size() + 3, "-")},  // another file's: 416, then anew
      {"<html>", ""},                                          // not even gzip
      {"\x1f", ""}};
  for (const auto& [part, range] : cases) {
    remove_tree(here / "tokens");
    create_directories(here / "c4/en");
    write_file_atomic(download(0) + ".part", part);
    write_file_atomic(*dir_ / "requests", "");
    const Result result = run(command("ok", ""));
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(requests().substr(0, requests().find('\n')), cat("ok ", kTrain, 0, kOf, " ", range));
    expect_train_tokens(0);
  }
}

/// Starts the command in a process group of its own; its output goes to `log`.
pid_t start(const std::string& command, const std::string& log) {
  const pid_t child = fork();
  if (child == 0) {
    setpgid(0, 0);
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
        signal_after(start(line, here / "log"), 50 + int((seed >> 16) % 500), SIGKILL);
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

}  // namespace
}  // namespace loqal
