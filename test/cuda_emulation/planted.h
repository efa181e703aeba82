// What the tests with planted bugs share. Each kernel there has one bug, switched on by a template
// argument, and a test that the emulation finds it - in the build that can - and has nothing to say
// without it. The table of what finds what is in doc/cuda.md.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ops/cuda/device.cuh"

namespace loqal::cuda {

using emulation::kAsan;
using emulation::KernelError;
using emulation::kTsan;
using emulation::Order;

/// Device memory with `n` values.
class DeviceFloats {
 public:
  explicit DeviceFloats(int n, float value = 0) : host_(size_t(n), value) {
    cudaMalloc(&data_, size_t(n) * 4);
    cudaMemcpyAsync(data_, host_.data(), size_t(n) * 4, cudaMemcpyHostToDevice, nullptr);
  }
  ~DeviceFloats() { cudaFree(data_); }
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

}  // namespace loqal::cuda
