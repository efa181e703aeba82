// Runs .cu files on the CPU. The Makefile includes this header before the first line of each
// (g++ -include); ops/cuda/device.cuh then finds here what nvcc would have built in: thread
// indices, barriers, warp collectives, shared memory, launch(). The CUDA headers are NVIDIA's own,
// and the runtime's functions are defined in device.cc, so that host code runs unchanged.
//
// Emulated are one block after the other on each of a few OS threads, and in a block one thread
// after the other, in an order that a test chooses: a result that depends on it is a bug. Mistakes
// that a GPU answers with silence or a hang are exceptions (KernelError) with file and line.
#pragma once
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <tuple>

#include "test/cuda_emulation/fiber.h"

#define LOQAL_CUDA_EMULATION 1

namespace loqal::emulation {

enum class Order { ascending, descending, random };

/// Set between launches only.
struct Options {
  Order order = Order::ascending;  ///< of threads in a block, and of blocks in a grid
  uint64_t seed = 1;               ///< of random
  bool lazy_streams = false;  ///< work runs only when something waits for it: a missing wait shows
  bool protect_memory = false;  ///< device memory faults outside of kernels and copies; set it
                                ///< before the first cudaMalloc that should
};
Options& options();

/// What a GPU would leave undefined: divergent barriers, wrong masks, deadlocks, launch limits.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ---- what the macros and functions below are made of ------------------------------------------

extern __thread uint3 thread_index, block_index;  // of the thread that runs
extern __thread dim3 block_size, grid_size;

struct Where {
  const char* file;
  int line;
};

enum class Op : uint8_t { shuffle, shuffle_xor, shuffle_down, ballot, sync };

void sync_threads(Where where);
/// Waits for all lanes of the mask; returns what the last of them computed for this one.
uint64_t collective(Op op, unsigned mask, uint64_t value, int parameter, int width, Where where);

/// The block's dynamic shared memory; at first all bytes are 0xFF, which is NaN.
void* dynamic_shared();

struct AsyncCopy {
  void* to;
  const void* from;
  int bytes;  ///< copied; the rest of 16 becomes zero
};
void async_copy(const AsyncCopy& copy, Where where);
void async_commit();
/// The oldest of the thread's copies that belongs to all but the newest `pending` groups.
bool next_async_copy(int pending, AsyncCopy& copy);

struct Launch {
  const void* kernel;
  dim3 grid, block;
  size_t shared_bytes, parameter_bytes;
  cudaStream_t stream;
  std::function<void()> thread;  ///< the kernel with its arguments, for one thread
};
void submit(Launch launch);

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
            cudaStream_t stream, Arguments&&... arguments) {
  std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  submit({reinterpret_cast<const void*>(kernel), grid, block, shared_bytes, sizeof values, stream,
          [kernel, values] { std::apply(kernel, values); }});
}

}  // namespace loqal::emulation

// ---- what nvcc has built in -------------------------------------------------------------------

// Blocks run on several OS threads, each with its own copy of a block's variables. ASan does not
// guard thread-local variables, so there blocks run one after the other and the variables are
// plain.
#undef __shared__
#ifdef LOQAL_EMULATION_ASAN
#define __shared__ static
#else
#define __shared__ static __thread
#endif
#undef __launch_bounds__
#define __launch_bounds__(...)

#define threadIdx (::loqal::emulation::thread_index)
#define blockIdx (::loqal::emulation::block_index)
#define blockDim (::loqal::emulation::block_size)
#define gridDim (::loqal::emulation::grid_size)
template <class T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}

#define LOQAL_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(LOQAL_HERE) { ::loqal::emulation::sync_threads({file, line}); }

inline void __syncwarp(unsigned mask = 0xffffffffu, LOQAL_HERE) {
  ::loqal::emulation::collective(::loqal::emulation::Op::sync, mask, 0, 0, 32, {file, line});
}

namespace loqal::emulation {

template <class T>
T shuffled(Op op, unsigned mask, T value, int parameter, int width, Where where) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = collective(op, mask, bits, parameter, width, where);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace loqal::emulation

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, LOQAL_HERE) {
  using namespace loqal::emulation;
  return shuffled(Op::shuffle, mask, value, lane, width, {file, line});
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, LOQAL_HERE) {
  using namespace loqal::emulation;
  return shuffled(Op::shuffle_xor, mask, value, lanes, width, {file, line});
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, LOQAL_HERE) {
  using namespace loqal::emulation;
  return shuffled(Op::shuffle_down, mask, value, int(delta), width, {file, line});
}
inline unsigned __ballot_sync(unsigned mask, int predicate, LOQAL_HERE) {
  using namespace loqal::emulation;
  return unsigned(collective(Op::ballot, mask, predicate != 0, 0, 32, {file, line}));
}
