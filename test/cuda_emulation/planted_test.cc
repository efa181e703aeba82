// Planted bugs that show in results, or to a sanitizer: races, out of bounds, values not there yet.
#include "test/cuda_emulation/planted.h"

#ifdef LOQAL_EMULATION_TSAN
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace loqal::cuda {
namespace {

// ---- missing barriers -------------------------------------------------------------------------

template <bool kBug>
__global__ void read_after_write(float* y) {
  __shared__ float x[64];
  x[threadIdx.x] = float(threadIdx.x);
  if (!kBug) __syncthreads();
  y[threadIdx.x] = x[63 - threadIdx.x];
}

template <bool kBug>
float run_read_after_write() {
  DeviceFloats y(64);
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
  DeviceFloats y(64);
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
  DeviceFloats y(32);
  launch(exchange_in_warp<kBug>, 1, 32, 0, nullptr, y.get());
  float wrong = 0;
  for (unsigned i = 0; i < 32; i++) wrong += y.read()[i] != float((i ^ 1) + 1);
  return wrong;
}

TEST_F(Planted, MissingSyncwarp) {
  expect_race(run_exchange_in_warp<true>, run_exchange_in_warp<false>, 0);
}

// ---- what only TSan sees ----------------------------------------------------------------------

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
  DeviceFloats y(32);
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
  DeviceFloats y(64);
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
  DeviceFloats x(128, 3), y(128);
  launch(shift, 2, 64, 0, nullptr, kBug ? x.get() : y.get(), x.get(), 128);
  return y.read()[0];
}

TEST_F(Planted, InPlaceHazard) { expect_tsan_only(run_shift<true>, run_shift<false>); }

// ---- out of bounds, alignment -----------------------------------------------------------------

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
  DeviceFloats y(32);
  const auto run = [&](auto kernel, int n) { launch(kernel, 1, 1, 32 * 4, nullptr, y.get(), n); };
  run(static_shared_overrun, 32);
  run(dynamic_shared_overrun, 32);
  run(global_overrun, 32);
  if (!kAsan) GTEST_SKIP() << "found by the AddressSanitizer build only";
  // UBSan's object-size check is first where the optimizer sees the array's size.
  EXPECT_DEATH(run(static_shared_overrun, 33), "global-buffer-overflow|insufficient space");
  EXPECT_DEATH(run(dynamic_shared_overrun, 33), "heap-buffer-overflow");
  EXPECT_DEATH(run(global_overrun, 33), "heap-buffer-overflow");
}

__global__ void read_float4(float* y, const float* x) {
  const Floats<4> v = load<4>(x);
  y[0] = v[0] + v[1] + v[2] + v[3];
}

TEST_F(Planted, MisalignedFloat4) {
  DeviceFloats x(8, 1), y(1);
  launch(read_float4, 1, 1, 0, nullptr, y.get(), x.get());
  EXPECT_EQ(y.read()[0], 4);
  if (!kAsan) GTEST_SKIP() << "found by the UBSan build only";
  EXPECT_DEATH(launch(read_float4, 1, 1, 0, nullptr, y.get(), x.get() + 1), "misaligned address");
}

// ---- values that are not there yet ------------------------------------------------------------

template <bool kBug>
__global__ void accumulate_in_shared(float* y) {
  DYN_SMEM(float, sums);
  if (!kBug) sums[threadIdx.x] = 0;
  for (int i = 0; i < 3; i++) sums[threadIdx.x] += 1;
  y[threadIdx.x] = sums[threadIdx.x];
}

TEST_F(Planted, DynamicSharedMemoryReadBeforeWritten) {
  DeviceFloats y(32);
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
  DeviceFloats x(128, 5), y(128);
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
    DeviceFloats x(128, 5), y(128);
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
  DeviceFloats x(8);
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "async copies",
                      error_of([&] { launch(forgotten_copy, 1, 1, 16, nullptr, x.get()); }));
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "multiples of 16",
                      error_of([&] { launch(forgotten_copy, 1, 1, 16, nullptr, x.get() + 1); }));
}

}  // namespace
}  // namespace loqal::cuda
