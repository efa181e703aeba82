// What every kernel file starts from: launches, error checks, views of tensors, 128-bit accesses,
// warp and block reductions, asynchronous copies. CUDA's own syntax for these - <<<>>>, extern
// __shared__, PTX - stands here only, so that one other definition, test/cuda_emulation/, runs the
// same kernels on a CPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "core/tensor.h"

#if !defined(__CUDACC__) && !defined(LOQAL_CUDA_EMULATION)
#error "ops/cuda/ is compiled by nvcc, or on top of test/cuda_emulation/cuda_emulation.h"
#endif

namespace loqal::cuda {

// ---- errors -----------------------------------------------------------------------------------

[[noreturn]] inline void fail_cuda(cudaError_t error, const char* call, const char* file,
                                   int line) {
  cudaGetLastError();  // so that it is not found a second time
  fail(cat(file, ":", line, ": ", call, ": ", cudaGetErrorString(error), " (",
           cudaGetErrorName(error), ")"),
       "CUDA_LAUNCH_BLOCKING=1 shows which kernel it was");
}

/// Throws Error with file, line and CUDA's text.
#define CUDA_CHECK(call)                                                       \
  do {                                                                         \
    if (const cudaError_t error_ = (call); error_ != cudaSuccess) [[unlikely]] \
      ::loqal::cuda::fail_cuda(error_, #call, __FILE__, __LINE__);             \
  } while (0)

// ---- launches ---------------------------------------------------------------------------------

/// A stream, and the line that launches on it.
struct StreamHere {
  StreamHere(cudaStream_t stream_, const char* file_ = __builtin_FILE(),
             int line_ = __builtin_LINE())
      : stream(stream_), file(file_), line(line_) {}
  cudaStream_t stream;
  const char* file;
  int line;
};

#ifdef __CUDACC__
/// kernel<<<grid, block, shared_bytes, stream>>>(arguments...), checked. Grids of size 0 are the
/// caller's to avoid.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            StreamHere here, Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = here.stream;
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  if (error != cudaSuccess) fail_cuda(error, "kernel launch", here.file, here.line);
}

/// T* name: the block's dynamic shared memory, 16-byte aligned.
#define DYN_SMEM(T, name)                                          \
  extern __shared__ __align__(16) unsigned char dynamic_shared_[]; \
  T* const name = reinterpret_cast<T*>(dynamic_shared_)
#else
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            StreamHere here, Arguments&&... arguments) {
  emulation::launch(kernel, grid, block, shared_bytes, here.stream,
                    std::forward<Arguments>(arguments)...);
}
#define DYN_SMEM(T, name) T* const name = static_cast<T*>(::loqal::emulation::dynamic_shared())
#endif

/// More than 48 KiB of shared memory, dynamic and static, has to be asked for, kernel by kernel.
template <class... Parameters>
void allow_shared(void (*kernel)(Parameters...), size_t bytes) {
  if (bytes > (32 << 10))
    CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                    cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
}

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- tensors on the device --------------------------------------------------------------------

/// bf16 as device code knows it; the same bits as loqal::bf16.
using bf16_t = __nv_bfloat16;

/// Rows of a matrix with a stride, as a kernel's parameter.
template <class T>
struct View {
  T* data;
  int64_t ld;
  __device__ T* row(int64_t r) const { return data + r * ld; }
  __device__ explicit operator bool() const { return data != nullptr; }
};

/// The elements of a tensor in the device's type, which the tensor must hold (null stays null).
template <class T>
T* pointer(const Tensor& t) {
  using E = std::remove_const_t<T>;
  static_assert(std::is_same_v<E, bf16_t> || std::is_same_v<E, float> ||
                std::is_same_v<E, int32_t>);
  const DType held = std::is_same_v<E, bf16_t>  ? DType::BF16
                     : std::is_same_v<E, float> ? DType::F32
                                                : DType::I32;
  LOQAL_ASSERT(!t || t.dtype == held, "tensor holds ", name_of(t.dtype));
  return static_cast<T*>(t.data);
}
template <class T>
View<T> view(const Tensor& t) {
  return {pointer<T>(t), t.ld};
}

/// Calls f(X{}) with X = float or bf16_t, the tensor's type.
template <class F>
void dispatch(const Tensor& x, const F& f) {
  if (x.dtype == DType::BF16) f(bf16_t{});
  else f(float{});
}

/// Elements of one 128-bit access.
template <class X>
constexpr int kWide = int(16 / sizeof(X));

/// Whether all rows of all tensors (those that are there) can be read W elements at a time.
inline bool in_packs_of(int W, std::initializer_list<Tensor> tensors) {
  for (const Tensor& t : tensors) {
    const int64_t bytes = std::min<int64_t>(16, W * int64_t(size_of(t.dtype)));
    if (t && (t.cols % W || t.ld * int64_t(size_of(t.dtype)) % bytes ||
              reinterpret_cast<uintptr_t>(t.data) % uintptr_t(bytes)))
      return false;
  }
  return true;
}

/// Calls f with the width of an access as a compile-time number: W where all tensors allow it,
/// else 1. Odd sizes exist: the feed-forward width of Llama 1B is 5461.
template <int W, class F>
void with_width(std::initializer_list<Tensor> tensors, const F& f) {
  if (in_packs_of(W, tensors)) f(std::integral_constant<int, W>{});
  else f(std::integral_constant<int, 1>{});
}

// ---- packs: up to 128 bits in one access ------------------------------------------------------

namespace detail {
template <int Bytes>
struct Word {
  static_assert(Bytes % 16 == 0);
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = uint32_t;
};
template <>
struct Word<2> {
  using type = uint16_t;
};
}  // namespace detail

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16_t x) { return __bfloat162float(x); }
template <class X>
__device__ X from_float(float x) {
  if constexpr (std::is_same_v<X, float>) return x;
  else return __float2bfloat16_rn(x);
}

/// W values on their way through fp32 registers.
template <int W>
struct Floats {
  float v[W];
  __device__ float& operator[](int i) { return v[i]; }
  __device__ float operator[](int i) const { return v[i]; }
};

/// The W elements at p, which must be aligned for accesses of that size (at most 16 bytes each).
template <int W, class X>
__device__ Floats<W> load(const X* p) {
  using U = typename detail::Word<W * sizeof(X)>::type;
  constexpr int count = int(W * sizeof(X) / sizeof(U));
  U words[count];
  X values[W];
  for (int i = 0; i < count; i++) words[i] = reinterpret_cast<const U*>(p)[i];
  std::memcpy(values, words, sizeof words);
  Floats<W> out;
  for (int i = 0; i < W; i++) out.v[i] = to_float(values[i]);
  return out;
}

/// Rounds to X, to nearest even.
template <int W, class X>
__device__ void store(X* p, const Floats<W>& x) {
  using U = typename detail::Word<W * sizeof(X)>::type;
  constexpr int count = int(W * sizeof(X) / sizeof(U));
  U words[count];
  X values[W];
  for (int i = 0; i < W; i++) values[i] = from_float<X>(x.v[i]);
  std::memcpy(words, values, sizeof words);
  for (int i = 0; i < count; i++) reinterpret_cast<U*>(p)[i] = words[i];
}

// ---- one thread for each pack of a matrix -----------------------------------------------------

constexpr int kThreads = 256;  // of a block, where nothing speaks for another number

/// Blocks and threads for rows x packs, to be walked by for_each_pack().
struct PackGrid {
  PackGrid(int64_t rows_, int64_t packs_) : rows(rows_), packs(packs_) {
    block.x = unsigned(std::clamp<int64_t>(ceil_div(packs, 32) * 32, 32, kThreads));
    block.y = kThreads / block.x;
    grid.x = unsigned(ceil_div(packs, block.x));
    grid.y = unsigned(std::min<int64_t>(65535, ceil_div(rows, block.y)));
  }
  bool empty() const { return rows == 0 || packs == 0; }
  dim3 grid, block;
  int64_t rows, packs;
};

/// f(row, pack) for all of the grid.
template <class F>
__device__ void for_each_pack(int64_t rows, int64_t packs, const F& f) {
  const int64_t pack = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  for (int64_t row = int64_t(blockIdx.y) * blockDim.y + threadIdx.y; row < rows;
       row += int64_t(gridDim.y) * blockDim.y)
    f(row, pack);
}

// ---- reductions: fixed trees, so the same bytes every time ------------------------------------

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Larger {  // of bits of floats without their signs: their order
  __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return a > b ? a : b; }
};

/// Over groups of Lanes neighbouring lanes; all of them get the result.
template <int Lanes = 32, class T, class Op>
__device__ T warp_reduce(T x, Op op) {
  for (int step = Lanes / 2; step > 0; step /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
template <class T>
__device__ T warp_sum(T x) {
  return warp_reduce(x, Sum());
}

/// Over all threads of a one-dimensional block of whole warps; all of them get the result.
template <class T, class Op>
__device__ T block_reduce(T x, Op op, T neutral) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_reduce(x, op);
  __syncthreads();  // the previous call's result may still be read
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  return warp_reduce(lane < warps ? of_warp[lane] : neutral, op);
}

// ---- asynchronous copies (cp.async, sm_80) ----------------------------------------------------

/// 16 bytes from global to shared memory, both aligned; `bytes` (0 or 16) are read, the rest is
/// zero. Nothing is there before async_wait and a barrier.
__device__ inline void async_copy(void* to, const void* from, int bytes) {
#ifdef __CUDACC__
  const unsigned address = unsigned(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(bytes)
               : "memory");
#else
  emulation::async_copy({to, from, bytes}, {__FILE__, __LINE__});
#endif
}

/// Ends a group of copies.
__device__ inline void async_commit() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  emulation::async_commit();
#endif
}

/// Waits for all of this thread's groups but the newest Pending.
template <int Pending>
__device__ inline void async_wait() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#else
  for (emulation::AsyncCopy copy; emulation::next_async_copy(Pending, copy);) {
    std::memset(copy.to, 0, 16);
    if (copy.bytes) std::memcpy(copy.to, copy.from, size_t(copy.bytes));
  }
#endif
}

}  // namespace loqal::cuda
