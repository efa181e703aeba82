// The server: weights of pushes, delay compensation, what it refuses and what it says.
#include "async/server.h"

#include <gtest/gtest.h>

#include <cmath>

namespace loqal {
namespace {

using Kind = OuterConfig::Kind;

TEST(Server, WeighsAndRefusesByStaleness) {
  const PushWeight poly{PushWeight::Kind::poly, 0};
  EXPECT_DOUBLE_EQ(poly.of(0), 1);
  EXPECT_DOUBLE_EQ(poly.of(3), 0.5);
  EXPECT_DOUBLE_EQ((PushWeight{PushWeight::Kind::constant, 0.25}).of(3), 0.25);
  Server s({.outer = {.kind = Kind::sgd, .lr = 1}, .weight = {PushWeight::Kind::polythres, 2}},
           {1, 1});
  std::vector<float> g = {1, 0};
  EXPECT_TRUE(s.push({.staleness = 2, .delta = g}).accepted);
  EXPECT_NEAR(s.weights()[0], 1 - 1 / std::sqrt(3), 1e-6);
  const Verdict late = s.push({.staleness = 3, .delta = g});
  EXPECT_FALSE(late.accepted);
  EXPECT_FALSE(late.distrust);
  EXPECT_EQ(late.reason, "staleness 3 is above 2");
  EXPECT_EQ(s.distrusted_in_a_row(), 0) << "lateness is no sign of a run that breaks down";
  g[0] = std::nanf("");
  EXPECT_TRUE(s.push({.delta = g}).distrust);
  EXPECT_EQ(s.distrusted_in_a_row(), 1);
}

// A round of 50 steps among rounds of one step is larger than these, but not for its steps; one
// step of a large learning rate among rounds of 400 is large for one step, but not as a push.
TEST(Server, MeasuresARoundByItsStepsToo) {
  for (const int64_t usual : {1, 400}) {
    Server s({.outer = {.kind = Kind::sgd, .lr = 1}}, {0});
    const auto push = [&](int64_t steps, float norm) {
      std::vector<float> g = {norm};
      return s.push({.steps = steps, .delta = g}).accepted;
    };
    for (int i = 0; i < 10; i++) EXPECT_TRUE(push(usual, 1));
    EXPECT_TRUE(push(usual == 1 ? 50 : 1, usual == 1 ? 50 : 0.05f)) << usual;
    EXPECT_FALSE(push(usual, 11)) << usual;
    EXPECT_FALSE(push(usual == 1 ? 50 : 1, usual == 1 ? 501 : 11)) << usual;
  }
}

// DC-ASGD by hand: g + L g^2 (now - then).
TEST(Server, CompensatesForDelay) {
  Server s({.outer = {.kind = Kind::sgd, .lr = 1}, .delay_compensation = 2}, {1, 2});
  const Snapshot then = s.pull();
  std::vector<float> g = {0.5f, -0.25f};
  s.push({.delta = g, .start = then});  // now == then
  EXPECT_EQ(s.weights(), (std::vector<float>{0.5f, 2.25f}));
  g = {1, 1};
  s.push({.delta = g, .start = then});  // 1 + 2 (0.5 - 1) = 0, 1 + 2 (2.25 - 2) = 1.5
  EXPECT_EQ(s.weights(), (std::vector<float>{0.5f, 0.75f}));
  EXPECT_EQ(*then, (std::vector<float>{1, 2})) << "what a round began from stays";
}

TEST(Server, SaysHowPushesAgree) {
  Server s({.outer = {.kind = Kind::heavyball, .lr = 1, .momentum = 0.5}}, {0, 0});
  std::vector<float> g = {3, 4};
  const Verdict first = s.push({.delta = g});
  EXPECT_DOUBLE_EQ(first.norm, 5);
  EXPECT_EQ(first.cos_momentum, 0);
  EXPECT_EQ(first.cos_previous, 0);
  g = {4, -3};
  const Verdict second = s.push({.delta = g});  // momentum (3, 4), previous (3, 4)
  EXPECT_NEAR(second.cos_momentum, 0, 1e-12);
  g = {4, -3};
  const Verdict third = s.push({.delta = g});  // momentum (5.5, -1)
  EXPECT_NEAR(third.cos_previous, 1, 1e-7);
  EXPECT_NEAR(third.cos_momentum, 25 / (5 * std::hypot(5.5, 1)), 1e-7);
}

}  // namespace
}  // namespace loqal
