// Memory, device facts, and whole-tensor operations.
#include <malloc.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/gemm.h"
#include "ops/cpu/simd.h"

namespace loqal {

std::unique_ptr<Ops> make_cpu_ops(int threads, bool dry) {
  // GEMM libraries allocate their packing buffers call by call: keep such blocks on the heap
  // instead of mapping and faulting them in again each time. Larger ones, such as a whole embedding
  // on its way in, go back to the system.
  mallopt(M_MMAP_THRESHOLD, 32 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  return std::make_unique<CpuOps>(threads > 0 ? threads : usable_cpus(), dry);
}

std::string CpuOps::description() const {
  return cat("CPU, ", pool_.threads(), pool_.threads() == 1 ? " thread, " : " threads, ",
             cpu::gemm_library());
}

bool CpuOps::has_fast_bf16() const { return cpu::dnnl_multiplies(DType::BF16); }

double CpuOps::peak_flops(DType type) {
  double& peak = peak_[type == DType::BF16];
  if (peak > 0) return peak;
  constexpr int64_t n = 1248;  // no power of two: strides that share cache sets are not the peak
  const int64_t size = int64_t(size_of(type));
  Buffer a = alloc(n * n * size, "workspace"), b = alloc(n * n * size, "workspace"),
         c = alloc(n * n * 4, "workspace");
  const Tensor ta(a.data(), type, n, n), tb(b.data(), type, n, n), tc(c.as<float>(), n, n);
  double spent = 0;  // a sanitized build needs a second for one product
  for (int round = 0; round < 8 && (round < 2 || spent < 0.25); round++) {
    const auto start = std::chrono::steady_clock::now();
    matmul(tc, ta, tb, {.transpose_b = true});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (round > 0) peak = std::max(peak, 2.0 * n * n * n / seconds.count());
    spent += seconds.count();
  }
  return peak;
}

namespace {
constexpr int64_t kHugePage = 2 << 20;
}  // namespace

void* CpuOps::do_alloc(int64_t bytes) {
  if (bytes < 2 * kHugePage) {
    void* data = std::aligned_alloc(64, size_t(bytes + 63) / 64 * 64);
    if (data) std::memset(data, 0, size_t(bytes));
    return data;
  }
  // Large blocks: zero pages from the kernel, huge ones where it has them (fewer faults and TLB
  // misses).
  void* data =
      mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  madvise(data, size_t(bytes), MADV_HUGEPAGE);
  return data;
}

void CpuOps::do_free(void* data, int64_t bytes) {
  if (bytes < 2 * kHugePage) std::free(data);
  else munmap(data, size_t(bytes));
}

void CpuOps::do_upload(const Tensor& dst, const void* host) {
  std::memcpy(dst.data, host, size_t(dst.numel()) * size_of(dst.dtype));
}

void CpuOps::do_download(void* host, const Tensor& src) {
  std::memcpy(host, src.data, size_t(src.numel()) * size_of(src.dtype));
}

void CpuOps::do_fill(const Tensor& y, float value) {
  dispatch(y, [&](auto type) {
    using X = decltype(type);
    for_rows(y.rows, y.cols, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; r++) std::fill_n(y.row<X>(r), y.cols, from_float<X>(value));
    });
  });
}

void CpuOps::do_copy(const Tensor& y, const Tensor& x) {
  dispatch(y, [&](auto y_type) {
    dispatch(x, [&](auto x_type) {
      using Y = decltype(y_type);
      using X = decltype(x_type);
      for_rows(y.rows, y.cols, [&](int64_t first, int64_t last) {
        for (int64_t r = first; r < last; r++)
          simd::map(
              y.cols, [](simd::vf v) { return v; }, y.row<Y>(r), x.row<X>(r));
      });
    });
  });
}

double CpuOps::do_sum_squares(const Tensor& x) { return do_dot(x, x); }

double CpuOps::do_dot(const Tensor& x, const Tensor& y) {
  constexpr int64_t grain = 1 << 16, lanes = 8;
  const float *p = x.as<float>(), *q = y.as<float>();
  std::vector<double> sums(size_t((x.numel() + grain - 1) / grain));
  pool_.chunks(x.numel(), grain, [&](int64_t first, int64_t last) {
    double lane[lanes] = {};
    int64_t i = first;
    for (; i + lanes <= last; i += lanes)
      for (int64_t j = 0; j < lanes; j++) lane[j] += double(p[i + j]) * double(q[i + j]);
    for (; i < last; i++) lane[0] += double(p[i]) * double(q[i]);
    double& sum = sums[size_t(first / grain)];
    for (double v : lane) sum += v;
  });
  double total = 0;
  for (double v : sums) total += v;
  return total;
}

void CpuOps::do_axpby(const Tensor& y, float a, const Tensor& x, float b) {
  const simd::vf va = simd::splat(a), vb = simd::splat(b);
  pool_.chunks(y.numel(), kTaskElements, [&](int64_t first, int64_t last) {
    float* to = y.as<float>() + first;
    const float* from = x.as<float>() + first;
    if (b == 0)
      simd::map(
          last - first, [&](simd::vf xv) { return va * xv; }, to, from);
    else
      simd::map(
          last - first, [&](simd::vf xv, simd::vf yv) { return va * xv + vb * yv; }, to, from, to);
  });
}

}  // namespace loqal
