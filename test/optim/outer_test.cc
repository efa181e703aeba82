// Outer optimizers against numbers worked out by hand, and the identities between them.
#include "optim/outer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"

namespace loqal {
namespace {

using Kind = OuterConfig::Kind;

/// One weight that begins at w0, after pushes.
float after(const OuterConfig& config, const std::vector<float>& pushes, float w0 = 1) {
  OuterOptimizer o(config, 1);
  std::vector<float> w = {w0};
  for (const float g : pushes) o.push(w, std::vector<float>{g});
  if (config.collect == 0) o.flush(w);
  return w[0];
}

// S4: three rounds by hand, rate 0.1, momentum 0.5, pushes 1, 2, -1.
TEST(Outer, ThreePushesByHand) {
  EXPECT_NEAR(after({Kind::sgd, 0.1, 0.5}, {1, 2, -1}), 1 - 0.1 * 2, 1e-7);
  // m = 1, 2.5, 0.25
  EXPECT_NEAR(after({Kind::heavyball, 0.1, 0.5}, {1, 2, -1}), 1 - 0.1 * (1 + 2.5 + 0.25), 1e-7);
  // g + m / 2: 1.5, 3.25, -0.875
  EXPECT_NEAR(after({Kind::nesterov, 0.1, 0.5}, {1, 2, -1}), 1 - 0.1 * (1.5 + 3.25 - 0.875), 1e-7);
  // Adam's first step is the rate, whatever the push.
  EXPECT_NEAR(after({Kind::adam, 0.1, 0.5}, {7}), 0.9, 1e-6);
  // m = 1.25, debiased 1.25 / 0.75; v = (0.999 * 1 + 4) / 1000, debiased / 0.001999
  const double second = 0.1 * (1.25 / 0.75) / std::sqrt(4.999 / 1.999);
  EXPECT_NEAR(after({Kind::adam, 0.1, 0.5}, {1, 2}), 0.9 - second,
              3e-6);  // 1 - 0.999f is 1.3e-5 off
}

// Paper, Eq. 5, at momentum 0.9: four pushes of the same g are no step with g.
TEST(Outer, FourNesterovPushesInARow) {
  const double b = 0.9;
  const double by_g = 4 + 4 * b + 3 * b * b + 2 * b * b * b + b * b * b * b;
  EXPECT_NEAR(by_g, 12.1441, 1e-9);
  EXPECT_NEAR(after({Kind::nesterov, 1, b}, {1, 1, 1, 1}, 0), -by_g, 1e-5);
  // From a momentum of 1: its own part is 2.78559, and it decays to 0.6561 and gains 3.439.
  OuterOptimizer o({Kind::nesterov, 1, b}, 1);
  o.state()[0].second[0] = 1;
  std::vector<float> w = {0};
  for (int i = 0; i < 4; i++) o.push(w, std::vector<float>{0});
  EXPECT_NEAR(w[0], -2.78559, 1e-5);
  EXPECT_NEAR(o.momentum()[0], 0.6561, 1e-6);
  for (int i = 0; i < 4; i++) o.push(w, std::vector<float>{1});
  EXPECT_NEAR(o.momentum()[0], 0.6561 * 0.6561 + 3.439, 1e-5);
  // One step with their mean.
  EXPECT_NEAR(after({Kind::nesterov, 1, b, 4}, {1, 1, 1, 1}, 0), -1.9, 1e-6);
}

// Paper, Alg. 3: period 2, c = 0.25, momentum 0.5, rate 0.1.
TEST(Outer, DelayedNesterovByHand) {
  const OuterConfig dn{.kind = Kind::dn, .lr = 0.1, .momentum = 0.5, .period = 2, .c = 0.25};
  // Push 1: m 0, moves 1/2. Push 2: m = 1.5, moves (1 - 0.5 + 0.25) * 0.5 * 1.5 + 1.
  double w = 1 - 0.1 * 0.5 - 0.1 * (0.75 * 0.75 + 1);
  EXPECT_NEAR(after(dn, {1, 2}), w, 1e-7);
  // Push 3: 0.25 * 0.5 * 1.5 - 1/2. Push 4: m = 0.75 + (-1 + 3) / 2 = 1.75.
  w -= 0.1 * (0.1875 - 0.5) + 0.1 * (0.75 * 0.5 * 1.75 + 1.5);
  EXPECT_NEAR(after(dn, {1, 2, -1, 3}), w, 1e-7);
}

// spec/async.md 1.7 (a), (b): c = 0 over a period is a Nesterov step on the mean, and a buffer too;
// period 1 is Nesterov.
TEST(Outer, Identities) {
  const PhiloxStream random(1, Purpose::test);
  std::vector<float> pushes;
  for (uint64_t i = 0; i < 60; i++) pushes.push_back(random.uniform(i) - 0.3f);
  for (const int64_t n : {1, 4, 6}) {
    const float dn = after({.kind = Kind::dn, .lr = 0.3, .momentum = 0.9, .period = n}, pushes);
    const float buffer = after({Kind::nesterov, 0.3, 0.9, n}, pushes);
    EXPECT_NEAR(dn, buffer, 1e-5) << n;
    std::vector<float> means;
    for (size_t i = 0; i < pushes.size(); i += size_t(n)) {
      float sum = 0;
      for (size_t j = 0; j < size_t(n); j++) sum += pushes[i + j];
      means.push_back(sum / float(n));
    }
    EXPECT_NEAR(dn, after({Kind::nesterov, 0.3, 0.9}, means), 1e-5) << n;
  }
  // S4: workers that agree change nothing about the mean.
  EXPECT_EQ(after({Kind::sgd, 1, 0, 0}, {0.5f, 0.5f, 0.5f}), 0.5f);
  EXPECT_EQ(after({Kind::sgd, 1, 0, 0}, {}), 1);
}

}  // namespace
}  // namespace loqal
