// Safetensors: our own round trip, files that must be refused (report X3), and mutated headers,
// which may only ever throw an Error (run under ASan by make sanitize).
#include "core/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/philox.h"
#include "test/core/files.h"

namespace loqal {
namespace {

std::string file_of(const std::string& header, const std::string& data = "") {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

SafetensorsReader parse(const std::string& file) {
  return {file.data(), file.size(), "m.safetensors"};
}

std::string refusal(const std::string& file) {
  return error_of([&] { parse(file); });
}

std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets +
         "}}";
}

TEST(Safetensors, RoundTripsNoneOneAndMany) {
  const TempDir dir;
  for (const int count : {0, 1, 300}) {
    SafetensorsWriter out(dir / "f");
    std::vector<float> data;
    for (int i = 0; i < count; i++) {
      out.declare(cat("layer.", i), DType::F32, {i % 7, 3});
      for (int j = 0; j < i % 7 * 3; j++) data.push_back(float(i + j));
    }
    const auto* bytes = reinterpret_cast<const char*>(data.data());
    const int64_t total = int64_t(data.size()) * 4, half = total / 2 + (total > 2);
    out.write(bytes, half);  // pieces need not end where tensors do
    out.write(bytes + half, total - half);
    verify_file(dir / "f", out.finish());
    const SafetensorsReader in(dir / "f");
    ASSERT_EQ(in.names().size(), size_t(count));
    EXPECT_EQ(in.metadata().at("format"), "pt");
    for (int i = 0; i < count; i++) {
      const TensorInfo& info = in.info(cat("layer.", i));
      EXPECT_EQ(info.shape, (std::vector<int64_t>{i % 7, 3}));
      EXPECT_EQ(info.numel(), i % 7 * 3);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(in.data(info.name)) % 4, 0u);
      std::vector<float> got(size_t(info.numel()) + 1);
      read_floats(in, info.name, got.data());
      for (int j = 0; j < i % 7 * 3; j++) EXPECT_EQ(got[size_t(j)], float(i + j));
    }
  }
}

TEST(Safetensors, BytesAreTheFormats) {
  const TempDir dir;
  SafetensorsWriter out(dir / "f");
  out.declare("b", DType::F32, {});
  out.declare("a", DType::I8, {3});
  const float one_half = 0.5f;
  out.write(&one_half, 4);
  out.write("xyz", 3);
  out.finish();
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":{"data_offsets":[4,7],"dtype":"I8","shape":[3]},)"
      R"("b":{"data_offsets":[0,4],"dtype":"F32","shape":[]}})";
  const std::string padded = header + std::string((8 - header.size() % 8) % 8, ' ');
  EXPECT_EQ(read_file(dir / "f"), file_of(padded, std::string("\0\0\0\x3f", 4) + "xyz"));
  EXPECT_EQ(SafetensorsReader(dir / "f").names(),
            (std::vector<std::string>{"b", "a"}));  // file order
}

TEST(Safetensors, WriterRefusesMistakesOfTheProgram) {
  const TempDir dir;
  {
    SafetensorsWriter out(dir / "f");
    out.declare("a", DType::BF16, {2});
    EXPECT_THROW(out.declare("a", DType::BF16, {2}), std::logic_error);
    EXPECT_THROW(out.declare("__metadata__", DType::BF16, {2}), std::logic_error);
    EXPECT_THROW(out.declare("wide", DType::F32, {2}), std::logic_error);
    EXPECT_THROW(out.declare("negative", DType::U8, {-1}), std::logic_error);
  }
  SafetensorsWriter out(dir / "f");
  out.declare("a", DType::BF16, {2});
  EXPECT_THROW(out.write("12345", 5), std::logic_error);
  out.write("12", 2);
  EXPECT_THROW(out.declare("b", DType::U8, {1}), std::logic_error);
  EXPECT_THROW(out.finish(), std::logic_error);
}

TEST(Safetensors, ReadsRowsOfEveryFloatTypeUnaligned) {
  // A header of odd length leaves all data unaligned.
  std::string header =
      R"({"f":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},)"
      R"("h":{"dtype":"F16","shape":[2,1],)"
      R"("data_offsets":[24,28]},"b":{"dtype":"BF16","shape":[2],"data_offsets":[28,32]},)"
      R"("d":{"dtype":"F64","shape":[],"data_offsets":[32,40]},"m":{"dtype":"BOOL","shape":[1],)"
      R"("data_offsets":[40,41]}})";
  if (header.size() % 2 == 0) header += " ";
  const float f[] = {1, 2, 3, 4, 5, 6};
  const uint16_t h[] = {0x3C00, 0x0001}, b[] = {0x3F80, 0xC000};
  const double d = 0.1;
  std::string data(41, '\1');
  std::memcpy(data.data(), f, 24);
  std::memcpy(data.data() + 24, h, 4);
  std::memcpy(data.data() + 28, b, 4);
  std::memcpy(data.data() + 32, &d, 8);
  const std::string file = file_of(header, data);
  const SafetensorsReader in = parse(file);
  float out[6] = {};
  read_floats(in, "f", out, 1);
  EXPECT_EQ(std::vector(out, out + 6), (std::vector<float>{3, 4, 5, 6, 0, 0}));
  read_floats(in, "f", out, 2, 1);
  EXPECT_EQ(std::vector(out, out + 3), (std::vector<float>{5, 6, 5}));
  read_floats(in, "h", out);
  EXPECT_EQ(std::vector(out, out + 2), (std::vector<float>{1, 0x1p-24f}));
  read_floats(in, "b", out);
  EXPECT_EQ(std::vector(out, out + 2), (std::vector<float>{1, -2}));
  read_floats(in, "d", out);
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_CONTAINS(error_of([&] { read_floats(in, "m", out); }),
                  "\"m\": expected F32, BF16, F16 or F64, found U8");
  EXPECT_CONTAINS(error_of([&] { in.info("none"); }), "expected a tensor \"none\"");
  EXPECT_THROW(read_floats(in, "f", out, 2, 2), std::logic_error);
}

TEST(Safetensors, RefusesDamagedHeaders) {
  EXPECT_CONTAINS(refusal("abc"),
                  "m.safetensors: not a safetensors file: expected at least 10 bytes, found 3");
  EXPECT_CONTAINS(refusal(std::string(1000, '\xff')),
                  "expected a header of at most 100000000 bytes");
  std::string huge = file_of("{}");
  huge[3] = 1;  // claims 16 MiB
  EXPECT_CONTAINS(refusal(huge), "expected a header of 16777218 bytes, found a file of 10 bytes");
  EXPECT_CONTAINS(refusal(file_of("not json")), "expected a JSON object at byte 8");
  EXPECT_CONTAINS(refusal(file_of("{\"a\":")), "m.safetensors: header:1:");
  EXPECT_CONTAINS(refusal(file_of("{\"a\":1}")),
                  "tensor \"a\": expected an object with \"dtype\", found 1");
  EXPECT_CONTAINS(refusal(file_of("{\"__metadata__\":{\"a\":1}}")), "expected a string, found 1");
  EXPECT_CONTAINS(refusal(file_of("{\"__metadata__\":[]}")), "expected an object of strings");
  EXPECT_TRUE(parse(file_of("{}")).names().empty());
  EXPECT_TRUE(parse(file_of("{\"__metadata__\":{}}")).names().empty());
}

TEST(Safetensors, RefusesWrongTensors) {
  const std::string data(8, 'x');
  EXPECT_NO_THROW(parse(file_of(one("F32", "[2]", "[0,8]"), data)));
  EXPECT_CONTAINS(refusal(file_of(one("F8_E4M3", "[8]", "[0,8]"), data)),
                  "element type \"F8_E4M3\" is not one of");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[0,9]"), data)),
                  "expected its bytes within [0,8), found [0,9)");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[8,0]"), data)), "found [8,0)");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[-8,0]"), data)), "found [-8,0)");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[0,18446744073709551615]"), data)),
                  "expected a list");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[0]"), data)), "expected 2 numbers, found 1");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[3]", "[0,8]"), data)),
                  "expected 12 bytes for F32[3], found 8");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[-2]", "[0,8]"), data)),
                  "its shape [-2] is negative or too large");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[4294967296,4294967296]", "[0,0]"))),
                  "negative or too large");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2.0]", "[0,8]"), data)), "expected a list");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[2]", "[0,8]"), data + "yyy")),
                  "expected 8 bytes of data after the header, found 11");
  EXPECT_CONTAINS(refusal(file_of(one("F32", "[1]", "[4,8]"), data)),
                  "bytes before it belong to no tensor");
  const std::string entry = R"(:{"dtype":"U8","shape":[5],"data_offsets":)";
  EXPECT_CONTAINS(refusal(file_of("{\"a\"" + entry + "[0,5]},\"b\"" + entry + "[3,8]}}", data)),
                  "\"b\": expected at byte 5 of the data, found at 3: it overlaps");
  EXPECT_CONTAINS(refusal(file_of("{\"a\"" + entry + "[0,5]},\"a\"" + entry + "[0,5]}}", data)),
                  "\"a\" stands twice");
}

TEST(Safetensors, RecognisesOtherFiles) {
  EXPECT_CONTAINS(refusal("\x1f\x8b\x08" + std::string(50, '\1')), "it looks like a gzip file");
  EXPECT_CONTAINS(refusal("\n <!DOCTYPE html><html>404</html>"), "it looks like an HTML page");
  EXPECT_CONTAINS(refusal("\x80\x02" + std::string(50, '\1')), "it looks like a Python pickle");
  EXPECT_CONTAINS(refusal("PK\x03\x04" + std::string(50, '\1')), "PyTorch pickle");
  EXPECT_CONTAINS(refusal("GGUF" + std::string(50, '\1')), "it looks like a GGUF file");
  EXPECT_CONTAINS(refusal("{\"weight_map\": {}}"), "it looks like a JSON file");
  EXPECT_CONTAINS(refusal("version https://git-lfs.github.com/spec/v1\n"), "Git LFS pointer");
  const TempDir dir;
  write_file_atomic(dir / "empty", "");
  EXPECT_CONTAINS(error_of([&] { SafetensorsReader(dir / "empty"); }), "the file is empty");
}

TEST(Safetensors, MutatedHeadersOnlyThrowErrors) {
  const TempDir dir;
  SafetensorsWriter out(dir / "f");
  out.declare("x.weight", DType::F32, {4, 3});
  out.declare("y", DType::BF16, {5});
  out.declare("z", DType::I8, {0, 7});
  out.write(std::string(58, 'd').data(), 58);
  out.finish();
  const std::string good = read_file(dir / "f");
  const uint64_t header = good.size() - 58;
  const PhiloxStream random(1, Purpose::test);
  int accepted = 0;
  uint64_t draw = 0;
  for (int trial = 0; trial < 20'000; trial++) {
    std::string bad = good;
    for (uint32_t n = 1 + random.bits(draw++) % 3; n > 0 && !bad.empty(); n--) {
      const size_t at = random.bits(draw++) % header;
      const uint32_t value = random.bits(draw++);
      switch (random.bits(draw++) % 5) {
        case 0: bad[at % bad.size()] = char(value); break;
        case 1: bad[at % bad.size()] = "0123456789-[]{}\",:.eE"[value % 21]; break;
        case 2: bad.erase(at % bad.size(), 1 + value % 8); break;
        case 3: bad.insert(at % bad.size(), bad.substr(value % bad.size(), 1 + value % 16)); break;
        default: bad.resize(1 + at % bad.size());
      }
    }
    try {
      const SafetensorsReader in = parse(bad);
      float room[4096];
      for (const TensorInfo& t : in.tensors())  // what is accepted must also be readable
        if (t.dtype == DType::F32 || t.dtype == DType::BF16) read_floats(in, t.name, room);
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 10'000);  // letters of names and the like may change
}

}  // namespace
}  // namespace loqal
