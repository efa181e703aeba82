#include "core/json.h"

#include <gtest/gtest.h>

#include <bit>

#include "core/philox.h"
#include "test/core/files.h"

namespace loqal {
namespace {

TEST(Json, ErrorsNameFileLineAndColumn) {
  EXPECT_CONTAINS(error_of([] { parse_json("{\n  \"a\": 1,\n  \"b\": }", "config.json"); }),
                  "config.json:3:8: not valid JSON: ");
  EXPECT_CONTAINS(error_of([] { parse_json("", "f"); }), "f:1:1: not valid JSON: ");
  EXPECT_CONTAINS(error_of([] { parse_json("{} x", "f"); }), "f:1:4: not valid JSON: ");
  EXPECT_CONTAINS(error_of([] { parse_json("[1e999]", "f"); }),
                  "f: not usable JSON: number overflow");
  EXPECT_CONTAINS(error_of([] { parse_json("{\"a\":{\"k\":1},\"k\":2,\"k\":3}", "f"); }),
                  "the key \"k\" stands twice");
  EXPECT_CONTAINS(error_of([] { parse_json(std::string(100'000, '['), "f"); }),
                  "nested deeper than 64");
  EXPECT_EQ(parse_json("[{\"k\":1},{\"k\":2}]", "f").size(), 2u);
  const TempDir dir;
  write_file_atomic(dir / "c.json", "{\"a\"");
  EXPECT_CONTAINS(error_of([&] { read_json(dir / "c.json"); }), dir / "c.json:1:");
}

TEST(Json, TypedGetters) {
  const Json json = parse_json(
      R"({"i":7,"neg":-1,"big":3000000000,"huge":18446744073709551615,"d":1.5,
          "s":"text","b":true,"v":[1,2],
          "n":null,"mixed":[1,"x"]})",
      "f");
  EXPECT_EQ(get<int>(json, "i", "f"), 7);
  EXPECT_EQ(get<int64_t>(json, "big", "f"), 3'000'000'000);
  EXPECT_EQ(get<uint64_t>(json, "huge", "f"), UINT64_MAX);
  EXPECT_EQ(get<double>(json, "i", "f"), 7.0);
  EXPECT_EQ(get<double>(json, "d", "f"), 1.5);
  EXPECT_EQ(get<std::string>(json, "s", "f"), "text");
  EXPECT_TRUE(get<bool>(json, "b", "f"));
  EXPECT_EQ(get<std::vector<int64_t>>(json, "v", "f"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(get<Json>(json, "v", "f").size(), 2u);
  EXPECT_EQ(get_or<int>(json, "n", "f", 5), 5);
  EXPECT_EQ(get_or<int>(json, "none", "f", 5), 5);
  EXPECT_EQ(get_or<int>(json, "i", "f", 5), 7);

  EXPECT_EQ(error_of([&] { get<int>(json, "none", "f"); }),
            "f: \"none\" is missing; expected a whole number");
  EXPECT_EQ(error_of([&] { get<int>(json, "d", "f"); }),
            "f: \"d\": expected a whole number, found 1.5");
  EXPECT_EQ(error_of([&] { get<int>(json, "big", "f"); }),
            "f: \"big\": expected a whole number, found 3000000000");
  EXPECT_EQ(error_of([&] { get<std::string>(json, "b", "f"); }),
            "f: \"b\": expected a string, found true");
  EXPECT_EQ(error_of([&] { get_or<bool>(json, "i", "f", true); }),
            "f: \"i\": expected true or false, found 7");
  EXPECT_EQ(error_of([&] { get<double>(json, "s", "f"); }),
            "f: \"s\": expected a number, found \"text\"");
  error_of([&] { get<uint32_t>(json, "neg", "f"); });
  error_of([&] { get<int64_t>(json, "huge", "f"); });
  error_of([&] { get<std::vector<int>>(json, "mixed", "f"); });
  EXPECT_CONTAINS(error_of([&] { get<int>(Json::array({1}), "i", "f"); }),
                  "f: expected an object with \"i\"");
}

TEST(Json, DoublesRoundTripExactly) {
  const PhiloxStream random(1, Purpose::test);
  for (uint64_t i = 0; i < 20'000; i++) {
    const double x =
        std::bit_cast<double>(uint64_t(random.bits(2 * i)) << 32 | random.bits(2 * i + 1));
    const Json back = parse_json(dump_json(Json{{"x", number(x)}}), "f");
    const double y = get<double>(back, "x", "f");
    if (std::isnan(x)) ASSERT_TRUE(std::isnan(y));
    else ASSERT_EQ(std::bit_cast<uint64_t>(x), std::bit_cast<uint64_t>(y));
  }
  EXPECT_EQ(dump_json(Json::array({number(NAN), number(INFINITY), number(-INFINITY), number(0.1)})),
            R"(["nan","inf","-inf",0.1])");
}

TEST(Json, KeepsOrderAndSurvivesInvalidUtf8) {
  EXPECT_EQ(dump_json(Json{{"z", 1}, {"a", "\xff"}}), "{\"z\":1,\"a\":\"\xef\xbf\xbd\"}");
  EXPECT_EQ(dump_json(Json{{"z", 1}}, 2), "{\n  \"z\": 1\n}\n");
}

}  // namespace
}  // namespace loqal
