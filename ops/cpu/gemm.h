// One-thread matrix products, the building block of CpuOps::matmul: op(A) op(B) into an fp32 C.
// Two implementations behind one function: oneDNN, and a built-in kernel where oneDNN is absent.
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

/// C[m,n] F32 (row stride ldc) (+)= op(A)[m,k] op(B)[k,n] on the calling thread, fp32 sums.
/// BF16 operands are multiplied natively where has_native_bf16(), else widened block by block.
void gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
          int64_t ldc, bool accumulate);

std::string gemm_library();  ///< "oneDNN 2.6.3", or "built-in GEMM (oneDNN absent: slower)"

// The back end of gemm(): what it can do, and the product itself. BF16 only where
// has_native_bf16().
bool has_native_bf16();
bool packs_operands();  ///< false: it reads operands in place, whatever their stride
void native_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                 float* c, int64_t ldc, bool accumulate);

}  // namespace loqal::cpu
