// cuBLASLt's functions, those that CudaOps calls, on the CPU's matrix product.
#include <cublasLt.h>

#include <array>
#include <vector>

#include "ops/cpu/gemm.h"
#include "test/cuda_emulation/device.h"

using namespace loqal;
using namespace loqal::emulation;

namespace {

struct Product {
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  cudaDataType_t bias_type = CUDA_R_32F;
};

struct Layout {
  DType type;
  int64_t rows, cols, ld;  // column-major
};

struct Preference {
  uint64_t workspace = 0;
  std::array<uint32_t, 4> alignment = {256, 256, 256, 256};  // of A, B, C, D: the library's default
};

Product& product_of(cublasLtMatmulDesc_t d) { return *reinterpret_cast<Product*>(d); }
const Layout& layout_of(cublasLtMatrixLayout_t l) { return *reinterpret_cast<const Layout*>(l); }
Preference& preference_of(cublasLtMatmulPreference_t p) {
  return *reinterpret_cast<Preference*>(p);
}

bool get_type(cudaDataType_t type, DType& out) {
  out = type == CUDA_R_16BF ? DType::BF16 : DType::F32;
  return type == CUDA_R_16BF || type == CUDA_R_32F;
}

float read(const void* data, DType type, int64_t i) {
  return type == DType::BF16 ? to_float(static_cast<const bf16*>(data)[i])
                             : static_cast<const float*>(data)[i];
}
void write(void* data, DType type, int64_t i, float value) {
  if (type == DType::BF16) static_cast<bf16*>(data)[i] = to_bf16(value);
  else static_cast<float*>(data)[i] = value;
}

bool is_aligned(const void* data, const Layout& l, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0 &&
         uint64_t(l.ld) * size_of(l.type) % std::min<uint64_t>(bytes, 16) == 0;
}

template <class T>
cublasStatus_t take(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

extern "C" {

const char* cublasLtGetStatusString(cublasStatus_t status) {
  return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_INVALID_VALUE";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<char*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete &product_of(d);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  Product& p = product_of(d);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return take(p.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return take(p.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return take(p.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return take(p.bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return take(p.bias_type, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
  DType held;
  if (!get_type(type, held) || ld < int64_t(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  *l = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{held, int64_t(rows), int64_t(cols), ld});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete &layout_of(l);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete &preference_of(p);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t bytes) {
  Preference& preference = preference_of(p);
  uint32_t reduction_schemes = 0;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return take(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return take(reduction_schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return take(preference.alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return take(preference.alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return take(preference.alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(preference.alignment[3], value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

// The "algorithm" is what was promised of the operands; cublasLtMatmul checks it.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int requested,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  if (requested < 1) return CUBLAS_STATUS_INVALID_VALUE;
  // Libraries refuse the epilogue for such shapes (PyTorch's addmm avoids it for them).
  if (product_of(product).epilogue == CUBLASLT_EPILOGUE_BIAS &&
      (layout_of(d).rows == 1 || layout_of(d).cols == 1))
    return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  for (size_t i = 0; i < 4; i++) results[0].algo.data[i] = preference_of(preference).alignment[i];
  results[0].algo.data[4] = preference_of(preference).workspace;
  *count = 1;
  return CUBLAS_STATUS_SUCCESS;
}

// Column-major matrices are the transposes of row-major ones with the same bytes: here all are read
// as such, D' = op(B') op(A').
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t d, const void* alpha,
                              const void* A, cublasLtMatrixLayout_t a, const void* B,
                              cublasLtMatrixLayout_t b, const void* beta, const void* C,
                              cublasLtMatrixLayout_t c, void* D, cublasLtMatrixLayout_t result,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Product p = product_of(d);
  const Layout la = layout_of(a), lb = layout_of(b), lc = layout_of(c), ld = layout_of(result);
  const bool ta = p.transpose_a == CUBLAS_OP_T, tb = p.transpose_b == CUBLAS_OP_T;
  const int64_t m = ld.rows, n = ld.cols, k = ta ? la.rows : la.cols;
  const bool shapes = (ta ? la.cols : la.rows) == m && (tb ? lb.cols : lb.rows) == k &&
                      (tb ? lb.rows : lb.cols) == n && lc.rows == m && lc.cols == n;
  const bool types = la.type == lb.type && lc.type == ld.type;
  const bool aligned =
      is_aligned(A, la, algorithm->data[0]) && is_aligned(B, lb, algorithm->data[1]) &&
      is_aligned(C, lc, algorithm->data[2]) && is_aligned(D, ld, algorithm->data[3]);
  DType bias_type = DType::F32;
  if (!get_type(p.bias_type, bias_type) || !shapes || !types || !aligned ||
      workspace_bytes < algorithm->data[4] || !memory().holds(workspace, workspace_bytes) ||
      (p.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p.epilogue != CUBLASLT_EPILOGUE_BIAS) ||
      (p.epilogue == CUBLASLT_EPILOGUE_BIAS && bias_type != ld.type))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const float by = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta);
  enqueue(stream, [=] {
    const Memory::Access access;
    std::vector<float> sums(size_t(m * n));
    cpu::gemm(n, m, k, {B, lb.type, lb.ld, tb}, {A, la.type, la.ld, ta}, sums.data(), m, false);
    for (int64_t j = 0; j < n; j++)
      for (int64_t i = 0; i < m; i++) {
        float value = by * sums[size_t(j * m + i)];
        if (add != 0) value += add * read(C, lc.type, j * lc.ld + i);
        if (p.epilogue == CUBLASLT_EPILOGUE_BIAS) value += read(p.bias, bias_type, i);
        write(D, ld.type, j * ld.ld + i, value);
      }
  });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
