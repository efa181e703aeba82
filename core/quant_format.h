// Block-quantized matrices: how many bytes they take and where codes and scales lie in them. A
// matrix is flattened row by row and cut into blocks of consecutive elements, across row ends; the
// last one may be shorter. A quantized weight is one run of bytes, the same on all devices:
//
//   int8    int8 code [numel]          fp32 scale [blocks]              value = code * scale
//   nf4     two codes a byte, the      uint8 absmax code [blocks]       value = nf4[code] * absmax
//           first in the high nibble   fp32 absmax of these [groups]    absmax = map[c] * group
//                                      fp32 offset                              + offset
//
// Each part begins at a multiple of 64 bytes, but offset follows the group scales. A group is 256
// blocks. NF4 is bitsandbytes' (Dettmers et al. 2023, QLoRA): 16 quantiles of a normal
// distribution, and absmax quantized once more with the signed dynamic 8-bit map.
#pragma once
#include <cstdint>

#include "core/tensor.h"

namespace loqal {

struct QuantFormat {
  enum class Kind { none, int8, nf4 };
  static constexpr int64_t kGroup = 256;  ///< blocks that share one scale of their scales

  Kind kind = Kind::none;
  int64_t block = 0;  ///< elements; int8: 64, 128 or 256; nf4: 64

  explicit operator bool() const { return kind != Kind::none; }
  int64_t blocks(int64_t numel) const { return (numel + block - 1) / block; }
  int64_t groups(int64_t numel) const { return (blocks(numel) + kGroup - 1) / kGroup; }
  /// Bytes from the start to the scales (int8) or absmax codes (nf4).
  int64_t scales_at(int64_t numel) const {
    return padded(kind == Kind::nf4 ? (numel + 1) / 2 : numel);
  }
  /// nf4: bytes from the start to the group scales; the offset follows the last of them.
  int64_t group_scales_at(int64_t numel) const { return scales_at(numel) + padded(blocks(numel)); }
  /// All bytes of a matrix; 0 without quantization.
  int64_t bytes(int64_t numel) const {
    if (kind == Kind::none) return 0;
    if (kind == Kind::int8) return scales_at(numel) + padded(4 * blocks(numel));
    return group_scales_at(numel) + padded(4 * (groups(numel) + 1));
  }

 private:
  static int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }
};

/// "none", "int8-128", "nf4-64".
std::string str(const QuantFormat& format);

enum class Rounding { nearest, stochastic };

/// A view of a quantized matrix [rows, cols] in somebody else's memory: format.bytes(numel()) of
/// it, 64-byte aligned.
struct QTensor {
  void* data = nullptr;
  QuantFormat format;
  int64_t rows = 0, cols = 0;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return rows * cols; }
  int64_t bytes() const { return format.bytes(numel()); }
  Tensor blob() const { return {data, DType::U8, 1, bytes()}; }  ///< for checkpoints and copies
  /// F32 [1, n] of which every value is a linear function: times c, the whole matrix is times c.
  Tensor scales() const {
    const bool nf4 = format.kind == QuantFormat::Kind::nf4;
    return {static_cast<char*>(data) +
                (nf4 ? format.group_scales_at(numel()) : format.scales_at(numel())),
            DType::F32, 1, nf4 ? format.groups(numel()) + 1 : format.blocks(numel())};
  }
};

}  // namespace loqal
