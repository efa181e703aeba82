// Random damage for the tests that feed it to parsers: nothing but loqal::Error may come out (and,
// under `make sanitize`, no bad access). The seed is fixed, so a failure reproduces.
#pragma once
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "core/philox.h"

namespace loqal {

class Damage {
 public:
  uint32_t draw(uint32_t n) { return random_.bits(next_++) % n; }

  /// Some bytes changed, cut, doubled or inserted.
  std::string operator()(std::string bytes) {
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

 private:
  const PhiloxStream random_{2024, Purpose::test};
  uint64_t next_ = 0;
};

/// A folder in memory where there is one: thousands of synced files take minutes on a disk.
struct FastDir {
  std::filesystem::path path;
  FastDir() {
    std::error_code none;
    const bool memory = std::filesystem::is_directory("/dev/shm", none);
    std::string name = (memory ? "/dev/shm" : std::filesystem::temp_directory_path().string()) +
                       "/loqal_fuzz_XXXXXX";
    if (!mkdtemp(name.data())) throw std::runtime_error("mkdtemp failed");
    path = name;
  }
  ~FastDir() { std::filesystem::remove_all(path); }
  FastDir(const FastDir&) = delete;
  FastDir& operator=(const FastDir&) = delete;

  std::string operator/(const std::string& name) const { return (path / name).string(); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path / name, std::ios::binary | std::ios::trunc) << bytes;
  }
};

}  // namespace loqal
