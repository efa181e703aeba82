// Each kernel here has one planted bug, switched on by a template argument, and a test that the
// emulation finds it - in the build that can - and has nothing to say without it. The table of what
// finds what is in doc/cuda.md.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ops/cuda/device.cuh"

#ifdef LOQAL_EMULATION_TSAN
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace loqal::cuda {
namespace {

using emulation::kAsan;
using emulation::KernelError;
using emulation::kTsan;
using emulation::Order;

/// Device memory with `n` values.
class Floats1 {
 public:
  explicit Floats1(int n, float value = 0) : host_(size_t(n), value) {
    cudaMalloc(&data_, size_t(n) * 4);
    cudaMemcpyAsync(data_, host_.data(), size_t(n) * 4, cudaMemcpyHostToDevice, nullptr);
  }
  ~Floats1() { cudaFree(data_); }
  float* get() const { return data_; }
  std::vector<float> read() {
    cudaMemcpyAsync(host_.data(), data_, host_.size() * 4, cudaMemcpyDeviceToHost, nullptr);
    cudaStreamSynchronize(nullptr);
    return host_;
  }

 private:
  float* data_ = nullptr;
  std::vector<float> host_;
};

class Planted : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void TearDown() override { emulation::options() = {}; }

  /// Whether any of some thread orders gives another result than `expected`.
  static bool some_order_differs(const std::function<float()>& result, float expected) {
    bool differs = false;
    for (const Order order : {Order::ascending, Order::descending, Order::random, Order::random})
      for (uint64_t seed = 1; seed <= 5; seed++) {
        emulation::options().order = order;
        emulation::options().seed = seed;
        differs = differs || !(result() == expected);
      }
    return differs;
  }
  /// A race on shared memory: orders find it; TSan too, by ending the process.
  static void expect_race(const std::function<float()>& wrong, const std::function<float()>& right,
                          float expected) {
    if (kTsan) EXPECT_DEATH(wrong(), "data race");
    else EXPECT_TRUE(some_order_differs(wrong, expected));
    EXPECT_FALSE(some_order_differs(right, expected));
  }
  /// A race that every order hides, because threads run one after the other.
  static void expect_tsan_only(const std::function<float()>& wrong,
                               const std::function<float()>& right) {
    right();
    if (!kTsan) GTEST_SKIP() << "found by the ThreadSanitizer build only";
    EXPECT_DEATH(wrong(), "data race");
  }
  static std::string error_of(const std::function<void()>& call) {
    try {
      call();
    } catch (const KernelError& e) {
      return e.what();
    }
    return "";
  }
};

// ---- missing barriers
// ----------------------------------------------------------------------------

template <bool kBug>
__global__ void read_after_write(float* y) {
  __shared__ float x[64];
  x[threadIdx.x] = float(threadIdx.x);
  if (!kBug) __syncthreads();
  y[threadIdx.x] = x[63 - threadIdx.x];
}

template <bool kBug>
float run_read_after_write() {
  Floats1 y(64);
  launch(read_after_write<kBug>, 1, 64, 0, nullptr, y.get());
  float wrong = 0;
  for (int i = 0; i < 64; i++) wrong += y.read()[size_t(i)] != float(63 - i);
  return wrong;
}

TEST_F(Planted, MissingBarrierReadAfterWrite) {
  expect_race(run_read_after_write<true>, run_read_after_write<false>, 0);
}

// A tile loop that overwrites the tile while others still read it.
template <bool kBug>
__global__ void write_after_read(float* y) {
  __shared__ float tile[64];
  float sum = 0;
  for (int i = 0; i < 4; i++) {
    tile[threadIdx.x] = float(i);
    __syncthreads();
    sum += tile[(threadIdx.x + 1) % 64];
    if (!kBug) __syncthreads();
  }
  y[threadIdx.x] = sum;
}

template <bool kBug>
float run_write_after_read() {
  Floats1 y(64);
  launch(write_after_read<kBug>, 1, 64, 0, nullptr, y.get());
  float sum = 0;
  for (const float v : y.read()) sum += v;
  return sum;
}

TEST_F(Planted, MissingBarrierWriteAfterRead) {
  expect_race(run_write_after_read<true>, run_write_after_read<false>, 64 * 6);
}

template <bool kBug>
__global__ void exchange_in_warp(float* y) {
  __shared__ float x[32];
  x[threadIdx.x] = float(threadIdx.x + 1);
  if (!kBug) __syncwarp();
  y[threadIdx.x] = x[threadIdx.x ^ 1];
}

template <bool kBug>
float run_exchange_in_warp() {
  Floats1 y(32);
  launch(exchange_in_warp<kBug>, 1, 32, 0, nullptr, y.get());
  float wrong = 0;
  for (unsigned i = 0; i < 32; i++) wrong += y.read()[i] != float((i ^ 1) + 1);
  return wrong;
}

TEST_F(Planted, MissingSyncwarp) {
  expect_race(run_exchange_in_warp<true>, run_exchange_in_warp<false>, 0);
}

// ---- what only TSan sees
// -------------------------------------------------------------------------

// All lanes meet in the shuffle, but memory is not ordered by it.
template <bool kBug>
__global__ void shuffle_as_barrier(float* y) {
  __shared__ float x[32];
  x[threadIdx.x] = 1;
  const float ignored = __shfl_xor_sync(0xffffffffu, 0.0f, 1);
  if (!kBug) __syncwarp();
  y[threadIdx.x] = x[threadIdx.x ^ 1] + ignored;
}

template <bool kBug>
float run_shuffle_as_barrier() {
  Floats1 y(32);
  launch(shuffle_as_barrier<kBug>, 1, 32, 0, nullptr, y.get());
  return y.read()[0];
}

TEST_F(Planted, ShuffleUsedAsBarrier) {
  expect_tsan_only(run_shuffle_as_barrier<true>, run_shuffle_as_barrier<false>);
}

template <bool kBug>
__global__ void add_across_blocks(float* y) {
  if (threadIdx.x == 0) y[kBug ? 0 : blockIdx.x] += 1;
}

template <bool kBug>
float run_add_across_blocks() {
  Floats1 y(64);
  launch(add_across_blocks<kBug>, 64, 32, 0, nullptr, y.get());
  return y.read()[0];
}

TEST_F(Planted, PlainAddAcrossBlocks) {
  expect_tsan_only(run_add_across_blocks<true>, run_add_across_blocks<false>);
}

// Shifts by one: in place a thread may overwrite what its neighbour has yet to read.
__global__ void shift(float* y, const float* x, int n) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i + 1 < n) y[i] = x[i + 1];
}

template <bool kBug>
float run_shift() {
  Floats1 x(128, 3), y(128);
  launch(shift, 2, 64, 0, nullptr, kBug ? x.get() : y.get(), x.get(), 128);
  return y.read()[0];
}

TEST_F(Planted, InPlaceHazard) { expect_tsan_only(run_shift<true>, run_shift<false>); }

// ---- out of bounds, alignment
// --------------------------------------------------------------------

__global__ void static_shared_overrun(float* y, int n) {
  __shared__ float x[32];
  float* p = x;  // or UBSan sees it first
  for (int i = 0; i < n; i++) p[i] = 1;
  y[0] = p[n - 1];
}
__global__ void dynamic_shared_overrun(float* y, int n) {
  DYN_SMEM(float, x);
  for (int i = 0; i < n; i++) x[i] = 1;
  y[0] = x[n - 1];
}
__global__ void global_overrun(float* y, int n) {
  for (int i = 0; i < n; i++) y[i] = 1;
}

TEST_F(Planted, OutOfBounds) {
  Floats1 y(32);
  const auto run = [&](auto kernel, int n) { launch(kernel, 1, 1, 32 * 4, nullptr, y.get(), n); };
  run(static_shared_overrun, 32);
  run(dynamic_shared_overrun, 32);
  run(global_overrun, 32);
  if (!kAsan) GTEST_SKIP() << "found by the AddressSanitizer build only";
  EXPECT_DEATH(run(static_shared_overrun, 33), "global-buffer-overflow");
  EXPECT_DEATH(run(dynamic_shared_overrun, 33), "heap-buffer-overflow");
  EXPECT_DEATH(run(global_overrun, 33), "heap-buffer-overflow");
}

__global__ void read_float4(float* y, const float* x) {
  const Floats<4> v = load<4>(x);
  y[0] = v[0] + v[1] + v[2] + v[3];
}

TEST_F(Planted, MisalignedFloat4) {
  Floats1 x(8, 1), y(1);
  launch(read_float4, 1, 1, 0, nullptr, y.get(), x.get());
  EXPECT_EQ(y.read()[0], 4);
  if (!kAsan) GTEST_SKIP() << "found by the UBSan build only";
  EXPECT_DEATH(launch(read_float4, 1, 1, 0, nullptr, y.get(), x.get() + 1), "misaligned address");
}

// ---- values that are not there yet
// ---------------------------------------------------------------

template <bool kBug>
__global__ void accumulate_in_shared(float* y) {
  DYN_SMEM(float, sums);
  if (!kBug) sums[threadIdx.x] = 0;
  for (int i = 0; i < 3; i++) sums[threadIdx.x] += 1;
  y[threadIdx.x] = sums[threadIdx.x];
}

TEST_F(Planted, DynamicSharedMemoryReadBeforeWritten) {
  Floats1 y(32);
  launch(accumulate_in_shared<true>, 1, 32, 32 * 4, nullptr, y.get());
  EXPECT_TRUE(std::isnan(y.read()[5]));
  launch(accumulate_in_shared<false>, 1, 32, 32 * 4, nullptr, y.get());
  EXPECT_EQ(y.read()[5], 3);
}

TEST_F(Planted, FreshDeviceMemoryIsNaN) {
  float *p = nullptr, host = 0;
  cudaMalloc(&p, 4);
  cudaMemcpyAsync(&host, p, 4, cudaMemcpyDeviceToHost, nullptr);
  EXPECT_TRUE(std::isnan(host));
  cudaFree(p);
}

template <bool kBug>
__global__ void copy_through_shared(float* y, const float* x) {
  DYN_SMEM(float, tile);
  async_copy(tile + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
  async_commit();
  if (!kBug) async_wait<0>();
  __syncthreads();
  for (int i = 0; i < 4; i++) y[4 * threadIdx.x + i] = tile[(4 * threadIdx.x + i + 4) % 128];
  if (kBug) async_wait<0>();
}

float run_copy_without_wait() {
  Floats1 x(128, 5), y(128);
  launch(copy_through_shared<true>, 1, 32, 128 * 4, nullptr, y.get(), x.get());
  float sum = 0;
  for (const float v : y.read()) sum += v;
  return sum;
}

TEST_F(Planted, MissingAsyncWait) {
  for (const Order order : {Order::ascending, Order::descending, Order::random}) {
    emulation::options().order = order;
    if (kTsan) EXPECT_DEATH(run_copy_without_wait(), "data race");
    else EXPECT_TRUE(std::isnan(run_copy_without_wait()));
    Floats1 x(128, 5), y(128);
    launch(copy_through_shared<false>, 1, 32, 128 * 4, nullptr, y.get(), x.get());
    for (const float v : y.read()) ASSERT_EQ(v, 5);
  }
}

__global__ void forgotten_copy(const float* x) {
  DYN_SMEM(float, tile);
  async_copy(tile, x, 16);
  async_commit();
}

TEST_F(Planted, AsyncCopyThatNobodyWaitsFor) {
  Floats1 x(8);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "async copies",
                      error_of([&] { launch(forgotten_copy, 1, 1, 16, nullptr, x.get()); }));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "multiples of 16",
                      error_of([&] { launch(forgotten_copy, 1, 1, 16, nullptr, x.get() + 1); }));
}

// ---- always an error
// -----------------------------------------------------------------------------

__global__ void divergent_barrier() {
  if (threadIdx.x < 8) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void early_exit(int n) {
  if (int(threadIdx.x) >= n) return;
  __syncthreads();
}
__global__ void mask_without_caller() { __syncwarp(0xffffu); }
__global__ void mask_with_ended_lanes(int n) {
  if (int(threadIdx.x) >= n) return;
  __ballot_sync(0xffffffffu, 1);
}
__global__ void different_shuffles() {
  if (threadIdx.x < 16) __shfl_xor_sync(0xffffffffu, 1, 1);
  else __shfl_down_sync(0xffffffffu, 1, 1u);
}
__global__ void barrier_against_shuffle() {
  if (threadIdx.x < 32) __syncthreads();
  else __shfl_sync(0xffffffffu, 1, 0);
  __syncthreads();
}
__global__ void half_a_warp_waits() {
  if (threadIdx.x < 16) __syncwarp();
  else __syncthreads();
}

TEST_F(Planted, DivergenceIsAlwaysAnError) {
  struct Case {
    std::function<void()> run;
    std::vector<std::string> parts;
  };
  const Case cases[] = {
      {[] { launch(divergent_barrier, 1, 64, 0, nullptr); },
       {"divergent __syncthreads", "planted_test.cc:", "threads 0-7: ", "threads 8-63: "}},
      {[] { launch(early_exit, 1, 64, 0, nullptr, 32); }, {"thread (", "__syncthreads", "ended"}},
      {[] { launch(mask_without_caller, 1, 32, 0, nullptr); },
       {"__syncwarp", "thread (16,0,0)", "does not name the caller"}},
      {[] { launch(mask_with_ended_lanes, 1, 32, 0, nullptr, 31); }, {"__ballot_sync", "ended"}},
      {[] { launch(different_shuffles, 1, 32, 0, nullptr); },
       {"lanes of a warp disagree", "__shfl_xor_sync", "__shfl_down_sync"}},
      {[] { launch(half_a_warp_waits, 1, 32, 0, nullptr); },
       {"deadlock", "threads 0-15: __syncwarp (", "threads 16-31: __syncthreads ("}},
      {[] { launch(mask_with_ended_lanes, 1, 48, 0, nullptr, 48); }, {"the warp has not"}}};
  for (const Order order : {Order::ascending, Order::random})
    for (const Case& c : cases) {
      emulation::options().order = order;
      const std::string error = error_of(c.run);
      EXPECT_NE(error, "");
      if (order != Order::ascending) continue;  // which of two mistakes is seen first may differ
      for (const std::string& part : c.parts)
        EXPECT_PRED_FORMAT2(testing::IsSubstring, part, error);
    }
  // Waiting for different things is no mistake as long as all get what they wait for.
  EXPECT_EQ(error_of([] { launch(barrier_against_shuffle, 1, 64, 0, nullptr); }).empty(), false);
  EXPECT_EQ(error_of([] { launch(early_exit, 4, 64, 0, nullptr, 64); }), "");
}

__global__ void nothing() {}

TEST_F(Planted, LaunchLimits) {
  const auto error = [](dim3 grid, dim3 block, size_t shared) {
    return error_of([&] { launch(nothing, grid, block, shared, nullptr); });
  };
  EXPECT_EQ(error(1, 1024, 48 << 10), "");
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "1025 threads", error(1, 1025, 0));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "empty grid", error(0, 32, 0));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "65536", error({1, 65536}, 32, 0));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "dynamic shared", error(1, 32, (48 << 10) + 1));
  allow_shared(nothing, 99 << 10);
  EXPECT_EQ(error(1, 32, 99 << 10), "");
  EXPECT_THROW(allow_shared(nothing, 100 << 10), Error);  // sm_86, 89 and 120 have no more
}

// A kernel's mistake leaves the emulation in order: the next launch is not affected.
TEST_F(Planted, AnErrorDoesNotOutliveItsLaunch) {
  EXPECT_THROW(launch(divergent_barrier, 4, 64, 0, nullptr), KernelError);
  EXPECT_EQ(run_read_after_write<false>(), 0);
}

// ---- streams and memory
// --------------------------------------------------------------------------

__global__ void set_value(float* y, float value) { y[0] = value; }
__global__ void copy_value(float* y, const float* x) { y[0] = x[0]; }

float across_streams(bool wait) {
  cudaStream_t first, second;
  cudaEvent_t done;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreateWithFlags(&done, cudaEventDisableTiming);
  float result = 0;
  {
    Floats1 x(1, 1), y(1, 2);
    x.read(), y.read();  // the uploads are done
    launch(set_value, 1, 1, 0, first, x.get(), 7.0f);
    cudaEventRecord(done, first);
    if (wait) cudaStreamWaitEvent(second, done, 0);
    launch(copy_value, 1, 1, 0, second, y.get(), x.get());
    cudaStreamSynchronize(second);
    result = y.read()[0];
  }
  cudaEventDestroy(done);
  cudaStreamDestroy(first);
  cudaStreamDestroy(second);
  return result;
}

TEST_F(Planted, MissingWaitBetweenStreams) {
  emulation::options().lazy_streams = true;
  EXPECT_EQ(across_streams(false), 1);  // the value before the other stream's work
  EXPECT_EQ(across_streams(true), 7);
}

TEST_F(Planted, HostFollowsADevicePointer) {
  if (kAsan || kTsan) GTEST_SKIP() << "the plain build's test";
  emulation::options().protect_memory = true;
  Floats1 x(4, 3), y(1);
  launch(copy_value, 1, 1, 0, nullptr, y.get(), x.get());
  EXPECT_EQ(y.read()[0], 3);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile float*>(x.get())), "");
}

TEST_F(Planted, CopiesInTheWrongDirection) {
  Floats1 x(4);
  float host[4] = {};
  EXPECT_EQ(cudaMemcpyAsync(host, x.get(), 16, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(x.get(), host, 20, cudaMemcpyHostToDevice, nullptr),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

}  // namespace
}  // namespace loqal::cuda
