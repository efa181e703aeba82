// Learning-rate schedules against values worked out by hand from the formulas in schedule.h.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace loqal {
namespace {

using Kind = Schedule::Kind;

// Warm-up over steps 0..9, decay over 10..110: a hundred steps from 1 to 0.1.
Schedule hundred(Kind kind) {
  return {.kind = kind, .lr = 1, .min_lr = 0.1, .warmup = 10, .steps = 111};
}

constexpr double kTiny = 1e-12;  // a handful of double roundings of numbers around 1

TEST(Schedule, WarmUpIsLinearAndStartsAboveZero) {
  for (Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    EXPECT_NEAR(hundred(kind).at(0), 0.1, kTiny);
    EXPECT_NEAR(hundred(kind).at(4), 0.5, kTiny);
    EXPECT_NEAR(hundred(kind).at(9), 1.0, kTiny);
    EXPECT_NEAR(hundred(kind).at(10), 1.0, kTiny);
  }
}

TEST(Schedule, Cosine) {
  const Schedule s = hundred(Kind::cosine);
  EXPECT_NEAR(s.at(35), 0.8681980515339464, kTiny);  // 0.1 + 0.9 (1 + sqrt(1/2)) / 2
  EXPECT_NEAR(s.at(60), 0.55, kTiny);
  EXPECT_NEAR(s.at(85), 0.23180194846605365, kTiny);  // 0.1 + 0.9 (1 - sqrt(1/2)) / 2
  EXPECT_NEAR(s.at(110), 0.1, kTiny);
}

TEST(Schedule, Linear) {
  const Schedule s = hundred(Kind::linear);
  EXPECT_NEAR(s.at(11), 0.991, kTiny);
  EXPECT_NEAR(s.at(35), 0.775, kTiny);
  EXPECT_NEAR(s.at(60), 0.55, kTiny);
  EXPECT_NEAR(s.at(110), 0.1, kTiny);
}

TEST(Schedule, WarmUpStableDecay) {
  // 96 steps: the last fifth, 19 steps, is 77..95; 18 intervals from 1 to 0.1 are 0.05 each.
  const Schedule s{.kind = Kind::wsd, .lr = 1, .min_lr = 0.1, .warmup = 10, .steps = 96};
  EXPECT_EQ(s.at(10), 1.0);
  EXPECT_EQ(s.at(76), 1.0);
  EXPECT_NEAR(s.at(77), 1.0, kTiny);
  EXPECT_NEAR(s.at(78), 0.95, kTiny);
  EXPECT_NEAR(s.at(86), 0.55, kTiny);
  EXPECT_NEAR(s.at(95), 0.1, kTiny);
}

TEST(Schedule, Constant) {
  for (int64_t step : {10, 60, 110}) EXPECT_EQ(hundred(Kind::constant).at(step), 1.0);
}

TEST(Schedule, NoWarmUp) {
  for (Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    Schedule s{.kind = kind, .lr = 2, .min_lr = 1, .warmup = 0, .steps = 21};
    EXPECT_EQ(s.at(0), 2.0);
    EXPECT_NEAR(s.at(20), kind == Kind::constant ? 2.0 : 1.0, kTiny);
  }
}

TEST(Schedule, OneStep) {
  for (Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd})
    EXPECT_EQ((Schedule{.kind = kind, .lr = 2, .min_lr = 1, .warmup = 0, .steps = 1}.at(0)), 2.0);
}

TEST(Schedule, WarmUpAsLongAsTheRunOrLonger) {
  for (Kind kind : {Kind::constant, Kind::linear, Kind::cosine, Kind::wsd}) {
    EXPECT_NEAR((Schedule{.kind = kind, .lr = 2, .min_lr = 1, .warmup = 8, .steps = 8}.at(7)), 2.0,
                kTiny);
    EXPECT_NEAR((Schedule{.kind = kind, .lr = 2, .min_lr = 1, .warmup = 16, .steps = 8}.at(7)), 1.0,
                kTiny);
    // One step is left after warm-up: it is the last one and must be a number.
    EXPECT_TRUE(
        std::isfinite(Schedule{.kind = kind, .lr = 2, .min_lr = 1, .warmup = 7, .steps = 8}.at(7)));
  }
}

TEST(Schedule, StaysBetweenMinimumAndPeakAndNeverRisesAfterWarmUp) {
  for (Kind kind : {Kind::linear, Kind::cosine, Kind::wsd})
    for (int64_t steps : {11, 12, 13, 40, 111}) {
      Schedule s = hundred(kind);
      s.steps = steps;
      for (int64_t step = 10; step < steps; step++) {
        EXPECT_GE(s.at(step), 0.1 - kTiny);
        EXPECT_LE(s.at(step), 1 + kTiny);
        EXPECT_LE(s.at(step), s.at(std::max<int64_t>(step - 1, 10)) + kTiny)
            << steps << " " << step;
      }
    }
}

// A resume asks for step k without having asked for those before it.
TEST(Schedule, PureFunctionOfTheStep) {
  const Schedule s = hundred(Kind::cosine);
  std::vector<double> forwards;
  for (int64_t step = 0; step < 111; step++) forwards.push_back(s.at(step));
  for (int64_t step = 110; step >= 0; step--) {
    EXPECT_EQ(s.at(step), forwards[size_t(step)]);
    EXPECT_EQ(hundred(Kind::cosine).at(step), forwards[size_t(step)]);
  }
}

TEST(Schedule, Names) {
  EXPECT_EQ(schedule_kind("cosine"), Kind::cosine);
  EXPECT_EQ(schedule_kind("linear"), Kind::linear);
  EXPECT_EQ(schedule_kind("wsd"), Kind::wsd);
  EXPECT_EQ(schedule_kind("constant"), Kind::constant);
  try {
    schedule_kind("cosin");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code, Exit::usage);
    EXPECT_NE(std::string(e.what()).find("cosine"), std::string::npos);
  }
}

}  // namespace
}  // namespace loqal
