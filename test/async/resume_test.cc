// Resume: N steps are k steps, a resume, and N - k more, byte for byte, whatever the options; and
// what a resume refuses.
#include "test/async/train_cli.h"

namespace loqal {
namespace {

// C1, C2: the whole run saves in the middle; its copy elsewhere is resumed to the same end.
class Resume : public TrainCli, public testing::WithParamInterface<const char*> {};

TEST_P(Resume, HalfAndHalfIsTheWholeByteForByte) {
  const std::string options =
      cat(tiny_, data_, " --val-data data_000001.bin --eval-every 50 ", GetParam());
  expect(cat(options, " --steps 200 --save-every 100 --out whole"), 0);
  copy("whole/step_00000100", "copy/moved");
  // C8, C10: the options come from the checkpoint; its directory may have another name and place.
  expect("--resume copy/moved --out half", 0, {"resumed", "step 100"});
  expect_same("whole/step_00000200", "half/step_00000200");
  EXPECT_EQ(columns("half/log.jsonl"), columns("whole/log.jsonl", 100));
  expect_each_step_once("whole/log.jsonl", 1, 200);
  expect_each_step_once("half/log.jsonl", 101, 200);
  const std::vector<Json> whole = records("whole/log.jsonl", "eval"),
                          half = records("half/log.jsonl", "eval");
  ASSERT_EQ(whole.size(), 5u);  // 0, 50, 100, 150, 200
  ASSERT_EQ(half.size(), 2u);   // that of step 100 is in the checkpoint as done
  for (size_t i = 0; i < 2; i++) EXPECT_EQ(half[i]["loss"], whole[3 + i]["loss"]);
}

INSTANTIATE_TEST_SUITE_P(Options, Resume,
                         testing::Values("", "--grad-accum 3", "--per-layer-updates",
                                         "--recompute block", "--precision bf16",
                                         "--param-dtype bf16",
                                         "--optimizer adamw8bit --ffn 160",  // 5,120 elements
                                         "--arch gpt2 --tied true --lr-schedule wsd"),
                         [](const auto& info) {
                           std::string name = "o";
                           for (const char* c = info.param; *c; c++)
                             if (std::isalnum(*c)) name += *c;
                           return name;
                         });

// C3, C8: an epoch is 46.5 batches. Saves after step 1, around the ends of epochs and of shards,
// each the end of a run that the next one continues with a larger --steps.
TEST_F(TrainCli, ChainOfResumesAcrossEpochs) {
  const std::string options = tiny_ + data_ + " --lr-schedule constant --warmup 10 --keep 0";
  expect(options + " --steps 141 --save-every 141 --out whole", 0);
  expect(options + " --steps 1 --save-every 141 --out chain", 0);
  for (int steps : {46, 47, 93, 94, 141})
    expect(cat("--resume chain --steps ", steps), 0,
           {cat("--steps grows from "), cat(" to ", steps)});
  expect_same("whole/step_00000141", "chain/step_00000141");
  EXPECT_EQ(columns("chain/log.jsonl"), columns("whole/log.jsonl"));
  EXPECT_EQ(records("chain/log.jsonl", "run").size(), 6u);
  EXPECT_EQ(records("chain/log.jsonl", "run")[1]["resumed_step"], 1);
}

TEST_F(TrainCli, ThreadsAndRepetitionsGiveTheSameBytes) {
  write_shards("more", kVocab, 40000, 20000);
  for (const char* precision : {"fp32", "bf16"}) {
    const auto options = [&](int threads, const std::string& out) {
      return cat(
          "--model llama-9M --layers 2 --width 64 --heads 4 --kv-heads 2 --vocab 64 --seq-len 64",
          " --batch-size 16 --train-data 'more_*.bin' --steps 8 --precision ", precision,
          " --threads ", threads, " --out ", precision, out);
    };
    const std::string first = cat(precision, "1/step_00000008");
    expect(options(1, "1"), 0);
    for (const auto& [threads, out] :
         {std::pair(1, "again"), std::pair(2, "2"), std::pair(3, "3")}) {
      expect(options(threads, out), 0);
      expect_same(first, cat(precision, out, "/step_00000008"));
      EXPECT_EQ(columns(cat(precision, out, "/log.jsonl")), columns(cat(precision, "1/log.jsonl")));
    }
  }
}

// C7, C10, L2.
TEST_F(TrainCli, WhatAResumeRefusesAndAllows) {
  const std::string command = tiny_ + data_ + " --steps 20 --lr 1e-3";
  expect(command, 0);
  const std::string log = slurp("out/log.jsonl");
  expect(command, 1, {"out", "already holds a run", "--resume out", "--out"});
  expect("--resume out", 0, {"out/step_00000020", "finished at step 20", "larger --steps"});
  expect("--resume auto", 0, {"finished at step 20"});
  expect(command + " --resume auto", 0, {"finished at step 20"});
  expect("--resume out --steps 19", 2, {"--steps 19", "20"});
  expect("--resume out --steps 40 --lr 2e-3 --width 64", 2,
         {"--lr was 0.001, now 0.002", "--width was 32, now 64"});
  expect("--resume out --steps 40 --seed 2", 2, {"--seed was 1, now 2"});
  expect("--resume nowhere", 1, {"--resume nowhere", "no checkpoint"});
  expect("--resume out --steps 56,080", 2, {"--steps 56,080", "whole number"});

  write_shards("other", kVocab, 2000, 1000);
  expect("--resume out --steps 40 --train-data 'other_*.bin'", 1,
         {"training data", "3 shards with 3000 tokens", "2 with 2000"});
  write_shards("data", kVocab, 3016, 1000);  // one more shard under the same names
  expect("--resume out --steps 40", 1,
         {"training data", "3 shards with 3000 tokens", "4 with 3016"});
  EXPECT_EQ(slurp("out/log.jsonl"), log) << "a refusal leaves no trace";

  write_shards("data", kVocab, 3000, 1000);
  std::filesystem::create_directory(dir_ / "elsewhere");
  for (int i = 0; i < 3; i++)
    copy(cat("data_00000", i, ".bin"), cat("elsewhere/data_00000", i, ".bin"));
  const std::string grown =
      " --steps 40 --train-data 'elsewhere/data_*.bin'";  // moved, but the same
  expect("--resume out" + grown, 0,
         {"notice      --steps grows from 20 to 40", "next learning rate"});
  expect_each_step_once("out/log.jsonl", 1, 40);
}

TEST_F(TrainCli, AutoWithoutACheckpointStartsAnew) {
  expect(tiny_ + data_ + " --steps 3 --resume auto", 0);
  expect_each_step_once("out/log.jsonl", 1, 3);
}

// Going back to an older checkpoint of the same directory: what came after it is history, and
// neither pruning nor `auto` may prefer it to the new branch.
TEST_F(TrainCli, GoingBackMakesTheOldBranchHistory) {
  expect(tiny_ + data_ + " --keep 0 --steps 30 --save-every 10 --out 'o[1]'", 0);
  const std::string old = slurp("o[1]/step_00000030/model.safetensors");
  // A longer schedule from step 10 on: steps 20 and 30 of the old branch are none of its own.
  const pid_t child = start("--resume 'o[1]/step_00000010' --steps 5000 --save-every 7 --keep 1");
  ASSERT_TRUE(wait_for_step("o[1]/log.jsonl", 31, child));  // the old branch ended at 30
  kill(child, SIGKILL);
  finish(child);
  expect("--resume 'o[1]' --steps 4999", 2, {"--steps 4999", "5000"});
  EXPECT_EQ(slurp("o[1]/step_00000030.superseded/model.safetensors"), old) << "nothing is deleted";
  EXPECT_FALSE(exists("o[1]/step_00000020"));
}

class DamagedCheckpoint : public TrainCli {
 protected:
  void SetUp() override {
    TrainCli::SetUp();
    expect(tiny_ + data_ + " --steps 3 --out good", 0);
  }
  std::string file(const std::string& name) const { return "bad/step_00000003/" + name; }
  // Resumes a copy of the good run after `damage`.
  void expect_refusal(const std::function<void()>& damage, const std::vector<std::string>& parts) {
    remove_tree(dir_ / "bad");
    copy("good", "bad");
    damage();
    const std::string log = slurp("bad/log.jsonl");
    expect("--resume bad/step_00000003 --steps 6", 1, parts);
    EXPECT_EQ(slurp("bad/log.jsonl"), log);
  }
};

TEST_F(DamagedCheckpoint, IsRefusedWithTheFileNamed) {
  expect_refusal(
      [&] {
        std::string bytes = slurp(file("model.safetensors"));
        bytes[bytes.size() / 2] ^= 1;
        put(file("model.safetensors"), bytes);
      },
      {file("model.safetensors")});
  expect_refusal([&] { remove_tree(dir_ / file("state.json")); },
                 {"bad/step_00000003", "state.json"});
  expect_refusal(
      [&] {
        const std::string bytes = slurp(file("state.safetensors"));
        put(file("state.safetensors"), bytes.substr(0, bytes.size() * 2 / 3));
      },
      {file("state.safetensors"), "bytes"});
  expect_refusal([&] { remove_tree(dir_ / file("state.safetensors")); },
                 {file("state.safetensors")});
  expect_refusal(
      [&] {  // of a later loqal
        std::string text = slurp(file("state.json"));
        text.replace(text.find("\"version\": 1"), 12, "\"version\": 9");
        put(file("state.json"), text);
      },
      {file("state.json"), "version 9", "expected 1"});
}

// D4: what users find under a checkpoint's name after a bad copy or download.
TEST_F(DamagedCheckpoint, ForeignContent) {
  const std::string html = "<!DOCTYPE html><html><body>404 Not Found</body></html>";
  for (const std::string& content :
       {std::string(), std::string("abc"), std::string(5000, '\xff'), html})
    for (const char* name : {"state.json", "model.safetensors", "state.safetensors", "config.json"})
      expect_refusal([&] { put(file(name), content); }, {file(name)});
  // --init has no checksums: the file's own structure must tell.
  for (const std::string& content :
       {std::string(), std::string("abc"), std::string(5000, '\xff'), html}) {
    remove_tree(dir_ / "bad");
    copy("good", "bad");
    put(file("model.safetensors"), content);
    expect(data_ + " --init bad/step_00000003 --out fresh --steps 1", 1,
           {file("model.safetensors")});
  }
}

}  // namespace
}  // namespace loqal
