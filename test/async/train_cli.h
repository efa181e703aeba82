// ./train as the user runs it, on shards that are made here. The binary is in $LOQAL_BIN_DIR [.].
#pragma once
#include <fcntl.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "core/json.h"
#include "core/philox.h"
#include "data/shard_writer.h"
#include "test/core/files.h"

namespace loqal {

struct Outcome {
  int exit_code = -1;  ///< 128 + signal if it was killed
  std::string output;  ///< stdout and stderr
  int64_t peak_rss = 0;
};

class TrainCli : public testing::Test {
 protected:
  static constexpr int kVocab = 64;
  /// A model of 31 thousand parameters: a step takes about a millisecond.
  const std::string tiny_ =
      " --model llama-9M --layers 2 --width 32 --heads 2 --vocab 64 --seq-len 16 --batch-size 4";
  const std::string data_ = " --train-data 'data_*.bin'";
  bool hides_gpu_ = true;  ///< a test of the CPU is one on all machines

  /// Three shards, so that a run of a hundred steps sees the borders of shards and of epochs:
  /// 3 x 62 windows of 16, 46.5 batches of 4.
  void SetUp() override { write_shards("data", kVocab, 3000, 1000); }

  void write_shards(const std::string& prefix, int vocab, int64_t tokens, int64_t per_shard,
                    ShardHeader header = {}) {
    const PhiloxStream random(1, Purpose::test);
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < tokens; i++)
      ids.push_back(int32_t(random.bits(uint64_t(i)) % uint32_t(vocab)));
    header.vocab_size = vocab;
    write_shards(prefix, ids, per_shard, header);
  }
  void write_shards(const std::string& prefix, const std::vector<int32_t>& ids, int64_t per_shard,
                    const ShardHeader& header) {
    ShardWriter writer(dir_ / prefix, header, per_shard);
    writer.write(ids);
    writer.finish();
    writer.publish();
  }

  pid_t start(const std::string& arguments) {
    const char* folder = std::getenv("LOQAL_BIN_DIR");
    const std::string binary = std::filesystem::absolute(folder ? folder : ".") / "train";
    EXPECT_TRUE(std::filesystem::exists(binary)) << binary;
    const std::string command = cat("exec ", binary, " ", arguments);
    const pid_t child = fork();
    if (child == 0) {
      const int out = open((dir_ / "output.txt").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
      signal(SIGINT, SIG_DFL);  // a shell's background job ignores it, and so would ./train then
      if (hides_gpu_) setenv("CUDA_VISIBLE_DEVICES", "", 1);
      if (chdir(dir_.path.c_str()) || dup2(out, 1) < 0 || dup2(out, 2) < 0) _exit(126);
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    return child;
  }

  Outcome finish(pid_t child) {
    int status = 0;
    rusage usage = {};
    wait4(child, &status, 0, &usage);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
            read_file(dir_ / "output.txt"), int64_t(usage.ru_maxrss) << 10};
  }

  Outcome run(const std::string& arguments) { return finish(start(arguments)); }

  /// Runs and checks exit code and parts of the output.
  Outcome expect(const std::string& arguments, int exit_code,
                 const std::vector<std::string>& parts = {}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.exit_code, exit_code) << arguments << "\n" << o.output;
    for (const std::string& part : parts)
      EXPECT_NE(o.output.find(part), std::string::npos) << part << "\nin " << arguments << "\n"
                                                        << o.output;
    return o;
  }

  std::string slurp(const std::string& name) const {
    return std::filesystem::exists(dir_ / name) ? read_file(dir_ / name) : "";
  }
  void put(const std::string& name, const std::string& bytes) const {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  bool exists(const std::string& name) const { return std::filesystem::exists(dir_ / name); }
  void copy(const std::string& from, const std::string& to) const {
    std::filesystem::create_directories(std::filesystem::path(dir_ / to).parent_path());
    std::filesystem::copy(dir_ / from, dir_ / to, std::filesystem::copy_options::recursive);
  }

  /// All files of a directory, by name.
  std::map<std::string, std::string> files(const std::string& name) const {
    std::map<std::string, std::string> out;
    if (exists(name))
      for (const auto& entry : std::filesystem::directory_iterator(dir_ / name))
        out[entry.path().filename()] = read_file(entry.path());
    return out;
  }

  /// Both directories hold the same files with the same bytes, at least model and state.
  void expect_same(const std::string& a, const std::string& b) const {
    const auto first = files(a), second = files(b);
    EXPECT_EQ(first.count("model.safetensors") + first.count("state.json"), 2u) << a;
    EXPECT_EQ(first.size(), second.size()) << a << " " << b;
    for (const auto& [name, bytes] : first)
      EXPECT_TRUE(second.count(name) && second.at(name) == bytes)
          << name << " of " << a << " and " << b;
  }

  std::vector<Json> records(const std::string& log, const std::string& kind) const {
    std::vector<Json> out;
    std::ifstream in(dir_ / log);
    for (std::string line; std::getline(in, line);) {
      const Json record = Json::parse(line, nullptr, false);
      if (record.is_object() && record.value("kind", "") == kind) out.push_back(record);
    }
    return out;
  }

  /// What of a step's line may not depend on how the run was carried out.
  std::vector<std::string> columns(const std::string& log, int64_t after = 0) const {
    std::vector<std::string> out;
    for (const Json& r : records(log, "train"))
      if (r["step"] > after)
        out.push_back(
            cat(r["step"], " ", r["loss"], " ", r["lr"], " ", r["grad_norm"], " ", r["tokens"]));
    return out;
  }

  /// L1: every step from first to last once, in order.
  void expect_each_step_once(const std::string& log, int64_t first, int64_t last) const {
    int64_t step = first;
    for (const Json& r : records(log, "train")) EXPECT_EQ(r["step"], step++) << log;
    EXPECT_EQ(step, last + 1) << log;
  }

  /// Waits until the log has a line of step `step`; false if the child ended before.
  bool wait_for_step(const std::string& log, int64_t step, pid_t child) const {
    const std::string line = cat("{\"kind\":\"train\",\"step\":", step, ",");
    for (int i = 0; i < 30000; i++) {
      if (slurp(log).find(line) != std::string::npos) return true;
      siginfo_t info = {};
      if (waitid(P_PID, id_t(child), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
          info.si_pid == child)
        return slurp(log).find(line) != std::string::npos;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  const TempDir dir_;
};

}  // namespace loqal
