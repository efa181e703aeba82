// What happens between gradients and weights: accumulation, clipping, per-layer updates, decay,
// and gradients that are not numbers. Small models on a shard whose padding masks targets.
#include "optim/grad_sinks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "async/local_trainer.h"
#include "core/philox.h"
#include "data/shard_writer.h"
#include "test/core/files.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

constexpr int kT = 16, kV = 50, kRows = 8, kPad = 0;
constexpr uint64_t kSeed = 3;

ModelConfig small(Arch arch, bool tied) {
  ModelConfig c;
  c.arch = arch, c.L = 2, c.C = 32, c.NH = 4, c.NKV = arch == Arch::gpt2 ? 4 : 2, c.HS = 8;
  c.F = 48, c.V = kV, c.T = kT, c.tied = tied;
  return c;
}

// Eight rows of which 1, 2 ... 6 targets are masked, and two without any target, which the first
// epoch visits as number 4 and 5: one whole micro-batch of two rows.
std::string padded_shard(const TempDir& dir) {
  const PhiloxStream random(kSeed, Purpose::test);
  const Permutation order(kRows, kSeed, 0);
  std::vector<int32_t> ids(kRows * kT);
  for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(1 + random.bits(i) % (kV - 1));
  int padding = 0;
  for (uint64_t visit = 0; visit < kRows; visit++) {
    int32_t* row = ids.data() + order(visit) * kT;
    const int text =
        visit == 4 || visit == 5 ? 1 : kT - padding++;  // the last one predicts nothing
    std::fill(row + text, row + kT, kPad);
  }
  ShardHeader header{.vocab_size = kV, .pad = kPad, .row_length = kT};
  ShardWriter writer(dir / "data", header, 1 << 20);
  writer.write(ids);
  writer.finish();
  writer.publish();
  return shard_path(dir / "data", 0);
}

struct Setup {
  double clip = 0, weight_decay = 0.1;
  bool per_layer = false;
  // Not Adam's usual 1e-8: that turns the rounding noise of a zero gradient (GPT-2's key bias) into
  // full steps, and the weights of two correct runs would differ.
  double eps = 1e-4;
};

class Training {
 public:
  Training(const ModelConfig& config, const std::string& shard, int64_t B, int64_t A,
           const Setup& setup = {})
      : ops(make_cpu_ops(2)),
        model(*ops, config, {.B = B}),
        optimizer(*ops,
                  {&model.table(), [this](int i) { return model.parameter(i); },
                   [this](int i) { return model.compute_copy(i); }},
                  {.eps = setup.eps, .weight_decay = setup.weight_decay}),
        corpus({shard}, "training", int(config.V)),
        loader(corpus, int(B), kT, kSeed) {
    if (setup.per_layer) sink = std::make_unique<PerLayerSink>(*ops, model.table(), optimizer);
    else sink = std::make_unique<FullGradSink>(*ops, model.table(), optimizer, setup.clip);
    model.init_random(7);
    trainer = std::make_unique<LocalTrainer>(model, optimizer, *sink, nullptr, loader,
                                             Schedule{.kind = Schedule::Kind::constant, .lr = 1e-2},
                                             B, kT, A);
  }
  StepResult step() {
    return *trainer->step([] { return false; });
  }

  std::vector<float> host(const Tensor& t) const {
    std::vector<float> out(size_t(t.numel()));
    ops->download(out.data(), t);
    return out;
  }
  std::vector<float> all() const {
    std::vector<float> out;
    for_each([&](int i) {
      for (const Tensor& t :
           {model.parameter(i), optimizer.state("adam_m", i), optimizer.state("adam_v", i)}) {
        const std::vector<float> values = host(t);
        out.insert(out.end(), values.begin(), values.end());
      }
    });
    return out;
  }
  double norm(const std::string& state) const {
    double squares = 0;
    for_each([&](int i) { squares += ops->sum_squares(optimizer.state(state, i)); });
    return std::sqrt(squares);
  }
  template <class F>
  void for_each(const F& f) const {
    for (int i = 0; i < model.table().size(); i++)
      if (model.table()[i].segment == Segment::trainable) f(i);
  }

  std::unique_ptr<Ops> ops;
  Model model;
  AdamW optimizer;
  Corpus corpus;
  TrainLoader loader;
  std::unique_ptr<StepSink> sink;
  std::unique_ptr<LocalTrainer> trainer;
};

bool same_bytes(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

class GradSinks : public ::testing::TestWithParam<std::pair<Arch, bool>> {
 protected:
  GradSinks() : config_(small(GetParam().first, GetParam().second)), shard_(padded_shard(dir_)) {}
  const TempDir dir_;
  const ModelConfig config_;
  const std::string shard_;
};

// N10, with its tolerance: about 100 units in the last place of fp32. Weighting micro-batches alike
// would be wrong by several per cent.
TEST_P(GradSinks, AccumulationEqualsTheBigBatch) {
  for (const auto& [B, A] : {std::pair(2, 4), std::pair(1, 8)}) {
    Training whole(config_, shard_, 8, 1), parts(config_, shard_, B, A);
    for (int step = 0; step < 3; step++) {
      const StepResult expected = whole.step(), found = parts.step();
      EXPECT_EQ(expected.targets, 6 * (kT - 1) - (0 + 1 + 2 + 3 + 4 + 5));
      EXPECT_EQ(found.targets, expected.targets);
      EXPECT_NEAR(found.loss, expected.loss, 1e-5 * expected.loss);
      EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-5 * expected.grad_norm);
    }
    whole.for_each([&](int i) {
      EXPECT_LE(
          relative(parts.host(parts.model.parameter(i)), whole.host(whole.model.parameter(i))),
          1e-5)
          << whole.model.table()[i].name << " B=" << B;
    });
  }
}

// After the first step Adam's m is (1 - beta1) times the clipped gradient.
TEST_P(GradSinks, ClippingScalesTheGlobalNorm) {
  Training free(config_, shard_, 8, 1);
  const double norm = free.step().grad_norm;
  EXPECT_NEAR(free.norm("adam_m"), 0.1 * norm, 1e-5 * 0.1 * norm);
  Training clipped(config_, shard_, 8, 1, {.clip = 0.25 * norm});
  EXPECT_NEAR(clipped.step().grad_norm, norm, 1e-9 * norm)
      << "the log has the norm before clipping";
  EXPECT_NEAR(clipped.norm("adam_m"), 0.1 * 0.25 * norm, 1e-5 * 0.1 * 0.25 * norm);
  Training loose(config_, shard_, 8, 1, {.clip = 1.01 * norm});
  loose.step();
  EXPECT_TRUE(same_bytes(loose.all(), free.all())) << "a norm below the limit is left alone";
}

TEST_P(GradSinks, PerLayerUpdatesEqualTheFullStepBitForBit) {
  Training full(config_, shard_, 8, 1), layered(config_, shard_, 8, 1, {.per_layer = true});
  for (int step = 0; step < 3; step++) {
    const StepResult a = full.step(), b = layered.step();
    EXPECT_EQ(a.loss, b.loss);
    EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-12 * a.grad_norm);  // doubles summed in another order
  }
  EXPECT_TRUE(same_bytes(full.all(), layered.all()));
}

TEST_P(GradSinks, OnlyMatricesDecay) {
  constexpr double kRate = 0.5, kDecay = 0.1;
  Training t(config_, shard_, 8, 1, {.weight_decay = kDecay});
  t.for_each([&](int i) {  // biases start at 0, which no decay would move
    if (t.model.table()[i].shape.size() == 1) t.ops->fill(t.model.parameter(i), 0.75f);
  });
  std::vector<std::vector<float>> before;
  t.for_each([&](int i) { before.push_back(t.host(t.model.parameter(i))); });
  Buffer zeros = t.ops->alloc(t.model.table().elements() * 4, "gradients");
  t.optimizer.begin_step(kRate);
  for (int g = 0; g < t.model.groups(); g++)
    t.optimizer.update(g, zeros.as<float>() + t.model.table().group_offset(g), 1);
  size_t index = 0;
  t.for_each([&](int i) {
    const std::string& name = t.model.table()[i].name;
    const std::vector<float> after = t.host(t.model.parameter(i)), &old = before[index++];
    const bool vector = name.ends_with(".bias") || name.find("norm") != std::string::npos ||
                        name.find("ln_") != std::string::npos;
    for (size_t k = 0; k < old.size(); k++) {
      const double expected = vector ? old[k] : double(old[k]) * (1 - kRate * kDecay);
      ASSERT_NEAR(after[k], expected, vector ? 0 : 2e-7 * std::abs(expected)) << name;
    }
  });
}

// What is saved after an error must be a whole step.
TEST_P(GradSinks, AnErrorInTheMiddleOfAStepIsKnown) {
  struct Failing : Updater {
    explicit Failing(Updater& all) : inner(all) {}
    double sum_squares(int group, float* grads) override { return inner.sum_squares(group, grads); }
    void update(int group, float* grads, double scale) override {
      if (fails && group == 1) fail("the disk with the first weights is gone");
      inner.update(group, grads, scale);
    }
    Updater& inner;
    bool fails = true;
  };
  Training t(config_, shard_, 4, 2);
  Failing updater(t.optimizer);
  FullGradSink sink(*t.ops, t.model.table(), updater, 0);
  LocalTrainer trainer(t.model, t.optimizer, sink, nullptr, t.loader, {.lr = 1e-2}, 4, kT, 2);
  const auto go_on = [] { return false; };
  EXPECT_THROW(trainer.step(go_on), Error);
  EXPECT_TRUE(trainer.torn());
  EXPECT_EQ(trainer.steps_done(), 0);
  updater.fails = false;
  EXPECT_TRUE(trainer.step(go_on));
  EXPECT_FALSE(trainer.torn());
  int calls = 0;
  EXPECT_FALSE(trainer.step([&] { return ++calls == 2; })) << "interrupted between micro-batches";
  EXPECT_FALSE(trainer.torn());
}

TEST_P(GradSinks, ANonFiniteGradientIsNamedAndNothingMoves) {
  for (float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    for (const char* part : {"mlp", "norm", "ln_f", "wte", "embed_tokens"}) {
      Training t(config_, shard_, 8, 1, {.clip = 1});
      t.step();
      int chosen = -1;
      t.for_each([&](int i) {
        if (t.model.table()[i].name.find(part) != std::string::npos) chosen = i;
      });
      if (chosen < 0) continue;  // the other architecture's name
      const Param& p = t.model.table()[chosen];
      const std::vector<float> before = t.all();
      t.sink->buffer(p.group)[p.offset - t.model.table().group_offset(p.group)] = bad;
      t.sink->begin_micro_batch(0);
      try {
        t.sink->finish_step();
        ADD_FAILURE() << p.name << " passed";
      } catch (const Error& e) {
        EXPECT_EQ(e.exit_code, Exit::nonfinite);
        EXPECT_CONTAINS(e.what(), p.name);
      }
      EXPECT_TRUE(same_bytes(t.all(), before)) << p.name;
    }
}

INSTANTIATE_TEST_SUITE_P(Models, GradSinks,
                         ::testing::Values(std::pair(Arch::llama, false),
                                           std::pair(Arch::llama, true),
                                           std::pair(Arch::gpt2, true)),
                         [](const auto& info) {
                           return std::string(info.param.first == Arch::gpt2 ? "gpt2" : "llama") +
                                  (info.param.second ? "_tied" : "");
                         });

TEST(Clipping, Scale) {
  EXPECT_EQ(clip_scale(2, 0), 1.0);  // off
  EXPECT_EQ(clip_scale(2, 4), 1.0);
  EXPECT_EQ(clip_scale(4, 4), 1.0);
  EXPECT_EQ(clip_scale(8, 2), 0.25);
  EXPECT_EQ(clip_scale(0, 1), 1.0);
}

}  // namespace
}  // namespace loqal
