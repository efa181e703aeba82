// Shared by the data tests: a temporary folder, hand-written shards, and errors as text.
#pragma once
#include <gtest/gtest.h>
#include <stdlib.h>
#include <zlib.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace loqal {

/// A folder of its own for each test, removed afterwards.
class DataTest : public testing::Test {
 protected:
  DataTest() {
    std::string name = (std::filesystem::temp_directory_path() / "loqal_XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    dir_ = name;
  }
  ~DataTest() override { std::filesystem::remove_all(dir_); }

  std::string path(const std::string& name) const { return (dir_ / name).string(); }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  std::string read(const std::string& name) const {
    std::ostringstream out;
    out << std::ifstream(path(name), std::ios::binary).rdbuf();
    return out.str();
  }
  /// Names of all files in the folder, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(dir_))
      out.push_back(entry.path().filename().string());
    std::sort(out.begin(), out.end());
    return out;
  }

  std::filesystem::path dir_;
};

/// The message (and hint) of the loqal::Error that `body` throws; "" if it throws none.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return std::string(e.what()) + " / " + e.hint;
  }
  return "";
}

inline std::string gzip(const std::string& text) {
  z_stream z = {};
  deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&z, text.size()) + 64, '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = uInt(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = uInt(out.size());
  deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

/// A shard as llm.c writes it, from the format's own constants and not from our writer: header
/// words 0 to 2, more words if given (word, value), then the ids.
template <class Id>
std::string llmc_shard(const std::vector<Id>& ids,
                       const std::vector<std::pair<int, int32_t>>& words = {}) {
  int32_t header[256] = {sizeof(Id) == 2 ? 20240520 : 20240801, sizeof(Id) == 2 ? 1 : 7,
                         int32_t(ids.size())};
  for (const auto& [word, value] : words) header[word] = value;
  std::string out(1024 + ids.size() * sizeof(Id), '\0');
  std::memcpy(out.data(), header, 1024);
  if (!ids.empty()) std::memcpy(out.data() + 1024, ids.data(), ids.size() * sizeof(Id));
  return out;
}

/// GPT-2's spelling of a byte (its bytes_to_unicode), built from the listed ranges of the original.
inline std::string spelling(int byte) {
  std::vector<bool> printable(256, false);
  for (int b = '!'; b <= '~'; b++) printable[size_t(b)] = true;
  for (int b = 0xA1; b <= 0xAC; b++) printable[size_t(b)] = true;
  for (int b = 0xAE; b <= 0xFF; b++) printable[size_t(b)] = true;
  int c = byte;
  if (!printable[size_t(byte)]) {
    c = 256;
    for (int b = 0; b < byte; b++) c += !printable[size_t(b)];
  }
  if (c < 0x80) return std::string(1, char(c));
  return {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
}

/// 0, 1, ... count - 1: every token tells its place.
inline std::vector<uint16_t> distinct_ids(int first, int count) {
  std::vector<uint16_t> ids(size_t(count), 0);
  for (int i = 0; i < count; i++) ids[size_t(i)] = uint16_t(first + i);
  return ids;
}

}  // namespace loqal

/// Each of the substrings occurs in the error's text.
#define EXPECT_ERROR(statement, ...)                                                  \
  do {                                                                                \
    const std::string message = ::loqal::error_of([&] { statement; });                \
    EXPECT_NE(message, "") << #statement;                                             \
    for (const std::string& part : std::vector<std::string>{__VA_ARGS__})             \
      EXPECT_NE(message.find(part), std::string::npos) << part << " in: " << message; \
  } while (0)
