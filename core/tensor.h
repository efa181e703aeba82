// Tensor: a view of a matrix in somebody else's memory. Every buffer of the program is seen as
// [rows, cols] with a row stride, because that is how layers use it: [B*T, C], [out, in], [1, C].
#pragma once
#include <cstdint>
#include <string>

#include "core/dtype.h"
#include "core/error.h"

namespace loqal {

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::F32;
  int64_t rows = 0, cols = 0;
  int64_t ld = 0;  ///< elements from one row to the next, >= cols

  Tensor() = default;
  Tensor(void* data_, DType dtype_, int64_t rows_, int64_t cols_, int64_t ld_ = 0)
      : data(data_), dtype(dtype_), rows(rows_), cols(cols_), ld(ld_ ? ld_ : cols_) {}
  Tensor(float* p, int64_t rows_, int64_t cols_) : Tensor(p, DType::F32, rows_, cols_) {}
  Tensor(bf16* p, int64_t rows_, int64_t cols_) : Tensor(p, DType::BF16, rows_, cols_) {}

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return rows * cols; }
  bool contiguous() const { return ld == cols || rows <= 1; }

  template <class T>
  T* as() const {
    LOQAL_ASSERT(dtype == dtype_of<T>(), "tensor holds ", name_of(dtype));
    return static_cast<T*>(data);
  }
  template <class T>
  T* row(int64_t r) const {
    return as<T>() + r * ld;
  }

  Tensor row_slice(int64_t first, int64_t count) const {
    return {static_cast<char*>(data) + first * ld * int64_t(size_of(dtype)), dtype, count, cols,
            ld};
  }
  Tensor col_slice(int64_t first, int64_t count) const {
    return {static_cast<char*>(data) + first * int64_t(size_of(dtype)), dtype, rows, count, ld};
  }
};

inline std::string str(const Tensor& t) {
  return cat(name_of(t.dtype), "[", t.rows, ",", t.cols, t.contiguous() ? "" : cat(" ld ", t.ld),
             "]");
}

}  // namespace loqal
