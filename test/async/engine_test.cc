// The engine with a stub for a worker: the order of events, any number of threads, a resume at any
// event, bad pushes, failing workers, and what it costs.
#include "async/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>
#include <numeric>
#include <thread>

#include "async/devices.h"
#include "core/error.h"
#include "core/json.h"
#include "core/philox.h"

namespace loqal {
namespace {

using Kind = OuterConfig::Kind;

/// A quadratic bowl with noise of its own for each (shard, step), and a momentum that it keeps.
class Stub final : public Trainer {
 public:
  explicit Stub(int64_t size, bool lazy = true)
      : momentum(size_t(size)), delta_(size_t(size)), lazy_(lazy) {}

  Round train(const Job& job, std::span<const float> start, bool fresh) override {
    if (fresh) std::fill(momentum.begin(), momentum.end(), 0.0f);
    fresh_rounds += fresh;
    seen.push_back(job);
    std::vector<float> w(start.begin(), start.end());
    Round round;
    const PhiloxStream noise(1, Purpose::test, uint32_t(job.shard));
    for (int64_t s = job.first_step; s < job.first_step + job.steps; s++) {
      double loss = 0;
      for (size_t i = 0; i < w.size(); i++) {
        const float g = w[i] - 1 + 0.1f * noise.uniform(uint64_t(s) * w.size() + i);
        momentum[i] = 0.5f * momentum[i] + g;
        w[i] -= 0.05f * momentum[i];
        loss += double(g) * double(g);
      }
      round.steps.push_back({.loss = loss, .lr = 0.05, .targets = 1});
      // Threads meet in another order each time.
      if (!lazy_ && noise.bits(uint64_t(s)) % 8 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (breaks_off && breaks_off()) return round;
    for (size_t i = 0; i < w.size(); i++) delta_[i] = start[i] - w[i];
    if (spoil) spoil(job, round, delta_);
    return round;
  }
  std::span<float> delta() override { return delta_; }

  std::vector<float> momentum;
  std::vector<Job> seen;
  int fresh_rounds = 0;
  std::function<void(const Job&, Round&, std::vector<float>&)> spoil;
  std::function<bool()> breaks_off;  ///< asked once a round; true: it ends with half a result

 private:
  std::vector<float> delta_;
  const bool lazy_;
};

struct Simulation {
  Simulation(const ScheduleConfig& schedule, const ServerConfig& config, int threads,
             int64_t size = 40, bool lazy = true)
      : scheduler(schedule), server(config, std::vector<float>(size_t(size), 0.0f)) {
    for (size_t w = 0; w < schedule.devices.size(); w++)
      stubs.push_back(std::make_unique<Stub>(size, lazy));
    std::vector<Trainer*> trainers;
    for (const auto& stub : stubs) trainers.push_back(stub.get());
    engine = std::make_unique<Engine>(
        scheduler, server, trainers,
        EngineConfig{.threads = threads, .keep_starts = config.delay_compensation > 0}, &stop);
  }
  /// Everything that a push says, as text.
  std::vector<std::string> run(int64_t pushes) {
    std::vector<std::string> lines;
    while (scheduler.pushes() < pushes) {
      const Commit c = engine->next();
      lines.push_back(cat(dump_json(to_json(c.arrival.job)), c.arrival.version, " ",
                          c.round.steps.empty() ? 0 : c.round.steps.back().loss, " ",
                          dump_json(Json(c.verdict.norm)), c.verdict.cos_momentum, " ",
                          c.verdict.cos_previous, " ", c.verdict.reason));
    }
    return lines;
  }
  /// What a checkpoint keeps, put into a simulation that has done nothing.
  void restore_into(Simulation& other) {
    engine->finish_rounds();
    const auto copy = [](const Json& json) { return parse_json(dump_json(json), "state"); };
    other.scheduler.restore(copy(scheduler.state()), "state");
    other.server.restore(copy(server.state()), "state");
    other.server.mutable_weights() = server.weights();
    const auto from = server.vectors(), to = other.server.vectors();
    for (size_t i = 0; i < from.size(); i++)
      std::copy(from[i].second.begin(), from[i].second.end(), to[i].second.begin());
    other.engine->restore(copy(engine->state()), "state");
    for (size_t w = 0; w < stubs.size(); w++) {
      other.stubs[w]->momentum = stubs[w]->momentum;
      std::copy(stubs[w]->delta().begin(), stubs[w]->delta().end(),
                other.stubs[w]->delta().begin());
      if (engine->start_of(int(w)))
        other.engine->set_start(int(w),
                                std::make_shared<std::vector<float>>(*engine->start_of(int(w))));
    }
  }

  Scheduler scheduler;
  Server server;
  std::vector<std::unique_ptr<Stub>> stubs;
  std::atomic<bool> stop = false;
  std::unique_ptr<Engine> engine;
};

ScheduleConfig very(bool dylu = true, double grace = 2.4) {
  ScheduleConfig config{
      .devices = heterogeneous_devices("very", 4), .inner_steps = 20, .dylu = dylu, .grace = grace};
  config.devices[2].jitter = 0.3;
  return config;
}

struct Method {
  const char* name;
  ScheduleConfig schedule;
  ServerConfig server;
};
std::vector<Method> methods() {
  ScheduleConfig sync = very();
  sync.sync = true;
  ServerConfig compensated{.outer = {.kind = Kind::adam, .lr = 0.05},
                           .weight = {PushWeight::Kind::poly, 0},
                           .delay_compensation = 0.3};
  return {{"dn", very(), {.outer = {.kind = Kind::dn, .c = 0.1}}},
          {"nesterov", very(false, 0), {.weight = {PushWeight::Kind::constant, 0.25}}},
          {"buffer", very(false), {.outer = {.collect = 3}}},
          {"sync", sync, {.outer = {.collect = 0}}},
          {"compensated_adam", very(), compensated}};
}

class EngineMethods : public testing::TestWithParam<Method> {};

TEST_P(EngineMethods, AnyNumberOfThreadsGivesTheSameBytes) {
  const Method& m = GetParam();
  Simulation one(m.schedule, m.server, 1);
  const std::vector<std::string> expected = one.run(120);
  for (const int threads : {2, 4, 8}) {
    Simulation many(m.schedule, m.server, threads, 40, false);
    EXPECT_EQ(many.run(120), expected) << threads << " threads";
    EXPECT_EQ(many.server.weights(), one.server.weights());
  }
}

TEST_P(EngineMethods, ResumesAtAnyEvent) {
  const Method& m = GetParam();
  Simulation whole(m.schedule, m.server, 2);
  const std::vector<std::string> expected = whole.run(40);
  for (int64_t at = 0; at < 40; at++) {
    Simulation first(m.schedule, m.server, 2), second(m.schedule, m.server, 2);
    std::vector<std::string> lines = first.run(at);
    first.restore_into(second);
    for (const std::string& line : second.run(40)) lines.push_back(line);
    ASSERT_EQ(lines, expected) << "resumed after push " << at;
    ASSERT_EQ(second.server.weights(), whole.server.weights());
    // What was saved goes on as if it had not been saved.
    first.run(40);
    ASSERT_EQ(first.server.weights(), whole.server.weights());
  }
}

INSTANTIATE_TEST_SUITE_P(Outer, EngineMethods, testing::ValuesIn(methods()),
                         [](const auto& info) { return std::string(info.param.name); });

// Footnote 5 of the paper: on equal devices delayed Nesterov with c = 0 is DiLoCo, each worker on
// its own data; and with a window that never closes so is a buffer on any devices.
TEST(Engine, SynchronousInDisguise) {
  ScheduleConfig equal = very(false), unequal = very(false, 1e9);
  equal.devices = heterogeneous_devices("none", 4);
  equal.sampling = unequal.sampling = Sampling::own;
  ScheduleConfig sync = equal;
  sync.sync = true;
  Simulation diloco(sync, {.outer = {.collect = 0}}, 2),
      dn(equal, {.outer = {.kind = Kind::dn}}, 2), buffer(unequal, {.outer = {.collect = 4}}, 2);
  for (int64_t pushes = 4; pushes <= 400; pushes += 4) {
    for (Simulation* s : {&diloco, &dn, &buffer}) s->run(pushes);
    for (size_t i = 0; i < 40; i++) {
      ASSERT_NEAR(dn.server.weights()[i], diloco.server.weights()[i], 1e-5) << pushes;
      ASSERT_NEAR(buffer.server.weights()[i], diloco.server.weights()[i], 1e-5) << pushes;
    }
  }
  EXPECT_GT(std::abs(diloco.server.weights()[0]), 0.5);
}

// S2: a round begins from the server's weights, whoever computes it and whatever it did before.
TEST(Engine, WorkersBeginTogether) {
  ScheduleConfig schedule = very();
  schedule.sync = true;
  Simulation s(schedule, {.outer = {.collect = 0}}, 2);
  for (int round = 0; round < 5; round++) {
    const std::vector<float> before = s.server.weights();
    s.run(4 * round + 1);
    for (int w = 0; w < 4; w++)
      if (s.scheduler.running(w)) {
        EXPECT_EQ(*s.engine->start_of(w), before);
      }
    EXPECT_EQ(s.server.weights(), before) << "until the round's last push";
    s.run(4 * round + 4);
    EXPECT_NE(s.server.weights(), before);
  }
}

// S10: a worker that sends NaN, or 1000 times too much, or a failed round, is refused and begins
// anew; the others go on.
TEST(Engine, BadPushesAreRefused) {
  Simulation s(very(false, 0), {.outer = {.kind = Kind::dn}}, 2);
  const auto bad = [](const Job& job, Round& round, std::vector<float>& delta) {
    if (job.round == 6) delta[7] = std::nanf("");
    if (job.round == 8)
      for (float& d : delta) d *= 1000;
    if (job.round == 10) throw Error(Exit::nonfinite, "the loss is not finite");
    (void)round;
  };
  s.stubs[0]->spoil = bad;
  int refused = 0;
  while (s.scheduler.pushes() < 80) {
    const std::vector<float> before = s.server.weights();
    const Commit c = s.engine->next();
    if (!c.verdict.accepted) {
      refused++;
      EXPECT_EQ(c.arrival.job.worker, 0);
      EXPECT_TRUE(c.verdict.distrust);
      EXPECT_EQ(s.server.weights(), before) << c.verdict.reason;
      const int64_t round = c.arrival.job.round;
      const char* part = round == 6   ? "not finite"
                         : round == 8 ? "10 times the usual"
                                      : "the loss is not finite";
      EXPECT_NE(c.verdict.reason.find(part), std::string::npos) << c.verdict.reason;
    }
    for (const float w : s.server.weights()) ASSERT_TRUE(std::isfinite(w));
  }
  EXPECT_EQ(refused, 3);
  s.engine->finish_rounds();
  EXPECT_EQ(s.stubs[0]->fresh_rounds, 3);
  EXPECT_EQ(s.stubs[1]->fresh_rounds, 0);
}

// S3: the mean is over those that count.
TEST(Engine, SynchronousMeanIsOverTheAcceptedPushes) {
  ScheduleConfig schedule = very(false);
  schedule.sync = true, schedule.sampling = Sampling::own;
  const ServerConfig sgd{.outer = {.kind = Kind::sgd, .lr = 1, .collect = 0}};
  Simulation s(schedule, sgd, 2, 3);
  const auto fails = [](const Job& job, Round&, std::vector<float>&) {
    if (job.round != 1) throw Error(Exit::nonfinite, "broken");
  };
  s.stubs[1]->spoil = fails;
  s.run(3);
  s.engine->finish_rounds();
  std::vector<float> mean(3);
  for (const int w : {0, 2, 3})
    for (size_t i = 0; i < 3; i++) mean[i] += s.stubs[size_t(w)]->delta()[i];
  s.run(4);
  for (size_t i = 0; i < 3; i++) EXPECT_NEAR(s.server.weights()[i], -mean[i] / 3, 1e-6);
  for (int w = 0; w < 4; w++)
    s.stubs[size_t(w)]->spoil = [](const Job&, Round&, std::vector<float>&) {
      throw Error(Exit::nonfinite, "all broken");
    };
  const std::vector<float> before = s.server.weights();
  s.run(8);  // nobody counts: the round is left out
  EXPECT_EQ(s.server.weights(), before);
}

// S7: a worker that breaks off ends the run with its error, whole pushes before it, no half ones.
// What is saved then goes on with that round refused, as if its loss had not been finite.
TEST(Engine, AnErrorOfAWorkerComesOut) {
  const auto breaks = [](Exit code) {
    return [code](const Job& job, Round&, std::vector<float>&) {
      if (job.round == 2) throw Error(code, "shard_000001.bin: damaged");
    };
  };
  Simulation refused(very(), {}, 1);
  refused.stubs[2]->spoil = breaks(Exit::nonfinite);
  const std::vector<std::string> expected = refused.run(60);
  for (const int threads : {1, 3}) {
    Simulation s(very(), {}, threads), same(very(), {}, 1), resumed(very(), {}, threads);
    s.stubs[2]->spoil = breaks(Exit::failure);
    int64_t pushes = 0;
    try {
      for (;; pushes++) s.engine->next();
    } catch (const Error& e) {
      EXPECT_STREQ(e.what(), "shard_000001.bin: damaged");
    }
    EXPECT_GT(pushes, 8);
    EXPECT_EQ(s.scheduler.pushes(), pushes);
    same.run(pushes);
    EXPECT_EQ(s.server.weights(), same.server.weights());
    s.restore_into(resumed);
    EXPECT_EQ(s.engine->unfinished_rounds(), 0);
    EXPECT_TRUE(resumed.engine->failed(2));
    EXPECT_FALSE(resumed.engine->failed(0));
    EXPECT_EQ(resumed.run(60), std::vector(expected.begin() + pushes, expected.end()));
    EXPECT_EQ(resumed.server.weights(), refused.server.weights());
  }
}

// The slowest worker breaks off in wall time while the fastest, whose push is due long before, is
// in its round: that one is pushed whole.
TEST(Engine, AnErrorCutsNoOtherRound) {
  std::atomic<bool> failed = false;
  Simulation s(very(false), {}, 2), same(very(false), {}, 1);
  s.stubs[3]->spoil = [&](const Job&, Round&, std::vector<float>&) {
    failed = true;
    fail("shard_000001.bin: damaged");
  };
  s.stubs[0]->breaks_off = [&] {
    for (int ms = 0; ms < 2000 && !failed; ms++)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for what follows the error
    return s.stop.load();
  };
  s.engine->next();
  EXPECT_TRUE(failed);
  same.run(1);
  EXPECT_EQ(s.server.weights(), same.server.weights());
}

// Bar: 64 workers x 1,000 pushes in under 2 s.
TEST(Engine, IsFast) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "time is measured without sanitizers";
#endif
  ScheduleConfig schedule{.devices = heterogeneous_devices("very", 64), .inner_steps = 1};
  for (Device& d : schedule.devices) d.jitter = 0.1;
  for (const int threads : {1, 4}) {
    Simulation s(schedule, {.outer = {.kind = Kind::dn, .period = 64}}, threads, 16);
    // Of the process: other programs do not count. So several threads cost more than they take.
    const std::clock_t begin = std::clock();
    while (s.scheduler.pushes() < 64 * 1000) s.engine->next();
    const double seconds = double(std::clock() - begin) / CLOCKS_PER_SEC;
    std::printf("64,000 pushes with %d threads: %.2f s of CPU time\n", threads, seconds);
    EXPECT_LT(seconds, 2.0);
  }
}

}  // namespace
}  // namespace loqal
