// When the subspace is refreshed: the golden steps of spec/loqt.md, sections 1.3 and 3.
#include <gtest/gtest.h>

#include "quant/refresh_schedule.h"

namespace loqal {
namespace {

using Steps = std::vector<int64_t>;

Steps first(const RefreshSchedule& s, size_t count) {
  const Steps all = s.all();
  return {all.begin(), all.begin() + int64_t(count)};
}

TEST(RefreshSchedule, GoldenSteps) {
  const RefreshSchedule s{.interval = 100, .growth = 1.2, .steps = 10000};
  EXPECT_EQ(first(s, 8), (Steps{0, 100, 201, 302, 403, 505, 607, 709}));
  // Merges of the released runs, with t = 0, but for the one at 9,999 of 10,000 steps.
  EXPECT_EQ(s.all().size(), 39u);
  const Steps all = s.all();
  EXPECT_EQ(all[38] - all[37], 950);
}

TEST(RefreshSchedule, CapFixedGapsAndTheEnd) {
  EXPECT_EQ((RefreshSchedule{.interval = 10, .growth = 0, .steps = 45}.all()),
            (Steps{0, 10, 20, 30}));  // 40 is closer than 10 to the end
  EXPECT_EQ((RefreshSchedule{.interval = 10, .growth = 2, .max_gap = 14, .steps = 80}.all()),
            (Steps{0, 10, 22, 36, 50, 64}));  // gaps 10, 12, 14, then the cap
  EXPECT_EQ((RefreshSchedule{.interval = 10, .growth = 1.2, .steps = 10}.all()), (Steps{0}));
  EXPECT_EQ((RefreshSchedule{.interval = 100, .growth = 1e9, .steps = 100000}.all()),
            (Steps{0, 100}));
  // growth 1: every gap after the first is tau + 1.
  EXPECT_EQ((RefreshSchedule{.interval = 5, .growth = 1, .steps = 30}.all()),
            (Steps{0, 5, 11, 17, 23}));
}

}  // namespace
}  // namespace loqal
