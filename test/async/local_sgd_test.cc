// Local-SGD through ./train: options, resume byte for byte, log, trace, and what equals what.
#include <cmath>
#include <regex>

#include "core/format.h"
#include "test/async/train_cli.h"

namespace loqal {
namespace {

class LocalSgdCli : public TrainCli {
 protected:
  const std::string four_ = tiny_ + data_ + " --workers 4 --inner-steps 6 --lr 1e-2 ";

  /// What pushes say, clocks aside.
  std::vector<std::string> pushes(const std::string& log, int64_t after = 0) const {
    std::vector<std::string> out;
    for (Json r : records(log, "push")) {
      r.erase("time"), r.erase("t_wall");
      if (r["step"] > after) out.push_back(r.dump());
    }
    return out;
  }
};

TEST_F(LocalSgdCli, Mistakes) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"--workers 0", {"--workers 0", "from 1"}},
      {"--grace 1", {"--grace belongs to Local-SGD", "--workers"}},
      {"--dylu", {"--dylu belongs to Local-SGD"}},
      {"--workers 4 --sync --async", {"--sync and --async"}},
      {"--workers 4 --sync --grace 1", {"--grace contradicts --sync"}},
      {"--workers 4 --sync --outer dn", {"--outer dn contradicts --sync"}},
      {"--workers 4 --sync --push-weight poly", {"--push-weight", "staleness"}},
      {"--workers 4 --sync --delay-compensation 1", {"--delay-compensation", "staleness"}},
      {"--workers 4 --outer nestrov", {"--outer nestrov", "did you mean nesterov?"}},
      {"--workers 4 --outer sgd --outer-momentum 0.5", {"--outer sgd has none"}},
      {"--workers 4 --outer sgd --dn-period 2", {"--dn-period belongs to --outer dn"}},
      {"--workers 4 --buffer 2", {"--buffer belongs to --outer buffer", "--outer dn"}},
      {"--workers 4 --dn-c 0.3", {"--dn-c 0.3", "0.25"}},
      {"--workers 4 --outer-momentum 1", {"--outer-momentum 1"}},
      {"--workers 4 --push-weight constant", {"--push-weight constant", "polythres:N"}},
      {"--workers 4 --push-weight constant:0", {"--push-weight constant:0"}},
      {"--workers 4 --push-weight poly:3", {"--push-weight poly:3"}},
      {"--workers 4 --grace -1", {"--grace -1", "from 0"}},
      {"--workers 4 --device-speeds 1,2", {"2 devices", "--workers is 4"}},
      {"--workers 4 --device-speeds 1,2,3,x", {"\"x\""}},
      {"--workers 4 --device-speeds 1,2,3,4 --heterogeneity very", {"both describe the devices"}},
      {"--workers 4 --device-profile none.json", {"none.json", "no such file"}},
      {"--workers 4 --param-dtype bf16", {"--param-dtype bf16", "--workers"}}};
  for (const auto& [mistake, parts] : cases) {
    expect(mistake + tiny_ + data_, 2, parts);
    EXPECT_FALSE(exists("out")) << mistake;
  }
  expect(tiny_ + data_ + " --workers 47", 1, {"one batch of each of 47 workers"});
}

// S1, S6: the schedule without model and data.
TEST_F(LocalSgdCli, DryRunShowsTheSchedule) {
  const auto begin = std::chrono::steady_clock::now();
  const Outcome o = expect(
      "--dry-run --model async-20M --workers 4 --heterogeneity very --dylu --grace 2.4 "
      "--steps 12800",
      0,
      {"server and start weights", "* async, dylu", "0.58 0.75 1.51 3.33 s a step", "grace 2.4 s"});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (!kSanitized) {
    EXPECT_LT(seconds.count(), 1.5);
  }
  // 12,800 steps in rounds of 4 x 50 that take 166.5 s each: spec/async.md 3.3.
  EXPECT_TRUE(
      std::regex_search(o.output, std::regex("sync +10656.0 s +256 +0.00 / 0 +17% 23% 45% 100%")))
      << o.output;
  // The last of many pushes: a run of 10^9 steps is shown as well.
  expect("--dry-run --model async-20M --workers 64 --heterogeneity very --steps 1e9", 0,
         {"* async "});
  // Bar: (3 + 5K) x 4 bytes x parameters, whatever the outer optimizer but adam.
  double held = 0;
  std::smatch m;
  for (const char* row : {"gradients", "optimizer state", "weights", "server and start weights"}) {
    EXPECT_TRUE(std::regex_search(o.output, m, std::regex(cat("\n  ", row, " +([\\d.]+) MiB"))));
    held += std::stod(m[1]);
  }
  ASSERT_TRUE(std::regex_search(o.output, m, std::regex("parameters +([\\d.]+) M")));
  EXPECT_NEAR(held, std::stod(m[1]) * 1e6 * 4 * (3 + 5 * 4) / (1 << 20), 0.01 * held);
}

// S5, C1: four unequal workers, every kind of state, saved in the middle of rounds.
class LocalSgdResume : public LocalSgdCli, public testing::WithParamInterface<const char*> {};

TEST_P(LocalSgdResume, HalfAndHalfIsTheWholeByteForByte) {
  const std::string options =
      cat(four_, " --val-data data_000001.bin --eval-every 60 --steps 300 ", GetParam());
  expect(cat(options, " --save-every 100 --keep 0 --threads 2 --out whole"), 0);
  const std::vector<Json> saves = records("whole/log.jsonl", "save");
  ASSERT_EQ(saves.size(), 3u);
  const auto name = [&](size_t i) {
    return std::filesystem::path(saves[i]["path"].get<std::string>()).filename().string();
  };
  copy("whole/" + name(0), "copy/" + name(0));
  expect("--resume copy/" + name(0) + " --threads 1 --out half", 0, {"resumed"});
  for (const size_t i : {1, 2}) expect_same("whole/" + name(i), "half/" + name(i));
  const int64_t from = saves[0]["step"];
  EXPECT_EQ(columns("half/log.jsonl"), columns("whole/log.jsonl", from));
  EXPECT_EQ(pushes("half/log.jsonl"), pushes("whole/log.jsonl", from));
  expect_each_step_once("whole/log.jsonl", 1, saves[2]["step"]);
  expect_each_step_once("half/log.jsonl", from + 1, saves[2]["step"]);

  // Three threads, and saves elsewhere, which complete other rounds early.
  expect(cat(options, " --save-every 70 --keep 0 --threads 3 --out other"), 0);
  EXPECT_EQ(pushes("other/log.jsonl"), pushes("whole/log.jsonl"));
  EXPECT_EQ(slurp("other/" + name(2) + "/state.safetensors"),
            slurp("whole/" + name(2) + "/state.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    Options, LocalSgdResume,
    testing::Values(
        "--heterogeneity very --dylu --grace 0.5",
        "--heterogeneity very --outer nesterov --push-weight poly --inner-state reset",
        "--heterogeneity moderate --outer buffer --buffer 3 --shard-sampling fewest",
        "--sync --heterogeneity very",
        "--outer adam --outer-lr 0.01 --delay-compensation 0.5 --device-speeds 3,2.5,1,1",
        "--outer heavyball --outer-lr 0.2 --per-layer-updates --precision bf16"),
    [](const auto& info) {
      std::string name = "o";
      for (const char* c = info.param; *c; c++)
        if (std::isalnum(*c)) name += *c;
      return name;
    });

// Killed, or stopped by a signal, at any moment: the next session goes on, and the end is the same.
TEST_F(LocalSgdCli, CrashesAndSignalsLeaveNoTrace) {
  const std::string options =
      four_ + " --heterogeneity very --dylu --steps 900 --save-every 100 --keep 0 --threads 2";
  expect(options + " --out whole", 0);
  const std::string last = records("whole/log.jsonl", "save").back()["path"];
  for (const int signal : {SIGKILL, SIGTERM}) {
    const std::string out = cat("stopped", signal);
    for (const int step : {150, 400}) {
      const pid_t child = start(options + " --resume auto --out " + out);
      ASSERT_TRUE(wait_for_step(out + "/log.jsonl", step, child));
      kill(child, signal);
      const Outcome o = finish(child);
      EXPECT_EQ(o.exit_code, 128 + signal);
      EXPECT_EQ(o.output.find("finishing what has begun") != std::string::npos, signal == SIGTERM);
    }
    expect(options + " --resume auto --out " + out, 0);
    const std::string step = std::filesystem::path(last).filename();
    EXPECT_EQ(slurp(out + "/" + step + "/model.safetensors"), slurp(last + "/model.safetensors"));
    EXPECT_EQ(slurp(out + "/" + step + "/state.safetensors"), slurp(last + "/state.safetensors"));
    expect_each_step_once(out + "/log.jsonl", 1, records("whole/log.jsonl", "save").back()["step"]);
    EXPECT_EQ(pushes(out + "/log.jsonl"), pushes("whole/log.jsonl"));
    EXPECT_EQ(slurp(out + "/trace.json"), slurp("whole/trace.json"));
  }
}

TEST_F(LocalSgdCli, ResumeRefusesOtherWorkers) {
  put("p.json", "{\"devices\":[{\"seconds_per_step\":1,\"count\":4}]}");
  const std::string options = four_ + " --device-profile p.json --steps 48";
  expect(options, 0);
  expect("--resume out --steps 96 --workers 2", 2, {"--workers was 4, now 2"});
  expect("--resume out --steps 96 --outer-lr 0.1", 2, {"--outer-lr was 0.7, now 0.1"});
  put("p.json", "{\"devices\":[{\"seconds_per_step\":2,\"count\":4}]}");
  expect("--resume out --steps 96 --device-profile p.json", 2,
         {"other devices", "--device-profile"});
  remove_tree(dir_ / "p.json");  // the checkpoint knows them
  expect("--resume out --steps 96", 0, {"--steps grows from 48 to 96"});
  expect("--resume out", 0, {"finished"});
}

// One worker, rounds of one step, outer SGD of rate 1: plain training but for the rounding of
// start - (start - end), which bf16 would amplify.
TEST_F(LocalSgdCli, OneWorkerAndOneStepIsPlainTraining) {
  const std::string options = tiny_ + data_ + " --precision fp32 --steps 100 --lr 5e-3 ";
  expect(options + "--out plain", 0);
  for (const char* mode : {"--async", "--sync"}) {
    expect(cat(options, "--workers 1 --inner-steps 1 --outer sgd --outer-lr 1 --out ", mode + 2,
               " ", mode),
           0);
    const std::vector<Json> a = records("plain/log.jsonl", "train"),
                            b = records(cat(mode + 2, "/log.jsonl"), "train");
    ASSERT_EQ(a.size(), 100u);
    ASSERT_EQ(b.size(), 100u);
    for (size_t i = 0; i < 100; i++) {
      EXPECT_NEAR(a[i]["loss"], b[i]["loss"], 2e-5) << "step " << i + 1;
      EXPECT_EQ(a[i]["lr"], b[i]["lr"]);
      EXPECT_EQ(a[i]["tokens"], b[i]["tokens"]);
    }
  }
}

// Delayed Nesterov on equal devices, each worker on its own data, is DiLoCo.
TEST_F(LocalSgdCli, DelayedNesterovOnEqualDevicesIsDiLoCo) {
  const std::string options =
      four_ + " --precision fp32 --val-data data_000001.bin --eval-every 24 --steps 240 ";
  expect(options + "--sync --out sync", 0);
  expect(options + "--shard-sampling own --out dn", 0);
  const std::vector<Json> a = records("sync/log.jsonl", "eval"),
                          b = records("dn/log.jsonl", "eval");
  ASSERT_EQ(a.size(), 11u);
  ASSERT_EQ(b.size(), 11u);
  for (size_t i = 0; i < a.size(); i++)
    EXPECT_NEAR(a[i]["loss"], b[i]["loss"], 1e-5) << a[i]["step"];
  EXPECT_LT(a.back()["loss"], a.front()["loss"]);
}

TEST_F(LocalSgdCli, BeginsFromAModelAndExportsOne) {
  expect(tiny_ + data_ + " --steps 30 --lr 1e-2 --val-data data_000001.bin --out warm", 0);
  const double loss = records("warm/log.jsonl", "eval").back()["loss"];
  expect(
      "--init warm/step_00000030 --batch-size 4 --workers 3 --steps 60 --inner-steps 5 --lr 1e-3 "
      "--val-data data_000001.bin --export hf --out local" +
          data_,
      0, {"exported to hf"});
  EXPECT_EQ(records("local/log.jsonl", "eval").front()["loss"], loss);
  expect("--init hf --eval-only --val-data data_000001.bin --batch-size 4", 0,
         {format("loss %.5f", records("local/log.jsonl", "eval").back()["loss"].get<double>())});
}

// What goes wrong in a worker is refused and logged; if nothing comes through any more, the run
// ends.
TEST_F(LocalSgdCli, RunawayRoundsAreRefusedAndAtLastEndTheRun) {
  expect(tiny_ + data_ +
             " --workers 4 --inner-steps 6 --steps 4000 --lr 1e30 --grad-clip 0 --warmup 0",
         3, {"was refused", "pushes were refused", "not finite"});
  const std::vector<Json> all = records("out/log.jsonl", "push");
  ASSERT_GE(all.size(), 16u);
  for (const Json& push : all) EXPECT_FALSE(push["accepted"]);
  EXPECT_TRUE(exists("out/trace.json"));
}

// Rounds of 400 steps and of one: the large changes of the fast worker are no mistake, although
// most pushes are 100 times smaller.
TEST_F(LocalSgdCli, RoundsOfVeryDifferentLengthAreAccepted) {
  expect(tiny_ + data_ +
             " --workers 4 --device-speeds 400,1,1,1 --dylu --inner-steps 400 --steps 1600 "
             "--lr 1e-3 --lr-schedule constant --warmup 0",
         0);
  double largest = 0, smallest = 1e9;
  for (const Json& push : records("out/log.jsonl", "push")) {
    EXPECT_TRUE(push["accepted"]) << push["reason"];
    largest = std::max<double>(largest, push["norm"]);
    smallest = std::min<double>(smallest, push["norm"]);
  }
  EXPECT_GT(largest, 20 * smallest);
}

// S9: late pushes are refused by the dozen, as --push-weight says, and the run goes on.
TEST_F(LocalSgdCli, RefusalsOfLatePushesEndNoRun) {
  expect(four_ + "--device-speeds 100,100,100,1 --push-weight polythres:0 --steps 360", 0);
  int64_t in_a_row = 0, most = 0;
  for (const Json& push : records("out/log.jsonl", "push"))
    most = std::max(most, in_a_row = push["accepted"] ? 0 : in_a_row + 1);
  EXPECT_EQ(records("out/log.jsonl", "workers").at(0)["pushes"], 60);
  EXPECT_GE(most, 2) << "two of each three at least";
}

// S7: a shard turns out damaged in the middle of a run. What was pushed and the rounds of the other
// workers are saved; the session that goes on, once the shard is whole, refuses that one round.
TEST_F(LocalSgdCli, AWorkersErrorLosesOneRoundOfOneWorker) {
  write_shards("late", kVocab, 16017, 16000);  // 1,000 windows, and one more in the second shard
  const std::string good = slurp("late_000001.bin");
  put("late_000001.bin", good.substr(0, good.size() - 2) + "\xff\xff");  // no id of the vocabulary
  expect(tiny_ +
             " --train-data 'late_*.bin' --workers 4 --inner-steps 6 --heterogeneity very --dylu "
             "--steps 400",
         1, {"late_000001.bin", "65535"});
  const std::vector<Json> before = records("out/log.jsonl", "push");
  ASSERT_GT(before.size(), 4u);
  ASSERT_EQ(records("out/log.jsonl", "save").size(), 1u);
  EXPECT_EQ(records("out/log.jsonl", "save")[0]["step"], before.back()["step"]);
  put("late_000001.bin", good);
  expect("--resume out", 0, {"was refused", "65535"});
  const std::vector<Json> all = records("out/log.jsonl", "push");
  int refused = 0;
  for (const Json& push : all) refused += !push["accepted"];
  EXPECT_EQ(refused, 1);
  for (size_t i = 0; i < before.size(); i++) EXPECT_EQ(all.at(i), before[i]) << "not computed anew";
}

TEST_F(LocalSgdCli, TraceAndWorkersRecord) {
  put("p.json",
      "{\"devices\":[{\"seconds_per_step\":1,\"latency\":0.5,\"up\":1e5,\"down\":2e5,\"count\":2},"
      "{\"seconds_per_step\":2}]}");
  expect(
      tiny_ + data_ + " --workers 3 --inner-steps 5 --device-profile p.json --grace 2 --steps 200",
      0);
  const std::vector<Json> all = records("out/log.jsonl", "push");
  const Json workers = records("out/log.jsonl", "workers").at(0);
  const Json trace = read_json(dir_ / "out/trace.json")["traceEvents"];
  std::map<std::string, int> count;
  std::vector<double> computing(3);
  std::map<int, double> ends;
  for (const Json& e : trace) {
    count[e["name"]]++;
    if (e["ph"] != "X") continue;
    const int row = e["tid"];
    EXPECT_NEAR(e["ts"].get<double>(), ends[row], 1e-3) << "one after the other, without gaps";
    ends[row] = e["ts"].get<double>() + e["dur"].get<double>();
    if (e["name"] == "compute") computing.at(size_t(row - 1)) += e["dur"].get<double>() * 1e-6;
  }
  const int n = int(all.size());
  EXPECT_EQ(count["compute"], n);
  EXPECT_EQ(count["apply"], n);
  EXPECT_GT(count["wait"], 0);
  EXPECT_EQ(count["thread_name"], 4);
  int networked = 0;
  for (const Json& push : all) networked += push["worker"] != 2;
  EXPECT_EQ(count["pull"], networked);
  EXPECT_EQ(count["push"], networked);
  const double bytes = all[0]["bytes_up"];
  EXPECT_EQ(bytes, records("out/log.jsonl", "run").at(0)["parameters"].get<double>() * 4);
  for (const Json& push : all)
    if (push["worker"] == 0) {
      EXPECT_NEAR(push["t_virtual"].get<double>() - push["t_computed"].get<double>(),
                  0.5 + bytes / 1e5, 1e-9);
    }
  EXPECT_EQ(workers["pushes"], n);
  for (size_t w = 0; w < 3; w++)
    EXPECT_NEAR(workers["utilisation"][w], computing[w] / workers["t_virtual"].get<double>(), 1e-6);
}

// M1 for several workers: the dry run's total is what the run takes.
TEST_F(LocalSgdCli, MemoryIsWhatTheDryRunSays) {
  if (kSanitized) GTEST_SKIP() << "memory is measured without sanitizers";
  write_shards("words", 512, 8000, 8000);
  const std::string options =
      "--layers 6 --width 256 --heads 4 --seq-len 64 --batch-size 2 --vocab 512 --threads 2 "
      "--workers 4 "
      "--inner-steps 2 ";
  for (const char* method : {"--outer dn", "--sync", "--outer nesterov --heterogeneity very"}) {
    const Outcome dry = expect(cat("--dry-run ", options, method), 0);
    std::smatch m;
    ASSERT_TRUE(std::regex_search(dry.output, m, std::regex("total +([\\d.]+) MiB"))) << dry.output;
    const double expected = std::stod(m[1]);
    remove_tree(dir_ / "out");
    const Outcome o = expect(cat("--train-data 'words_*.bin' --steps 24 ", options, method), 0);
    const double measured = double(o.peak_rss) / (1 << 20);
    EXPECT_NEAR(measured, expected, 0.1 * expected) << method << "\n" << dry.output;
    std::printf("%s: expected %.1f MiB, measured %.1f MiB\n", method, expected, measured);
  }
}

}  // namespace
}  // namespace loqal
