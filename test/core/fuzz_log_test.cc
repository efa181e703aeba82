// A damaged log: a resume sorts out what is left of it, and loses no byte of the rest.
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/log.h"
#include "test/core/fuzz.h"

namespace loqal {
namespace {

TEST(FuzzLog, ResumeOnADamagedLog) {
  std::string log = "{\"kind\":\"run\",\"command\":\"train\"}\n";
  for (int step = 1; step <= 3; step++) {
    log += cat("{\"kind\":\"train\",\"step\":", step, ",\"loss\":", 1.0 / step, "}\n");
    if (step == 2) log += cat("{\"kind\":\"save\",\"step\":", step, ",\"path\":\"x\"}\n");
  }
  log += "{\"kind\":\"end\",\"reason\":\"signal\"}\n";
  const FastDir dir;
  Damage damage;
  int64_t refused = 0;
  for (int i = 0; i < 1000; i++) {
    const std::string path = dir / "log.jsonl";
    dir.write("log.jsonl", damage(log));
    std::filesystem::remove(dir / "log_superseded.jsonl");
    try {
      { JsonlLog resumed(path, int64_t(damage.draw(5))); }
      const std::string once = read_file(path);
      for (size_t begin = 0; begin < once.size();) {  // whole lines of JSON
        const size_t end = once.find('\n', begin);
        ASSERT_NE(end, std::string::npos);
        parse_json(once.substr(begin, end - begin), path);
        begin = end + 1;
      }
    } catch (const Error&) {
      refused++;
    }
  }
  EXPECT_EQ(refused, 0) << "what cannot be read moves aside; it stops nobody";
}

}  // namespace
}  // namespace loqal
