// The fast reader of JSON lines against the full one.
#include "data/json_text.h"

#include "data/utf8.h"
#include "test/core/fuzz.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

/// Both readers' answer; they must agree whenever the fast one gives any.
std::string text_of(const std::string& line, bool* fast = nullptr) {
  std::string text;
  const JsonText full = read_json_text(line, "text");
  const bool plain = plain_json_text(line, "text", &text);
  if (plain) {
    EXPECT_EQ(full.error, "") << line;
    EXPECT_EQ(full.type, "string") << line;
    EXPECT_EQ(text, full.text) << line;
  }
  if (fast) *fast = plain;
  return full.error.empty() && full.type == "string" ? full.text : "<none>";
}

TEST(JsonText, TheUsualLineIsFast) {
  bool fast = false;
  EXPECT_EQ(text_of(R"({"text":"a\nb \"c\" \/\\ \u00e9\uD83D\ude00","timestamp":"2019","url":"u"})",
                    &fast),
            "a\nb \"c\" /\\ \xc3\xa9\xf0\x9f\x98\x80");
  EXPECT_TRUE(fast);
  EXPECT_EQ(text_of(" { \"n\" : 12 , \"ok\" : true, \"text\" : \"\" } \r", &fast), "");
  EXPECT_TRUE(fast);
  EXPECT_EQ(text_of("{\"text\":\"nul \\u0000 stays\"}", &fast), std::string("nul \0 stays", 11));
  EXPECT_TRUE(fast);
}

// Nothing here may be taken by the fast reader, and the full one says what it is.
TEST(JsonText, TheUnusualOneIsLeftToTheParser) {
  const std::pair<const char*, const char*> lines[] = {
      {R"({"text":"a","meta":{"b":[1,2]}})", "a"},
      {R"({"text":"a","text":"b"})", "b"},  // the last one counts
      {R"({"text":"a","x":1.5e3})", "a"},
      {R"({"te\u0078t":"a"})", "a"},
      {R"({"a":{"text":"inner"},"text":"outer"})", "outer"},
      {R"({"text":5})", "<none>"},
      {R"({"text":null})", "<none>"},
      {R"({"txt":"a"})", "<none>"},
      {R"({})", "<none>"},
      {R"(["text"])", "<none>"},
      {R"({"text":"a"} x)", "<none>"},
      {R"({"text":"a",})", "<none>"},
      {R"({"text":"a" "b":"c"})", "<none>"},
      {R"({"text":"a)", "<none>"},
      {R"({"text":"a\)", "<none>"},
      {R"({"text":"a\x"})", "<none>"},
      {R"({"text":"\u12"})", "<none>"},
      {R"({"text":"\u12g4"})", "<none>"},
      {R"({"text":"\ud800"})", "<none>"},
      {R"({"text":"\ud800\u0041"})", "<none>"},
      {R"({"text":"\udc00"})", "<none>"},
      {R"({"text":"a","b":01})", "<none>"},
      {R"({"text":"a","b":tru})", "<none>"},
      {R"({"text":"a","b":"\q"})", "<none>"},
      {"{\"text\":\"a\tb\"}", "<none>"},  // a raw control character
      {"", "<none>"}};
  for (const auto& [line, text] : lines) {
    bool fast = true;
    EXPECT_EQ(text_of(line, &fast), text) << line;
    EXPECT_FALSE(fast) << line;
  }
}

TEST(JsonText, ReadersAgreeOnDamagedLines) {
  const std::string seeds[] = {
      R"({"text":"a\ud83d\ude00 \u0041\n b \\ \" \/","url":"http:\/\/x","n":[1,2e5,{}]})",
      R"({"text":"plain and short","timestamp":"2019-04-25T12:57:54Z","url":"https://x.y/z"})",
      R"({"a":-1,"b":0,"c":18446744073709551616,"d":null,"e":false,"text":"t"})"};
  Damage damage;
  int fast_ones = 0, good_ones = 0;
  for (int i = 0; i < 60000; i++) {
    std::string line = damage(seeds[i % 3]);
    if (invalid_utf8(line) != std::string::npos) continue;  // the reader refuses it before
    bool fast = false;
    good_ones += text_of(line, &fast) != "<none>";
    fast_ones += fast;
  }
  EXPECT_GT(fast_ones, 2000);
  EXPECT_GT(good_ones, fast_ones);
}

// A line of brackets is 16 M values for a parser that builds what it reads.
TEST(JsonText, NestingCostsNoMemory) {
  const std::string deep(4 << 20, '[');
  EXPECT_NE(read_json_text("{\"a\":" + deep, "text").error, "");
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_EQ(read_json_text("{\"text\":\"t\",\"a\":" + closed + "}", "text").text, "t");
}

}  // namespace
}  // namespace loqal
