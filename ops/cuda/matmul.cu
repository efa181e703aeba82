// Matrix products by cuBLASLt, with bias, residual and accumulation in its epilogue.
//
// cuBLASLt thinks in column-major matrices. A row-major [r, c] matrix with stride ld is the
// column-major [c, r] matrix with the same bytes, its transpose; so C = op(A) op(B) is asked for as
// C^T = op(B)^T op(A)^T: operands exchanged, flags kept, bias along what are now the rows.
#include <memory>

#include "ops/cuda/cublaslt.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/device.cuh"

namespace loqal {

namespace cuda {
namespace {

template <class T, cublasStatus_t (*kDestroy)(T)>
struct Destroy {
  using pointer = T;
  void operator()(T object) const { kDestroy(object); }
};
using Product = std::unique_ptr<void, Destroy<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>>;
using Layout = std::unique_ptr<void, Destroy<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>>;
using Preference =
    std::unique_ptr<void, Destroy<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>>;

cudaDataType_t type_of(const Tensor& t) {
  return t.dtype == DType::BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

Layout layout(const Tensor& t) {
  cublasLtMatrixLayout_t made = nullptr;
  CUBLAS_CHECK(
      cublasLtMatrixLayoutCreate(&made, type_of(t), uint64_t(t.cols), uint64_t(t.rows), t.ld));
  return Layout(made);
}

template <class T>
void set(const Product& product, cublasLtMatmulDescAttributes_t attribute, T value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof value));
}
template <class T>
void set(const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  CUBLAS_CHECK(
      cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
}

/// Bytes, at most 16, that all rows of the matrix are aligned to. The fast kernels want 16.
uint32_t alignment(const Tensor& t) {
  const uint64_t bits =
      reinterpret_cast<uintptr_t>(t.data) | uint64_t(t.ld) * size_of(t.dtype) | 16;
  return uint32_t(bits & (~bits + 1));
}

/// c += x.
template <class X, int W>
__global__ void add_kernel(View<X> c, View<const X> x, int64_t rows, int64_t packs) {
  for_each_pack(rows, packs, [&](int64_t r, int64_t pack) {
    Floats<W> v = load<W>(c.row(r) + pack * W);
    const Floats<W> more = load<W>(x.row(r) + pack * W);
    for (int i = 0; i < W; i++) v[i] += more[i];
    store(c.row(r) + pack * W, v);
  });
}

}  // namespace
}  // namespace cuda

using namespace cuda;

void CudaOps::do_matmul(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulArgs& args) {
  if (c.numel() == 0) return;
  if (!args.accumulate || !args.residual)
    return run_matmul(c, a, b, args.residual ? args.residual : c, args);
  // beta C is either what C holds or the residual; the rare call that wants both pays for a copy.
  const Buffer memory = alloc(c.numel() * int64_t(size_of(c.dtype)), "workspace");
  const Tensor old(memory.data(), c.dtype, c.rows, c.cols);
  do_copy(old, c);
  run_matmul(c, a, b, args.residual, args);
  add(c, old);
}

void CudaOps::add(const Tensor& c, const Tensor& x) {
  dispatch(c, [&](auto type) {
    using X = decltype(type);
    with_width<kWide<X>>({c, x}, [&](auto width) {
      constexpr int W = width;
      const PackGrid g(c.rows, c.cols / W);
      launch(add_kernel<X, W>, g.grid, g.block, 0, stream(), view<X>(c), view<const X>(x), g.rows,
             g.packs);
    });
  });
}

// d = op(a) op(b) + beta c + bias, beta = 1 if there is something to add.
void CudaOps::run_matmul(const Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,
                         const MatmulArgs& args) {
  const float alpha = 1, beta = args.accumulate || args.residual ? 1.0f : 0.0f;
  cublasLtMatmulDesc_t made = nullptr;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F));
  const Product product(made);
  set(product, CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(product, CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  const bool round_bias = args.bias && d.dtype == DType::BF16;
  const int64_t bias_bytes = round_bias ? ceil_div(2 * args.bias.cols, 256) * 256 : 0;
  char* scratch = static_cast<char*>(workspace(kGemmBytes + bias_bytes));
  Tensor bias = args.bias;
  if (bias) {
    // The library adds a bias of C's type only: for bf16 it is rounded first.
    if (round_bias) bias = {scratch + kGemmBytes, DType::BF16, 1, bias.cols};
    if (round_bias) do_copy(bias, args.bias);
    set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.data));
    set(product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(d));
  }
  const Layout left = layout(b), right = layout(a), added = layout(c), result = layout(d);
  const std::array<int64_t, 15> key = {d.rows,
                                       d.cols,
                                       args.transpose_a ? a.rows : a.cols,
                                       a.ld,
                                       b.ld,
                                       c.ld,
                                       d.ld,
                                       int64_t(args.transpose_a) | int64_t(args.transpose_b) << 1 |
                                           int64_t(bool(args.bias)) << 2 | int64_t(beta != 0) << 3 |
                                           int64_t(c.data == d.data) << 4,
                                       int64_t(a.dtype),
                                       int64_t(d.dtype),
                                       alignment(a),
                                       alignment(b),
                                       alignment(c),
                                       alignment(d),
                                       bias ? alignment(bias) : 0};
  auto found = algorithms_.find(key);
  if (found == algorithms_.end()) {
    cublasLtMatmulPreference_t wanted = nullptr;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&wanted));
    const Preference preference(wanted);
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kGemmBytes));
    // Partial sums of a split inner dimension are added in a fixed order, in fp32.
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        uint32_t(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(b));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(a));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(c));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(d));
    cublasLtMatmulHeuristicResult_t best = {};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, product.get(), left.get(), right.get(), added.get(),
                                       result.get(), preference.get(), 1, &best, &count);
    const bool known = status == CUBLAS_STATUS_SUCCESS && count > 0;
    if (!known && !bias)
      fail(cat("cuBLASLt knows no way to multiply op(A) ", str(a), " and op(B) ", str(b), " into ",
               str(d), ": ", cublasLtGetStatusString(status)));
    found = algorithms_.emplace(key, known ? std::optional(best.algo) : std::nullopt).first;
  }
  if (!found->second) {  // a bias with an extent of 1, for example
    MatmulArgs without = args;
    without.bias = {};
    run_matmul(d, a, b, c, without);
    bias.rows = d.rows, bias.ld = 0;  // the same row for all, behind what the product works in
    return add(d, bias);
  }
  CUBLAS_CHECK(cublasLtMatmul(handle_, product.get(), &alpha, b.data, left.get(), a.data,
                              right.get(), &beta, c.data, added.get(), d.data, result.get(),
                              &*found->second, scratch, size_t(kGemmBytes), stream()));
}

}  // namespace loqal
