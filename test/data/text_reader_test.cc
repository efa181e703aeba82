#include "data/text_reader.h"

#include "data/utf8.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

using Texts = std::vector<std::string>;

class TextReaderTest : public DataTest {
 protected:
  Texts read_all(const std::string& bytes, const ReadOptions& options = {}) {
    TextReader reader(write("in", bytes), options, &skipped_);
    Texts documents;
    for (std::string document; reader.next(&document);) documents.push_back(document);
    EXPECT_EQ(reader.documents(), int64_t(documents.size()));
    return documents;
  }
  Texts split(const std::string& bytes, Split how, const std::string& separator = "") {
    ReadOptions options;
    options.split = how;
    options.separator = separator;
    return read_all(bytes, options);
  }
  static ReadOptions skipping() {
    ReadOptions options;
    options.skip_bad = true;
    return options;
  }
  SkipReport skipped_;
};

/// Random-looking text that deflate cannot shrink to nothing.
std::string lines_of_json(int count) {
  std::string out;
  uint32_t x = 1;
  for (int i = 0; i < count; i++) {
    out += cat("{\"text\":\"", i, " ");
    for (int k = 0; k < 40; k++) out += cat((x = x * 1664525 + 1013904223) >> 16, " ");
    out += "\"}\n";
  }
  return out;
}

TEST_F(TextReaderTest, PlainTextSplits) {
  EXPECT_EQ(split("a\n\nb\n", Split::file), (Texts{"a\n\nb\n"}));
  EXPECT_EQ(split("a\r\nb\n\nc", Split::line), (Texts{"a", "b", "", "c"}));
  // llm.c's rule for tinyshakespeare: text.replace("\n\n", "\n\n<|endoftext|>").
  EXPECT_EQ(split("a\n\nb\n\n\nc", Split::blank), (Texts{"a\n\n", "b\n\n", "\nc"}));
  EXPECT_EQ(split("a<|e|>b<|e|>", Split::separator, "<|e|>"), (Texts{"a", "b"}));
  EXPECT_EQ(split("", Split::file), Texts{});
  EXPECT_EQ(split("\xef\xbb\xbfx", Split::file), (Texts{"x"}));  // byte order mark
}

TEST_F(TextReaderTest, SeparatorsStraddleBuffers) {
  for (const int n : {65530, 65534, 65535, 65536, 65537}) {
    const std::string a(size_t(n), 'a');
    EXPECT_EQ(split(a + "<sep>b<sep>" + a, Split::separator, "<sep>"), (Texts{a, "b", a})) << n;
  }
}

TEST_F(TextReaderTest, JsonLines) {
  EXPECT_EQ(read_all("{\"url\":\"u\",\"text\":\"a\\/b\"}\n"
                     "{\"text\": \"\\ud83d\\ude00\", \"n\":1}\n"),
            (Texts{"a/b", "\xf0\x9f\x98\x80"}));
  // Only 0x0A ends a line: U+2028, U+2029 and U+0085 are text. NUL is text too.
  EXPECT_EQ(read_all("{\"text\":\"x\xe2\x80\xa8y\xe2\x80\xa9z\xc2\x85w\\u0000!\"}"),
            (Texts{std::string("x\xe2\x80\xa8y\xe2\x80\xa9z\xc2\x85w\0!", 14)}));
  ReadOptions options;
  options.text_field = "body";
  EXPECT_EQ(read_all("{\"body\":\"\"}\r\n", options), (Texts{""}));
}

// D6 and D22: what, and in which line.
TEST_F(TextReaderTest, BadDocumentsNameFileAndLine) {
  const std::string good = "{\"text\":\"a\"}\n";
  EXPECT_ERROR(read_all(good + "{\"text\":\"a\n"), path("in") + ":2: malformed JSON");
  EXPECT_ERROR(read_all(good + good + "{\"txt\":\"a\"}\n"), ":3: missing text field", "'text'",
               "did you mean 'txt'");
  EXPECT_ERROR(read_all(good + "{\"text\":5}\n"), ":2: text is no string", "number");
  EXPECT_ERROR(read_all(good + "\n" + good), ":2: empty line");
  EXPECT_ERROR(read_all(good + "[1]\n"), ":2: malformed JSON", "array");
  EXPECT_ERROR(read_all(good + "{\"text\":\"\xff\"}\n"), ":2: invalid UTF-8", "byte 255");
  EXPECT_ERROR(read_all(good + "{\"text\":\"\\ud800\"}\n"), ":2: malformed JSON", "surrogate");
  EXPECT_ERROR(split("a\nb\n\xc0\x80", Split::file), ":3: invalid UTF-8");
}

TEST_F(TextReaderTest, SkippingCountsByReasonWithTheFirstFivePlaces) {
  std::string text = "{\"text\":\"a\"}\n";
  for (int i = 0; i < 7; i++) text += "{\"text\":1}\n\n";
  text += "{\"text\":\"z\"}\n";
  EXPECT_EQ(read_all(text, skipping()), (Texts{"a", "z"}));
  const auto& entries = skipped_.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries.at("empty line").count, 7);
  EXPECT_EQ(entries.at("text is no string").count, 7);
  ASSERT_EQ(entries.at("empty line").first.size(), 5u);
  EXPECT_EQ(entries.at("empty line").first[0], path("in") + ":3");
  EXPECT_EQ(skipped_.total(), 14);
}

// D7, and the limit that bounds memory.
TEST_F(TextReaderTest, LongDocuments) {
  const std::string huge(6 << 20, 'x');
  const std::string text = "{\"text\":\"a\"}\n{\"text\":\"" + huge + "\"}\n{\"text\":\"b\"}\n";
  EXPECT_EQ(read_all(gzip(text)), (Texts{"a", huge, "b"}));
  ReadOptions options = skipping();
  options.max_doc_bytes = 1000;
  EXPECT_EQ(read_all(text, options), (Texts{"a", "b"}));
  EXPECT_EQ(skipped_.entries().at("document too long").first[0], path("in") + ":2");
  options.skip_bad = false;
  EXPECT_ERROR(read_all(text, options), ":2: document too long", "1000", "--max-doc-bytes");
}

TEST_F(TextReaderTest, GzipMembersAreConcatenated) {
  const std::string a = "{\"text\":\"a\"}\n", b = "{\"text\":\"b\"}\n";
  EXPECT_EQ(read_all(gzip(a) + gzip("") + gzip(b)), (Texts{"a", "b"}));
  EXPECT_EQ(read_all(gzip(a) + std::string(512, '\0')), (Texts{"a"}));
  EXPECT_EQ(read_all(gzip("plain\ntext")), (Texts{"plain\ntext"}));
}

// D5: cut at 60 %, a damaged CRC, garbage behind the end.
TEST_F(TextReaderTest, DamagedGzipNamesDocumentsAndOffset) {
  const std::string whole = gzip(lines_of_json(4000));
  ASSERT_GT(whole.size(), 300000u);
  const size_t cut = whole.size() * 6 / 10;
  EXPECT_ERROR(read_all(whole.substr(0, cut)), path("in"), "ends too early", cat("at byte ", cut),
               "documents", "--on-error skip");
  std::string bad_crc = whole;
  bad_crc[whole.size() - 8] ^= 1;
  EXPECT_ERROR(read_all(bad_crc), "incorrect data check", "documents");
  EXPECT_ERROR(read_all(whole + "garbage"), "garbage", cat("at byte ", whole.size()));
  EXPECT_ERROR(read_all(whole.substr(0, 12)), "ends too early", "at byte 12");
  const Texts kept = read_all(whole.substr(0, cut), skipping());
  EXPECT_GT(kept.size(), 2000u);
  EXPECT_LT(kept.size(), 3000u);
  EXPECT_EQ(skipped_.total(), 1);
  EXPECT_NE(skipped_.entries().begin()->second.first[0].find(cat("after ", kept.size())),
            std::string::npos);
}

// D9: a page saved under a data file's name, and formats we do not read.
TEST_F(TextReaderTest, OtherFormatsAreRefusedWithAHint) {
  EXPECT_ERROR(read_all("<html><body>503</body></html>"), "HTML", "download it again");
  EXPECT_ERROR(read_all(gzip(" <!DOCTYPE HTML>")), "inside gzip", "HTML");
  EXPECT_ERROR(read_all("PAR1xxxx"), "parquet", "JSON lines");
  EXPECT_ERROR(read_all("\x28\xb5\x2f\xfd...."), "zstd", "zstd -d");
  EXPECT_ERROR(read_all("[ {\"text\":\"a\"} ]"), "JSON array", "jq");
  EXPECT_ERROR(read_all(std::string("\xff\xfe"
                                    "a\0",
                                    4)),
               "UTF-16", "iconv");
  EXPECT_ERROR(read_all(llmc_shard<uint16_t>({1})), "token shard", "--train-data");
  EXPECT_ERROR(TextReader(path("none"), {}, &skipped_), path("none"), "No such file");
  EXPECT_ERROR(TextReader(dir_.string(), {}, &skipped_), "folder");
}

// Table 3-7 of the Unicode standard: the borders of well-formed sequences.
TEST(Utf8, Borders) {
  for (const char* good : {"\x7f", "\xc2\x80", "\xdf\xbf", "\xe0\xa0\x80", "\xed\x9f\xbf",
                           "\xee\x80\x80", "\xef\xbf\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(invalid_utf8(good), std::string::npos) << good;
  for (const char* bad :
       {"\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80", "\xc2", "\xe2\x82", "\xf0\x9f\x98"})
    EXPECT_EQ(invalid_utf8(std::string("ab") + bad), 2u) << bad;
}

}  // namespace
}  // namespace loqal
