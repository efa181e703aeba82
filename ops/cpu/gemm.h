// One-thread matrix products, the building block of CpuOps::matmul: op(A) op(B) into an fp32 C.
// Two implementations behind one function: oneDNN and a built-in kernel.
#pragma once
#include <cstdint>
#include <string>

#include "core/dtype.h"

namespace loqal::cpu {

struct GemmOperand {
  const void* data;
  DType dtype;     ///< F32 or BF16
  int64_t ld;      ///< stride between stored rows
  bool transpose;  ///< the stored matrix is read transposed
};

/// C[m,n] F32 (row stride ldc) (+)= op(A)[m,k] op(B)[k,n] on the calling thread, fp32 sums. A and B
/// of one type. Meant for panels of a few hundred rows and columns: the built-in kernel packs all
/// of m and n. same_a: m, k and A are those of this thread's call before, and not packed again.
void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
          int64_t ldc, bool accumulate, bool same_a = false);

std::string gemm_library();  ///< "oneDNN 2.6.3" or "built-in GEMM"

/// Whether oneDNN is here and the better choice for this type. F32: where there is AVX-512 (with
/// AVX2 alone the built-in kernel is as fast, and faster where A is transposed). BF16: where the
/// CPU multiplies it; the built-in kernel widens it to F32.
bool dnnl_multiplies(DType type);
void dnnl_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
               float* c, int64_t ldc, bool accumulate);

}  // namespace loqal::cpu
