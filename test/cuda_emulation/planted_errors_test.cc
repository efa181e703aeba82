// Planted bugs that are always an error, and those that streams and memory find.
#include "test/cuda_emulation/planted.h"

namespace loqal::cuda {
namespace {

// ---- always an error --------------------------------------------------------------------------

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
       {"divergent __syncthreads", "planted_errors_test.cc:", "threads 0-7: ", "threads 8-63: "}},
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
  EXPECT_EQ(error_of([] { launch(early_exit, 4, 64, 0, nullptr, 64); }), "");
}

// ---- streams and memory -----------------------------------------------------------------------

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
    DeviceFloats x(1, 1), y(1, 2);
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
  DeviceFloats x(4, 3), y(1);
  launch(copy_value, 1, 1, 0, nullptr, y.get(), x.get());
  EXPECT_EQ(y.read()[0], 3);
  EXPECT_DEATH(static_cast<void>(*static_cast<volatile float*>(x.get())), "");
}

TEST_F(Planted, CopiesInTheWrongDirection) {
  DeviceFloats x(4);
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
