// Sampling against closed forms, and forward passes of other shapes than training's.
#include "model/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/philox.h"
#include "optim/grad_sinks.h"
#include "test/core/files.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

// Frequencies over an even grid of u: exact to 1 / n but for the borders.
std::vector<double> frequencies(const std::vector<double>& p, double temperature, double top_p) {
  constexpr int kGrid = 20000;
  std::vector<float> logits;
  for (double x : p) logits.push_back(float(std::log(x)));
  std::vector<double> f(p.size(), 0.0);
  for (int i = 0; i < kGrid; i++)
    f[size_t(sample_token(logits, temperature, top_p, (i + 0.5) / kGrid))] += 1.0 / kGrid;
  return f;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  for (size_t i = 0; i < expected.size(); i++) EXPECT_NEAR(found[i], expected[i], 2e-4) << i;
}

TEST(SampleToken, TemperatureOneIsTheDistribution) {
  expect_near(frequencies({0.1, 0.6, 0.05, 0.25}, 1, 1), {0.1, 0.6, 0.05, 0.25});
}

// p^(1/T), normalised: squares at T = 1/2, roots at T = 2.
TEST(SampleToken, Temperature) {
  expect_near(frequencies({0.1, 0.6, 0.3}, 0.5, 1), {0.01 / 0.46, 0.36 / 0.46, 0.09 / 0.46});
  expect_near(frequencies({0.64, 0.04, 0.32}, 2, 1),
              {0.8 / (1.0 + std::sqrt(0.32)), 0.2 / (1.0 + std::sqrt(0.32)),
               std::sqrt(0.32) / (1.0 + std::sqrt(0.32))});
}

// The smallest set of at least top_p, normalised.
TEST(SampleToken, TopP) {
  const std::vector<double> p = {0.125, 0.5, 0.0625, 0.25, 0.0625};
  expect_near(frequencies(p, 1, 0.5), {0, 1, 0, 0, 0});
  expect_near(frequencies(p, 1, 0.51), {0, 2.0 / 3, 0, 1.0 / 3, 0});
  expect_near(frequencies(p, 1, 0.80), {0.125 / 0.875, 0.5 / 0.875, 0, 0.25 / 0.875, 0});
  expect_near(frequencies(p, 1, 0.90),
              {0.125 / 0.9375, 0.5 / 0.9375, 0.0625 / 0.9375, 0.25 / 0.9375, 0});
  expect_near(frequencies(p, 1, 1e-9), {0, 1, 0, 0, 0});
  // Temperature first, as Holtzman et al. apply it: at T = 1/2 the squares 16 : 4 : 1 ... make
  // 0.74.
  expect_near(frequencies(p, 0.5, 0.7), {0, 1, 0, 0, 0});
}

TEST(SampleToken, GreedyTakesTheSmallestIdOfEquals) {
  for (const double u : {0.0, 0.5, 0.999999}) {
    EXPECT_EQ(sample_token({1, 3, 2, 3}, 0, 1, u), 1);
    EXPECT_EQ(sample_token({-5}, 0, 1, u), 0);
  }
}

TEST(SampleToken, LargeLogitsDoNotOverflow) {
  EXPECT_EQ(sample_token({1e30f, -1e30f, 0}, 1, 1, 0.999999), 0);
  EXPECT_EQ(sample_token({1e4f, 1e4f}, 1e-3, 1, 0.75), 1);
  EXPECT_EQ(sample_token({0, 0, 0, 0}, 1, 1, 0.9999999), 3);
}

TEST(SampleToken, NonFiniteLogitsAreNamed) {
  for (const float bad : {NAN, INFINITY, -INFINITY})
    for (const double temperature : {0.0, 1.0}) try {
        std::vector<float> logits(300, 1.0f);
        logits[7] = bad;
        sample_token(logits, temperature, 1, 0.5);
        ADD_FAILURE() << "accepted " << bad;
      } catch (const Error& e) {
        EXPECT_EQ(e.exit_code, Exit::nonfinite);
        EXPECT_CONTAINS(e.what(), "logit of token 7 is ");
      }
}

class Generation : public ::testing::TestWithParam<Arch> {
 protected:
  Generation() : config_(small_config(GetParam(), GetParam() == Arch::gpt2)) {}

  // Weights ten times as large as a fresh model's, so that logits differ visibly.
  static void sharpen(SmallModel& m) {
    m.for_each([&](int i) {
      if (m.model.table()[i].role == Role::norm) return;
      std::vector<float> values = m.host(m.model.parameter(i));
      for (float& v : values) v *= 10;
      m.ops->upload(m.model.parameter(i), values.data());
    });
    m.model.refresh_compute_copy();
  }
  const ModelConfig config_;
};

TEST_P(Generation, IsDeterministicAndDependsOnTheSeed) {
  SmallModel m(config_, 1, 1, false);
  sharpen(m);
  const auto text = [&](uint64_t seed, double temperature, int64_t tokens) {
    std::vector<int32_t> seen;
    const std::vector<int32_t> made =
        sample(m.model, {1, 2, 3}, {.tokens = tokens, .temperature = temperature, .seed = seed},
               [&](int32_t id) { seen.push_back(id); });
    EXPECT_EQ(made, seen);
    return made;
  };
  const std::vector<int32_t> first = text(1, 1, 40);  // beyond T = 16: the window slides
  EXPECT_EQ(first.size(), 40u);
  EXPECT_EQ(text(1, 1, 40), first);
  EXPECT_NE(text(2, 1, 40), first);
  const std::vector<int32_t> begin =
      text(1, 1, 10);  // a shorter text is the beginning of a longer one
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), first.begin()));
  EXPECT_EQ(text(1, 0, 20), text(2, 0, 20)) << "greedy needs no luck";
  const int32_t eos = first[4];
  const size_t end = size_t(std::find(first.begin(), first.end(), eos) - first.begin()) + 1;
  EXPECT_EQ(sample(m.model, {1, 2, 3}, {.tokens = 40, .seed = 1, .eos = {-1, eos}}, [](int32_t) {})
                .size(),
            end);
}

// A vocabulary that is padded: only the tokenizer's ids are drawn, and eos wherever it is.
TEST_P(Generation, IdsThatTheTokenizerLacksAreNeverDrawn) {
  SmallModel m(config_, 1, 1, false);
  int32_t highest = 0;
  for (const int32_t id : sample(m.model, {1}, {.tokens = 200, .ids = 5}, [](int32_t) {}))
    highest = std::max(highest, id);
  EXPECT_EQ(highest, 4);
  std::vector<int32_t> shown;
  const std::vector<int32_t> made = sample(m.model, {1}, {.tokens = 200, .eos = {36, 20}, .ids = 5},
                                           [&](int32_t id) { shown.push_back(id); });
  ASSERT_LT(made.size(), 200u);
  EXPECT_TRUE(made.back() == 36 || made.back() == 20);
  EXPECT_EQ(shown, std::vector<int32_t>(made.begin(), made.end() - 1));
}

// The last row of a full pass is the next token's distribution: -log softmax of it is what the loss
// says of that token. 1e-4: both in fp32, summed in different orders.
TEST_P(Generation, NextLogitsAgreeWithTheLoss) {
  SmallModel m(config_, 1, 1, false);
  sharpen(m);
  const std::vector<int32_t> tokens = {5, 36, 0, 7, 7, 12, 30, 1};
  for (size_t length : {size_t(1), size_t(5), tokens.size()}) {
    const std::vector<int32_t> prefix(tokens.begin(), tokens.begin() + int64_t(length));
    const std::vector<float> logits = m.model.next_logits(prefix);
    ASSERT_EQ(int64_t(logits.size()), config_.V) << "no padding among them";
    double total = 0;
    for (float l : logits) total += std::exp(double(l));
    for (int32_t next : {0, 17, 36}) {
      std::vector<int32_t> targets(length, -1);
      targets.back() = next;
      const double nll = m.model.forward(prefix.data(), targets.data(), 1, int64_t(length));
      EXPECT_NEAR(nll, std::log(total) - double(logits[size_t(next)]), 1e-4);
    }
  }
}

// Position by position over the cache, or in parts, as in one pass over all: the same logits up to
// the order of summation, so that greedy ids are those of the full pass.
TEST_P(Generation, TheCacheChangesNothing) {
  const std::vector<int32_t> tokens = {5, 36, 0, 7, 7, 12, 30, 1, 2, 9, 9, 20, 21, 4, 3, 8};
  ASSERT_EQ(int64_t(tokens.size()), config_.T);
  // bf16: both ways round activations to 2^-9 of their size; the logits are of order 1.
  for (const auto& [X, tolerance] : {std::pair(DType::F32, 1e-4), std::pair(DType::BF16, 0.1)}) {
    SmallModel m(config_, 1, 1, false, X);
    sharpen(m);
    std::vector<std::vector<float>> full;
    for (size_t n = 1; n <= tokens.size(); n++)
      full.push_back(m.model.next_logits({tokens.begin(), tokens.begin() + int64_t(n)}));
    for (const auto& sizes : std::vector<std::vector<int64_t>>{
             std::vector<int64_t>(16, 1), {5, 1, 1, 1, 8}, {3, 4, 9}}) {
      int64_t past = 0;
      for (const int64_t n : sizes) {
        const auto first = tokens.begin() + past;
        const std::vector<float> logits = m.model.next_logits({first, first + n}, past);
        past += n;
        for (size_t i = 0; i < logits.size(); i++)
          ASSERT_NEAR(logits[i], full[size_t(past) - 1][i], tolerance) << past << " " << i;
      }
    }
  }
}

// Beyond config.T the window begins again with its newer half. Of a long prompt the end is seen.
TEST_P(Generation, BeyondTheWindowItsNewerHalfIsComputedAnew) {
  SmallModel m(config_, 1, 1, false);
  sharpen(m);
  for (const int64_t length : {1, 10, 16, 17, 50}) {
    std::vector<int32_t> text;
    for (int64_t i = 0; i < length; i++) text.push_back(int32_t(i * 7 % 37));
    const std::vector<int32_t> made =
        sample(m.model, text, {.tokens = 45, .temperature = 0}, [](int32_t) {});
    std::vector<int32_t> window = text;
    if (length > 16) window.erase(window.begin(), window.end() - 16);
    for (const int32_t id : made) {
      if (window.size() > 16) window.erase(window.begin(), window.end() - 8);
      ASSERT_EQ(id, sample_token(m.model.next_logits(window), 0, 1, 0)) << length;
      window.push_back(id);
    }
    EXPECT_EQ(made.size(), 45u);
  }
}

// N6: passes of other shapes between the steps change nothing.
TEST_P(Generation, OtherShapesBetweenStepsLeaveTrainingAlone) {
  const auto losses = [&](bool disturb) {
    SmallModel m(config_, 1, 4);
    FullGradSink sink(*m.ops, m.model.table(), m.optimizer, 1);
    const PhiloxStream random(9, Purpose::test);
    std::vector<int32_t> ids(4 * 16 + 1);
    std::vector<double> out;
    for (uint64_t step = 0; step < 6; step++) {
      for (size_t i = 0; i < ids.size(); i++) ids[i] = int32_t(random.bits(step * 100 + i) % 37);
      m.optimizer.begin_step(1e-2);
      sink.begin_micro_batch(0);
      out.push_back(m.model.forward_backward(ids.data(), ids.data() + 1, 4, 16, 1.0f / 64, sink));
      out.push_back(sink.finish_step().grad_norm);
      if (!disturb) continue;
      m.model.forward(ids.data(), ids.data() + 1, 1, 3);
      m.model.forward(ids.data(), ids.data() + 1, 3, 16);
      m.model.forward(ids.data(), ids.data() + 1, 8, 8);  // as many tokens, another shape
      m.model.next_logits({1, 2, 3, 4, 5});
      sample(m.model, {1}, {.tokens = 20}, [](int32_t) {});
    }
    return out;
  };
  EXPECT_EQ(losses(true), losses(false));
}

INSTANTIATE_TEST_SUITE_P(Models, Generation, ::testing::Values(Arch::llama, Arch::gpt2),
                         [](const auto& info) {
                           return info.param == Arch::gpt2 ? "gpt2" : "llama";
                         });

}  // namespace
}  // namespace loqal
