// The schedule alone: the golden trace of the paper's notebook, step counts, shards, windows.
#include "async/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <set>

#include "async/devices.h"
#include "core/json.h"
#include "test/async/toy_random.h"
#include "test/core/files.h"

namespace loqal {
namespace {

ScheduleConfig very(int64_t H, double grace = 0) {
  return {.devices = heterogeneous_devices("very", 4), .inner_steps = H, .grace = grace};
}

/// Pushes until so many local steps are done, restarting whom it may.
std::vector<Arrival> pushes(Scheduler& s, int64_t steps) {
  std::vector<Arrival> all;
  while (s.local_steps() < steps) {
    const std::optional<Arrival> arrival = s.next_push();
    if (arrival) all.push_back(*arrival);
    else s.restart();
  }
  return all;
}

std::vector<int64_t> histogram_of(const std::vector<Arrival>& all) {
  std::vector<int64_t> histogram(15);
  for (const Arrival& a : all) histogram.at(size_t(a.staleness()))++;
  return histogram;
}

// spec/async.md 4.4: toy devices, H = 20, grace 0.5 s, the notebook's shard rule and its random
// numbers. Time, worker, shard, staleness of the first pushes, and sums over all 200.
TEST(Scheduler, GivesTheTraceOfTheNotebook) {
  Scheduler s(very(20, 0.5), toy_sampler());
  const std::vector<Arrival> all = pushes(s, 4000);
  ASSERT_EQ(all.size(), 200u);
  const struct {
    double time;
    int worker, shard, staleness;
  } first[] = {
      {11.6, 0, 2, 0},  {15.0, 1, 0, 1},  {23.2, 0, 2, 1},  {30.0, 1, 0, 1},  {30.2, 2, 1, 4},
      {34.8, 0, 1, 2},  {45.2, 1, 3, 1},  {46.4, 0, 1, 1},  {58.0, 0, 3, 0},  {60.2, 1, 0, 2},
      {60.4, 2, 2, 5},  {66.6, 3, 3, 11}, {69.6, 0, 2, 3},  {75.4, 1, 3, 2},  {81.2, 0, 3, 1},
      {90.4, 1, 0, 1},  {90.6, 2, 0, 5},  {92.8, 0, 2, 2},  {104.4, 0, 2, 0}, {105.6, 1, 1, 2},
      {116.0, 0, 1, 1}, {120.6, 1, 0, 1}, {120.8, 2, 3, 5}, {127.6, 0, 0, 2}, {133.2, 3, 1, 12},
      {135.8, 1, 2, 2}, {139.2, 0, 1, 2}, {150.8, 0, 2, 0}, {150.8, 1, 1, 2}, {151.0, 2, 3, 6}};
  for (size_t i = 0; i < std::size(first); i++) {
    EXPECT_NEAR(all[i].job.arrival, first[i].time, 1e-9) << i;
    EXPECT_EQ(all[i].job.worker, first[i].worker) << i;
    EXPECT_EQ(all[i].job.shard, first[i].shard) << i;
    EXPECT_EQ(all[i].staleness(), first[i].staleness) << i;
  }
  std::vector<int> of_worker(4);
  for (const Arrival& a : all) of_worker[size_t(a.job.worker)]++;
  EXPECT_EQ(of_worker, (std::vector<int>{86, 66, 33, 15}));
  EXPECT_EQ(histogram_of(all),
            (std::vector<int64_t>{19, 72, 55, 6, 9, 15, 9, 0, 0, 0, 0, 3, 7, 2, 3}));
  EXPECT_EQ(s.staleness_histogram(), histogram_of(all));
  EXPECT_NEAR(all.back().job.arrival, 999.0, 1e-9);
  EXPECT_EQ(all.back().job.worker, 3);
  EXPECT_EQ(all.back().staleness(), 14);
}

// All 200 lines, where the file is.
TEST(Scheduler, GivesAllLinesOfTheGoldenFile) {
  const char* file = "../shared/spec/golden/toy_schedule.csv";  // as all reference data
  std::ifstream in(file);
  if (!in) GTEST_SKIP() << "no " << file;
  Scheduler s(very(20, 0.5), toy_sampler());
  const std::vector<Arrival> all = pushes(s, 4000);
  size_t i = 0;
  for (std::string line; std::getline(in, line);) {
    double time = 0;
    int worker = 0, shard = 0, steps = 0, staleness = 0, version = 0;
    if (sscanf(line.c_str(), "%lf,%d,%d,%d,%d,%d", &time, &worker, &shard, &steps, &staleness,
               &version) != 6)
      continue;
    ASSERT_LT(i, all.size());
    EXPECT_NEAR(all[i].job.arrival, time, 1e-9) << line;
    EXPECT_EQ(all[i].job.worker, worker) << line;
    EXPECT_EQ(all[i].job.shard, shard) << line;
    EXPECT_EQ(all[i].job.steps, steps) << line;
    EXPECT_EQ(all[i].staleness(), staleness) << line;
    EXPECT_EQ(all[i].version, version) << line;
    i++;
  }
  EXPECT_EQ(i, 200u);
}

// spec/async.md 1.8.
TEST(Scheduler, DyluCountsSteps) {
  ScheduleConfig config = very(50);
  EXPECT_EQ(steps_of_workers(config), (std::vector<int64_t>{50, 50, 50, 50}));
  config.dylu = true;
  EXPECT_EQ(steps_of_workers(config), (std::vector<int64_t>{50, 38, 19, 8}));
  config.inner_steps = 20;
  EXPECT_EQ(steps_of_workers(config), (std::vector<int64_t>{20, 15, 7, 3}));
  config.inner_steps = 1;  // nobody does nothing
  EXPECT_EQ(steps_of_workers(config), (std::vector<int64_t>{1, 1, 1, 1}));
  // A quotient that is a whole number but for rounding: (1 / 0.1) and the like.
  config.devices = devices_of_speeds("1,0.7,0.3,0.1", 4);
  config.inner_steps = 10;
  EXPECT_EQ(steps_of_workers(config), (std::vector<int64_t>{10, 7, 3, 1}));
}

// spec/async.md 3.3 and 4.6: rates, pushes and ends that follow from the speeds.
TEST(Scheduler, SynchronousAndAsynchronousTimes) {
  ScheduleConfig config = very(20, 0.5);
  config.sync = true;
  Scheduler sync(config);
  const std::vector<Arrival> all = pushes(sync, 4000);
  EXPECT_NEAR(sync.time(), 3330, 1e-9);
  EXPECT_EQ(sync.staleness_histogram(), (std::vector<int64_t>{200}));
  EXPECT_EQ(sync.version(), 50);  // rounds
  EXPECT_NEAR(sync.utilisation()[3], 1, 1e-12);
  EXPECT_NEAR(sync.utilisation()[0], 0.58 / 3.33, 1e-12);

  config.sync = false, config.dylu = true;
  for (const auto& [grace, time, count, mean] :
       {std::tuple(0.5, 1007.41, 369u, 2.81), std::tuple(3.0, 1032.40, 356u, 1.5)}) {
    config.grace = grace;
    Scheduler s(config, toy_sampler());
    const std::vector<Arrival> some = pushes(s, 4000);
    EXPECT_NEAR(s.time(), time, 5e-3);
    EXPECT_EQ(some.size(), count);
    double stale = 0;
    for (const Arrival& a : some) stale += double(a.staleness());
    EXPECT_NEAR(stale / double(some.size()), mean, 5e-3);
  }
  // 1.2012 against 4.0200 local steps a second.
  Scheduler async(very(50));
  pushes(async, 200'000);
  EXPECT_NEAR(double(async.local_steps()) / async.time(), 4.02, 0.01);
}

TEST(Scheduler, EqualWorkersPushInTheirOrder) {
  Scheduler s({.devices = heterogeneous_devices("none", 4), .inner_steps = 3});
  const std::vector<Arrival> all = pushes(s, 120);
  for (size_t i = 0; i < all.size(); i++) {
    EXPECT_EQ(all[i].job.worker, int(i % 4));
    EXPECT_EQ(all[i].staleness(), int64_t(i % 4));  // 1.5 on average, spec 4.6
  }
}

// Positions are reserved when a round begins: each shard's rounds lie end to end, whoever has them.
TEST(Scheduler, RoundsOfAShardLieEndToEnd) {
  for (const Sampling sampling : {Sampling::progress, Sampling::fewest, Sampling::own}) {
    ScheduleConfig config = very(50, 2.4);
    config.sampling = sampling, config.dylu = true;
    Scheduler s(config);
    std::vector<std::set<std::pair<int64_t, int64_t>>> rounds(4);
    std::vector<Arrival> all = pushes(s, 30000);
    for (int w = 0; w < 4; w++)
      if (s.running(w)) all.push_back({*s.running(w)});
    for (const Arrival& a : all)
      EXPECT_TRUE(rounds[size_t(a.job.shard)].insert({a.job.first_step, a.job.steps}).second);
    for (size_t shard = 0; shard < 4; shard++) {
      int64_t next = 0;
      for (const auto& [first, steps] : rounds[shard]) {
        EXPECT_EQ(first, next);
        next = first + steps;
      }
      EXPECT_EQ(next, s.shards()[shard].steps);
      if (sampling == Sampling::progress) {
        EXPECT_NEAR(double(next), 7500, 150) << "Eq. 2 keeps shards level";
      }
    }
    if (sampling == Sampling::own) {
      EXPECT_GT(s.shards()[0].steps, 5 * s.shards()[3].steps);
    }
    if (sampling == Sampling::fewest) {
      for (const ShardCount& c : s.shards())
        EXPECT_NEAR(double(c.visits), double(all.size()) / 4, 1);
    }
  }
}

// S6: eight times the speed, and nobody starves.
TEST(Scheduler, EveryWorkerContributesInBoundedTime) {
  ScheduleConfig config{.devices = devices_of_speeds("8,4,2,1", 4), .inner_steps = 10, .grace = 3};
  Scheduler s(config);
  std::vector<double> last(4);
  for (const Arrival& a : pushes(s, 5000)) {
    double& before = last[size_t(a.job.worker)];
    EXPECT_LE(a.job.arrival - before,
              double(a.job.steps) * config.devices[size_t(a.job.worker)].seconds_per_step +
                  config.grace + 1e-9);
    before = a.job.arrival;
  }
}

// A round is pull, compute, push; bytes over bandwidth and latency are added.
TEST(Scheduler, CommunicationTakesTime) {
  ScheduleConfig config{
      .devices = {{.seconds_per_step = 2, .latency = 0.25, .up = 100, .down = 400}},
      .inner_steps = 3,
      .bytes_up = 50,
      .bytes_down = 100};
  Scheduler s(config);
  const Job job = s.restart().at(0);
  EXPECT_DOUBLE_EQ(job.pulled, 0.5);
  EXPECT_DOUBLE_EQ(job.computed, 6.5);
  EXPECT_DOUBLE_EQ(job.arrival, 7.25);
  ASSERT_TRUE(s.next_push());
  EXPECT_NEAR(s.utilisation()[0], 6 / 7.25, 1e-12);
}

TEST(Scheduler, JitterHasMeanOneAndIsItsSeedsAlone) {
  ScheduleConfig config{.devices = {{.seconds_per_step = 1, .jitter = 0.3}, {.jitter = 0.3}},
                        .inner_steps = 10};
  const auto durations = [&](uint64_t seed) {
    config.seed = seed;
    Scheduler s(config);
    std::vector<double> all;
    for (const Arrival& a : pushes(s, 40000)) all.push_back(a.job.computed - a.job.pulled);
    return all;
  };
  const std::vector<double> one = durations(1);
  double sum = 0, squares = 0;
  for (const double d : one) sum += d / 10, squares += d * d / 100;
  const double n = double(one.size()), mean = sum / n;
  const double sigma = std::sqrt(std::exp(0.09) - 1);  // of a log-normal with sigma 0.3
  EXPECT_NEAR(mean, 1, 5 * sigma / std::sqrt(n));
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), sigma, 0.03);
  EXPECT_EQ(durations(1), one);
  EXPECT_NE(durations(2), one);
}

TEST(Scheduler, StateGoesOnWhereItWas) {
  ScheduleConfig config = very(7, 1.5);
  config.devices[1].jitter = 0.2;
  Scheduler whole(config);
  for (int64_t steps = 7; steps < 900; steps += 31) {
    pushes(whole, steps);
    Scheduler half(config);
    half.restore(parse_json(dump_json(whole.state()), "state"), "state");
    EXPECT_EQ(dump_json(half.state()), dump_json(whole.state()));
    Scheduler copy = whole;
    const std::vector<Arrival> a = pushes(copy, 1200), b = pushes(half, 1200);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); i++) EXPECT_EQ(a[i].job, b[i].job);
    EXPECT_EQ(dump_json(half.state()), dump_json(copy.state()));
  }
  config.devices[3].seconds_per_step = 4;
  EXPECT_THROW(Scheduler(config).restore(whole.state(), "state"), Error);
}

TEST(Devices, AreReadOrRefused) {
  const TempDir dir;
  const auto refused = [&](const std::string& json, const std::string& part) {
    write_file_atomic(dir / "p.json", json);
    try {
      devices_of_profile(dir / "p.json", 3);
      ADD_FAILURE() << json;
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code, Exit::usage);
      EXPECT_CONTAINS(std::string(e.what()) + e.hint, part);
    }
  };
  refused("{\"devices\":[{\"seconds_per_step\":1}]}", "describes 1 devices, --workers is 3");
  refused("{\"devices\":[{\"speed\":1}]}", "unknown key \"speed\"");
  refused("{\"devices\":[{\"jitter\":1}]}", "\"seconds_per_step\" is missing");
  refused("{\"devices\":[{\"seconds_per_step\":0}]}", "\"seconds_per_step\" is 0");
  refused("{\"devices\":[{\"seconds_per_step\":1,\"up\":-1}]}", "\"up\" is -1");
  refused("{\"devices\":[{\"seconds_per_step\":1,\"count\":0}]}", "\"count\" is 0");
  refused("{", "p.json:1");
  write_file_atomic(
      dir / "p.json",
      "{\"devices\":[{\"name\":\"fast\",\"seconds_per_step\":0.5,\"count\":2},"
      "{\"seconds_per_step\":2,\"jitter\":0.1,\"latency\":0.01,\"up\":1e6,\"down\":4e6}]}");
  const std::vector<Device> devices = devices_of_profile(dir / "p.json", 3);
  EXPECT_EQ(devices[1].seconds_per_step, 0.5);
  EXPECT_EQ(devices[2].up, 1e6);
  EXPECT_THROW(devices_of_speeds("1,2", 3), Error);
  EXPECT_THROW(devices_of_speeds("1,,2", 3), Error);
  EXPECT_THROW(devices_of_speeds("1,2,0", 3), Error);
  EXPECT_NEAR(devices_of_speeds("1,2,4", 3)[2].seconds_per_step, 0.25, 1e-15);
}

}  // namespace
}  // namespace loqal
