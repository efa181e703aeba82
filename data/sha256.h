// SHA-256 (FIPS 180-4): names tokenizers and shards by their content. Our own 60 lines, because
// the only Debian packages that have it are whole TLS libraries.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace loqal {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void update(const void* data, size_t size);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  Digest digest();  ///< ends the stream: call once, nothing after

 private:
  void compress(const uint8_t* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_;  // the first size_ % 64 bytes wait for the rest of their block
  uint64_t size_ = 0;              // bytes so far
};

std::string to_hex(const Sha256::Digest& digest);  ///< 64 lower-case digits
std::string to_hex(uint64_t x);                    ///< 16 lower-case digits
std::string sha256_file(const std::string& path);  ///< hex digest of a file; Error if unreadable

}  // namespace loqal
