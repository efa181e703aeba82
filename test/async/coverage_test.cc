// S1, R21: the workers of Local-SGD together read every token as often as every other one.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "async/devices.h"
#include "async/engine.h"
#include "async/language_model_worker.h"
#include "core/json.h"
#include "data/loader.h"
#include "data/shard_writer.h"
#include "test/core/files.h"

namespace loqal {
namespace {

constexpr int kB = 2, kT = 8, kIds = 5402, kEpochs = 3;

/// cases/inputs/r21_cover_*: seven shards of these lengths whose 5,402 ids are all different.
class CoverShards {
 public:
  CoverShards() {
    int next = 0;
    for (const int length : {1000, 999, 513, 1, 2048, 64, 777}) {
      std::vector<int32_t> ids;
      while (int(ids.size()) < length) ids.push_back(next++);
      ShardWriter writer(dir_ / cat("cover_", names_.size()), {.vocab_size = kIds}, 1 << 20);
      writer.write(ids);
      writer.finish();
      writer.publish();
      names_.push_back(shard_path(dir_ / cat("cover_", names_.size()), 0));
    }
    EXPECT_EQ(next, kIds);
  }
  std::unique_ptr<Corpus> open() const {
    return std::make_unique<Corpus>(names_, "training", kIds);
  }

 private:
  const TempDir dir_;
  std::vector<std::string> names_;
};

/// Trains nothing: notes which targets a LanguageModelWorker would see in a round, by the shard's
/// epoch.
class Reader final : public Trainer {
 public:
  Reader(const CoverShards& shards, int workers) : corpus_(shards.open()) {
    options_.batch_size = kB;
    options_.local.workers = workers;
  }
  Round train(const Job& job, std::span<const float>, bool) override {
    auto [rows, loader, end] = RoundData(job, *corpus_, options_, kT);
    std::vector<int32_t> tokens(kB * kT), targets(kB * kT);
    Round round;
    while (loader.position() < end) {
      const uint64_t position = loader.position();
      loader.next(tokens.data(), targets.data());
      for (int i = 0; i < kB * kT; i++)  // a batch may cross epochs
        seen[(position + uint64_t(i / kT)) / loader.rows_per_epoch()].push_back(targets[size_t(i)]);
      round.steps.push_back({.targets = kB * kT});
    }
    EXPECT_EQ(int64_t(round.steps.size()), job.steps);
    EXPECT_EQ(rows, uint64_t(kB));
    return round;
  }
  std::span<float> delta() override { return delta_; }

  std::map<uint64_t, std::vector<int>> seen;  // by epoch

 private:
  std::unique_ptr<Corpus> corpus_;
  Options options_;
  std::vector<float> delta_ = {0};
};

struct Readers {
  Readers(const CoverShards& shards, int workers, Sampling sampling)
      : config{.devices = heterogeneous_devices("very", workers),
               .inner_steps = 7,
               .dylu = true,
               .grace = 1,
               .sampling = sampling},
        scheduler(config),
        server({}, {0}) {
    std::vector<Trainer*> trainers;
    for (int w = 0; w < workers; w++) {
      readers.push_back(std::make_unique<Reader>(shards, workers));
      trainers.push_back(readers.back().get());
    }
    engine = std::make_unique<Engine>(scheduler, server, trainers, EngineConfig{.threads = 2});
  }
  ScheduleConfig config;
  Scheduler scheduler;
  Server server;
  std::vector<std::unique_ptr<Reader>> readers;
  std::unique_ptr<Engine> engine;
};

TEST(Coverage, EveryTokenIsATargetOnceAnEpochOrInTheDroppedCount) {
  const CoverShards shards;
  for (int workers = 1; workers <= 7; workers++)
    for (const Sampling sampling : {Sampling::progress, Sampling::fewest, Sampling::own}) {
      const TrainLoader loader(*shards.open(), kB, kT, 1, 0, workers);
      const auto rows = int64_t(loader.rows_per_epoch());
      const auto behind = [&](const Scheduler& s, double epochs) {  // a shard has not come so far
        for (const ShardCount& shard : s.shards())
          if (double(shard.steps * kB) < epochs * double(rows)) return true;
        return false;
      };
      std::map<int, int> targets[kEpochs];
      // Three sessions, the first two of which end within rounds and epochs.
      std::unique_ptr<Readers> session;
      for (const double epochs : {0.2, 1.5, double(kEpochs)}) {
        auto next = std::make_unique<Readers>(shards, workers, sampling);
        if (session) {
          const auto copy = [](const Json& json) { return parse_json(dump_json(json), "state"); };
          next->scheduler.restore(copy(session->scheduler.state()), "state");
          next->engine->restore(copy(session->engine->state()), "state");
        }
        session = std::move(next);
        while (behind(session->scheduler, epochs)) session->engine->next();
        session->engine->finish_rounds();
        for (const auto& reader : session->readers)
          for (uint64_t epoch = 0; epoch < kEpochs; epoch++)
            for (const int id : reader->seen[epoch]) targets[epoch][id]++;
      }

      const int64_t dropped = shards.open()->dropped(kT) + kT * loader.dropped_per_epoch();
      std::set<int> ever;
      for (int epoch = 0; epoch < kEpochs; epoch++) {
        const std::string where =
            cat(workers, " workers, sampling ", int(sampling), ", epoch ", epoch);
        for (const auto& [id, count] : targets[epoch]) {
          EXPECT_EQ(count, 1) << "token " << id << ", " << where;
          ever.insert(id);
        }
        EXPECT_EQ(int64_t(targets[epoch].size()) + dropped, kIds) << where;
      }
      // What no worker sees in an epoch is another part of the windows in the next.
      if (loader.dropped_per_epoch() > 0) {
        EXPECT_GT(ever.size(), targets[0].size());
      }
      EXPECT_LE(int64_t(ever.size()) + shards.open()->dropped(kT), kIds);
    }
}

// S1: no two workers get the same batch at the same time.
TEST(Coverage, NoTwoShardsHaveABatchInCommon) {
  const CoverShards shards;
  const auto corpus = shards.open();
  for (const int workers : {2, 3, 4, 7}) {
    std::set<std::vector<int32_t>> batches;
    for (int shard = 0; shard < workers; shard++) {
      TrainLoader loader(*corpus, kB, kT, 1, shard, workers);
      std::vector<int32_t> tokens(kB * kT), targets(kB * kT);
      for (uint64_t i = 0; i < loader.rows_per_epoch() / kB; i++) {
        loader.next(tokens.data(), targets.data());
        EXPECT_TRUE(batches.insert(tokens).second);
      }
    }
  }
}

}  // namespace
}  // namespace loqal
