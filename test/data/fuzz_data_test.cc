// Random damage to everything that is parsed: nothing but loqal::Error may come out (and, under
// `make sanitize`, no bad access). The seed is fixed, so a failure reproduces.
#include <sys/mman.h>
#include <unistd.h>

#include "core/philox.h"
#include "data/shard.h"
#include "data/text_reader.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

class FuzzTest : public DataTest {
 protected:
  uint32_t draw(uint32_t n) { return random_.bits(next_++) % n; }

  /// Some bytes changed, cut, doubled or inserted.
  std::string damage(std::string bytes) {
    for (uint32_t n = 1 + draw(4); n > 0 && !bytes.empty(); n--) {
      const size_t at = draw(uint32_t(bytes.size()));
      switch (draw(5)) {
        case 0: bytes[at] = char(draw(256)); break;
        case 1: bytes[at] = char(bytes[at] ^ (1 << draw(8))); break;
        case 2: bytes.resize(at); break;
        case 3: bytes.insert(at, bytes.substr(at, draw(40))); break;
        default: bytes.insert(at, 1, "{}[]\",:\\u0\n\xff\x00"[draw(13)]);
      }
    }
    return bytes;
  }

  const PhiloxStream random_{2024, Purpose::test};
  uint64_t next_ = 0;
};

TEST_F(FuzzTest, ShardHeader) {
  const std::string seeds[] = {
      llmc_shard<uint16_t>({1, 2, 3}),
      llmc_shard<uint32_t>({1, 2, 3}, {{3, 0x6c61716c}, {4, 1}, {5, 70000}, {6, 1}, {7, 2}})};
  int accepted = 0;
  for (int i = 0; i < 20000; i++) {
    std::string bytes = seeds[i % 2];
    // Damage near the start: most of a header is zeros.
    bytes = damage(bytes.substr(0, 48)) + bytes.substr(48);
    const std::vector<uint8_t> exact(bytes.begin(), bytes.end());  // no slack behind the end
    try {
      const ShardHeader h = parse_shard_header(exact.data(), std::min<size_t>(exact.size(), 1024),
                                               exact.size(), "fuzz");
      EXPECT_EQ(uint64_t(h.file_bytes()), exact.size());
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 10000);  // the damage does reach the checks
}

TEST_F(FuzzTest, JsonLinesAndGzip) {
  const std::string json =
      "{\"text\":\"a \\ud83d\\ude00 \\u0000 b\",\"url\":\"http:\\/\\/x\",\"n\":[1,2e5,{}]}\n"
      "{\"timestamp\":null,\"text\":\"caf\xc3\xa9\"}\n\n{\"text\":\"end\"}\n";
  const std::string seeds[] = {json, gzip(json), gzip(json) + gzip(json)};
  const int memory = memfd_create("fuzz", 0);  // rewriting a file on disk 3000 times takes seconds
  const std::string file = cat("/proc/self/fd/", memory);
  int64_t documents = 0;
  for (int i = 0; i < 3000; i++) {
    ReadOptions options;
    options.skip_bad = i % 4 == 0;
    options.split = Split(i % 3);
    options.max_doc_bytes = 1 + draw(200);
    const std::string bytes = damage(seeds[i % 3]);
    ASSERT_EQ(ftruncate(memory, 0), 0);
    ASSERT_EQ(pwrite(memory, bytes.data(), bytes.size(), 0), ssize_t(bytes.size()));
    SkipReport skipped;
    try {
      TextReader reader(file, options, &skipped);
      for (std::string document; reader.next(&document);) documents++;
    } catch (const Error& e) {
      EXPECT_FALSE(options.skip_bad) << e.what();
    }
  }
  close(memory);
  EXPECT_GT(documents, 500);
}

}  // namespace
}  // namespace loqal
