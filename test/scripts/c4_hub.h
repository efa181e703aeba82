// What tests of scripts/c4.sh share: a hub on this machine that misbehaves (c4_server.py lists
// how), and runs of the script in a folder of their own.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>

#include "test/core/files.h"
#include "test/scripts/run.h"

namespace loqal {

namespace fs = std::filesystem;

/// `count` C4 lines of words that no other seed has, so that each file has tokens of its own.
inline std::string c4_lines(unsigned seed, int count) {
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

inline constexpr const char* kTrain = "en/c4-train.0000";  // + digit + kOf
inline constexpr const char* kOf = "-of-01024.json.gz";

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
      write_file_atomic(*dir_ / "text", c4_lines(seed++, count));
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
  static inline TempDir* dir_;
  static inline FILE* server_;
  static inline int port_ = 0, server_pid_ = 0;
  static inline std::string model_;
  static inline Result* trained_;
};
}  // namespace loqal
