// What lies around a run: pipes that break, slashes, other runs' checkpoints, a second process, and
// errors in the middle. Each lost work once.
#include <csignal>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

class RunDirectory : public TrainCli {
 protected:
  const std::string slow_ =
      "--model llama-9M --layers 4 --width 128 --heads 4 --vocab 64 --seq-len 16 --batch-size 32"
      " --steps 100000 --save-every 0";
};

// `./train | tee log`: Ctrl-C ends tee first. The reader here goes away after the first line.
TEST_F(RunDirectory, ABrokenPipeDoesNotCostTheCheckpoint) {
  const char* folder = std::getenv("LOQAL_BIN_DIR");
  const std::string binary = std::filesystem::absolute(folder ? folder : ".") / "train";
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(dir_.path.c_str())) _exit(126);
    const std::string command = cat(binary, " ", slow_, data_, " 2>&1 | head -n 1 > /dev/null");
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  for (int i = 0; i < 20000 && !exists("out/.lock"); i++) usleep(1000);
  for (int i = 0; i < 20000 && records("out/log.jsonl", "train").size() < 3; i++) usleep(1000);
  const int trainer = std::stoi(slurp("out/.lock"));
  kill(trainer, SIGTERM);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(records("out/log.jsonl", "save").size(), 1u);
  EXPECT_EQ(records("out/log.jsonl", "end").size(), 1u);
}

// nohup: what the parent ignores does not end the run, what it does not ignore still does.
TEST_F(RunDirectory, AnIgnoredHangUpStaysIgnored) {
  const auto before = std::signal(SIGHUP, SIG_IGN);
  const pid_t child = start(slow_ + data_);
  std::signal(SIGHUP, before);
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 2, child));
  kill(child, SIGHUP);
  ASSERT_TRUE(
      wait_for_step("out/log.jsonl", int64_t(records("out/log.jsonl", "train").size()) + 5, child));
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child).exit_code, 143);
}

TEST_F(RunDirectory, ASlashAfterTheStepDirectoryMeansTheSameRun) {
  expect(tiny_ + data_ + " --steps 4 --save-every 2", 0);
  expect("--resume out/step_00000002/ --steps 6", 0, {"step_00000002"});
  EXPECT_FALSE(exists("out/step_00000002/log.jsonl"));
  expect_each_step_once("out/log.jsonl", 1, 6);
}

TEST_F(RunDirectory, CheckpointsOfAnotherRunAreNotMixedIn) {
  expect(tiny_ + data_ + " --steps 4 --save-every 2 --out a", 0);
  expect(tiny_ + data_ + " --steps 4 --save-every 2 --out b", 0);
  const auto before = files("b/step_00000002");
  expect("--resume a/step_00000002 --out b", 1, {"b", "already holds a run"});
  std::filesystem::remove(dir_ / "b/log.jsonl");
  expect(tiny_ + data_ + " --steps 4 --out b", 1, {"b", "already holds a run"});
  EXPECT_EQ(files("b/step_00000002"), before);
}

TEST_F(RunDirectory, ASecondProcessIsRefused) {
  const pid_t child = start(slow_ + data_);
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 2, child));
  const std::string first = dir_ / "output.txt";
  std::filesystem::rename(first, dir_ / "first.txt");
  expect("--resume auto" + data_, 1, {"another process trains here", cat(child)});
  kill(child, SIGTERM);
  finish(child);
  EXPECT_EQ(records("out/log.jsonl", "run").size(), 1u);
}

// A bad id in a shard that is first opened late ends the run, but not the steps before it. Of
// twelve shards one is bad; the first batch of this seed meets four others.
TEST_F(RunDirectory, ALateErrorSavesWhatWasTrained) {
  for (const auto& entry : std::filesystem::directory_iterator(dir_.path))
    if (entry.path().extension() == ".bin") std::filesystem::remove(entry.path());
  write_shards("data", kVocab, 3000, 250);
  std::string shard = slurp("data_000005.bin");
  shard[1024 + 2 * 200] = 99;
  put("data_000005.bin", shard);
  const Outcome o = run(tiny_ + data_ + " --steps 100 --save-every 0 --seed 3");
  EXPECT_EQ(o.exit_code, 1) << o.output;
  EXPECT_NE(o.output.find("data_000005.bin"), std::string::npos) << o.output;
  const auto steps = records("out/log.jsonl", "train").size();
  ASSERT_GT(steps, 0u) << "the first batch met the bad shard: choose another seed";
  EXPECT_EQ(records("out/log.jsonl", "save").back()["step"], steps);
  shard[1024 + 2 * 200] = 9;
  put("data_000005.bin", shard);
  expect("--resume out", 0);
  expect_each_step_once("out/log.jsonl", 1, 100);
}

TEST_F(RunDirectory, InitMayBeGoneWhenTheRunIsResumed) {
  expect(tiny_ + data_ + " --steps 2 --out a", 0);
  expect("--init a/step_00000002 --batch-size 4 --steps 4 --save-every 2 --out b" + data_, 0);
  std::filesystem::remove_all(dir_ / "a");
  expect("--resume b/step_00000002", 0, {"done"});
}

// The tokenizer that a checkpoint inherits from the one before outlives that one.
TEST_F(RunDirectory, ThePrunedCheckpointsTokenizerTravelsOn) {
  expect(tiny_ + data_ + " --steps 2 --out a", 0);
  std::ofstream(dir_ / "a/step_00000002/tokenizer_config.json") << "{}";
  expect("--init a/step_00000002 --batch-size 4 --steps 6 --save-every 1 --keep 1 --out b" + data_,
         0);
  EXPECT_FALSE(std::filesystem::exists(dir_ / "b/step_00000005"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "b/step_00000006/tokenizer_config.json"));
  expect("--resume b --steps 8", 0);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "b/step_00000008/tokenizer_config.json"));
}

TEST_F(RunDirectory, ThreadsMayChangeOnTheWay) {
  const std::string command = tiny_ + data_ + " --steps 20 --save-every 10 --threads ";
  expect(command + "2 --out whole", 0);
  expect(command + "1 --out part", 0);
  std::filesystem::remove_all(dir_ / "part/step_00000020");
  expect("--resume part/step_00000010 --threads 3", 0);
  expect_same("whole/step_00000020", "part/step_00000020");
}

TEST_F(RunDirectory, TrainingAndValidationShardsMustAgree) {
  write_shards("val", kVocab, 500, 500, {.tokenizer_hash = 1234});
  write_shards("data", kVocab, 3000, 1000, {.tokenizer_hash = 99});
  expect(tiny_ + data_ + " --val-data 'val_*.bin' --steps 2", 1,
         {"data_000000.bin", "val_000000.bin"});
}

}  // namespace
}  // namespace loqal
