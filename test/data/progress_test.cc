#include "data/progress.h"

#include <gtest/gtest.h>

#include <sstream>
#include <thread>

namespace loqal {
namespace {

TEST(Progress, IsRedrawnInPlaceOnATerminal) {
  std::ostringstream log;
  {
    Progress progress(log, true, 1000, 200);
    progress.update(300, 1'000'000, 50);
    EXPECT_EQ(log.str(), "");  // too early to say anything
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    progress.update(600, 2'000'000, 100);  // 400 of 800 bytes in 0.25 s and a little
    for (const char* part : {" 60 % [============        ] ", " MB/s, ", " documents/s, 0:00 left"})
      EXPECT_NE(log.str().find(part), std::string::npos) << log.str();
    EXPECT_EQ(log.str().find('\n'), std::string::npos);
    const double rate = std::stod(log.str().substr(log.str().find("] ") + 2));
    EXPECT_LE(rate, 2 / 0.25);
    EXPECT_GE(rate, 2 / 5.0);
  }
  EXPECT_TRUE(log.str().ends_with("\r\033[K"));  // what comes next begins on a clean line
}

TEST(Progress, IsSilentForTenSecondsElsewhere) {
  std::ostringstream log;
  Progress progress(log, false, 1000, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  progress.update(600, 2'000'000, 100);
  EXPECT_EQ(log.str(), "");
}

}  // namespace
}  // namespace loqal
