// Ends that nobody planned: signals, kill -9, full disks. Afterwards the run goes on as if nothing
// had happened, and what was saved is whole.
#include <sys/mount.h>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

class Crash : public TrainCli {
 protected:
  void sleep_ms(int64_t ms) const { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }
  int last_logged(const std::string& log) const {
    const auto train = records(log, "train");
    return train.empty() ? 0 : train.back()["step"].get<int>();
  }
  const PhiloxStream random_{20240607, Purpose::test};
};

// C9. The signal meets start-up, a step, an evaluation or a save: 143 each time, and the end is the
// end of a run that was left alone.
TEST_F(Crash, SigtermAtAnyMomentThenResume) {
  const std::string options =
      tiny_ + data_ +
      " --val-data data_000000.bin --eval-every 200 --steps 2400 --save-every 1200 --keep 0";
  expect(options + " --out whole", 0);
  int stopped = 0, sessions = 0;
  for (bool done = false; !done && sessions < 40; sessions++) {
    const pid_t child = start(options + " --out part --resume auto");
    // Half of the signals find the program starting, in the matrix products that measure the
    // machine.
    if (sessions % 2 == 0)
      wait_for_step("part/log.jsonl", last_logged("part/log.jsonl") + 1, child);
    if (stopped < 8)
      sleep_ms(random_.bits(uint64_t(sessions)) % (sessions % 2 ? 200 : 60)), kill(child, SIGTERM);
    const Outcome o = finish(child);
    done = o.exit_code == 0;
    if (done) break;
    stopped++;
    if (o.exit_code == 128 + SIGTERM && o.output.empty()) continue;  // before anybody watched
    ASSERT_EQ(o.exit_code, 143) << o.output;
    EXPECT_CONTAINS(o.output, "interrupted by SIGTERM");
    EXPECT_CONTAINS(o.output, "checkpoint part/step_");
  }
  EXPECT_GE(stopped, 5);
  expect_same("whole/step_00002400", "part/step_00002400");
  EXPECT_EQ(columns("part/log.jsonl"), columns("whole/log.jsonl"));
  const auto whole = records("whole/log.jsonl", "eval"), part = records("part/log.jsonl", "eval");
  ASSERT_EQ(part.size(), whole.size());
  for (size_t i = 0; i < whole.size(); i++) {
    EXPECT_EQ(part[i]["step"], whole[i]["step"]);
    EXPECT_EQ(part[i]["loss"], whole[i]["loss"]);
  }
}

TEST_F(Crash, SigintIs130AndSaves) {
  const pid_t child = start(tiny_ + data_ + " --steps 100000");
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 5, child));
  kill(child, SIGINT);
  const Outcome o = finish(child);
  EXPECT_EQ(o.exit_code, 130);
  EXPECT_CONTAINS(o.output, "interrupted by Ctrl-C");
  const Json end = records("out/log.jsonl", "end").at(0);
  EXPECT_EQ(end["reason"], "interrupted by Ctrl-C");
  char name[64];
  snprintf(name, sizeof name, "out/step_%08d/state.json", end["step"].get<int>());
  EXPECT_TRUE(exists(name)) << name;
  EXPECT_EQ(last_logged("out/log.jsonl"), end["step"]);
}

// A step of some tenths of a second: the second signal comes while the first one waits for its end.
TEST_F(Crash, SecondSignalEndsAtOnce) {
  const std::string slow =
      cat("--model llama-9M --layers 8 --width 128 --heads 4 --vocab 64 --seq-len 16 --batch-size ",
          kSanitized ? 8 : 128, " --threads 1 --steps 1000 --save-every 0");
  const pid_t child = start(slow + data_);
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 1, child));
  const int step = last_logged("out/log.jsonl");
  kill(child, SIGINT);
  sleep_ms(20);
  kill(child, SIGINT);
  const Outcome o = finish(child);
  EXPECT_EQ(o.exit_code, 130) << o.output;
  EXPECT_EQ(o.output.find("interrupted"), std::string::npos) << "it saved and said goodbye";
  EXPECT_EQ(last_logged("out/log.jsonl"), step);
  for (const auto& [name, bytes] : files("out")) EXPECT_FALSE(name.starts_with("step_")) << name;
}

// C4. Half of the time goes into saving, so that kills meet it; whatever they leave, the newest
// whole checkpoint is found and the rest is made again.
TEST_F(Crash, KillAtRandomMomentsThenResume) {
  const std::string options = tiny_ + data_ + " --steps 100 --save-every 5 --keep 2";
  expect(options + " --out whole", 0);
  int killed = 0, sessions = 0, met_saving = 0;
  for (bool done = false; !done && sessions < 60; sessions++) {
    const pid_t child = start(options + " --out part --resume auto");
    if (killed < 20) {
      wait_for_step("part/log.jsonl", last_logged("part/log.jsonl") + 1, child);
      sleep_ms(random_.bits(100 + uint64_t(sessions)) % 40);
      kill(child, SIGKILL);
    }
    const Outcome o = finish(child);
    ASSERT_TRUE(o.exit_code == 0 || o.exit_code == 137) << o.output;
    done = o.exit_code == 0;
    killed += o.exit_code == 137;
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / "part"))
      met_saving += entry.path().extension() == ".tmp";
  }
  EXPECT_GE(killed, 3);
  RecordProperty("kills_during_a_save", met_saving);
  expect_same("whole/step_00000100", "part/step_00000100");
  EXPECT_EQ(columns("part/log.jsonl"), columns("whole/log.jsonl"));
  EXPECT_TRUE(exists("part/step_00000095"));
  EXPECT_FALSE(exists("part/step_00000090")) << "--keep 2";
  EXPECT_FALSE(exists("part/step_00000100.tmp"));
}

// Killed before there was anything to resume: auto starts anew, and the log tells it.
TEST_F(Crash, AutoAfterACrashBeforeTheFirstCheckpoint) {
  const std::string options =
      tiny_ + data_ + " --val-data data_000000.bin --eval-every 20 --resume auto";
  const pid_t child = start(options + " --steps 100000 --save-every 0");
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 30, child));
  kill(child, SIGKILL);
  finish(child);
  const int last = last_logged("out/log.jsonl");
  expect(options + " --steps 40", 0);
  expect_each_step_once("out/log.jsonl", 1, 40);
  EXPECT_EQ(records("out/log.jsonl", "eval").size(), 3u);  // 0, 20, 40
  expect_each_step_once("out/log_superseded.jsonl", 1, last);
}

// L1, L2: the lost stretch moves to the side file, half a line too.
TEST_F(Crash, TheLogHasEachStepOnce) {
  const std::string options = tiny_ + data_ + " --steps 4000 --save-every 20";
  const pid_t child = start(options);
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 50, child));
  kill(child, SIGKILL);
  finish(child);
  const int last = last_logged("out/log.jsonl");
  const std::string half = R"({"kind":"train","step":)";
  std::ofstream(dir_ / "out/log.jsonl", std::ios::app) << half;
  int saved = 0;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "out"))
    if (entry.path().filename().string().starts_with("step_") && !entry.path().has_extension())
      saved = std::max(saved, std::stoi(entry.path().filename().string().substr(5)));
  ASSERT_GE(saved, 40);
  const pid_t again = start(options + " --resume auto");
  ASSERT_TRUE(wait_for_step("out/log.jsonl", last + 10, again));
  kill(again, SIGTERM);
  ASSERT_EQ(finish(again).exit_code, 143);
  expect_each_step_once("out/log.jsonl", 1, last_logged("out/log.jsonl"));
  EXPECT_EQ(records("out/log.jsonl", "run").at(1)["resumed_step"], saved);
  if (last > saved) expect_each_step_once("out/log_superseded.jsonl", saved + 1, last);
  const auto damaged = records("out/log_superseded.jsonl", "damaged");
  ASSERT_EQ(damaged.size(), 1u);
  EXPECT_EQ(damaged[0]["text"], half);
  double time = -1;  // L5: the clock goes on over the crash
  for (const Json& r : records("out/log.jsonl", "train")) {
    EXPECT_GE(r["time"].get<double>(), time);
    time = r["time"];
  }
}

// C4: a disk with room for one checkpoint (375 KB) and the log, not for a second one.
TEST_F(Crash, FullDiskKeepsTheOldCheckpoint) {
  const std::string disk = dir_ / "disk";
  create_directories(disk);
  if (mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=640k") != 0)
    GTEST_SKIP() << "cannot mount a tmpfs: " << strerror(errno);
  struct Unmount {
    std::string path;
    ~Unmount() { umount(path.c_str()); }
  } unmount{disk};
  const std::string options = tiny_ + data_ + " --steps 50 --save-every 20";
  expect(options + " --out whole", 0);
  const Outcome o = expect(
      options + " --out disk", 1,
      {"warning: step 40 was not saved", "training goes on", "bytes free", "disk/step_00000050"});
  EXPECT_NE(o.output.find("step 50/50"), std::string::npos) << "it stopped early\n" << o.output;
  for (const char* name :
       {"disk/step_00000040", "disk/step_00000040.tmp", "disk/step_00000050.tmp"})
    EXPECT_FALSE(exists(name)) << name;
  expect_same("whole/step_00000020", "disk/step_00000020");
  ASSERT_EQ(mount("tmpfs", disk.c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0);
  expect("--resume disk", 0);
  expect_same("whole/step_00000050", "disk/step_00000050");
  EXPECT_EQ(columns("disk/log.jsonl"), columns("whole/log.jsonl"));
}

}  // namespace
}  // namespace loqal
