// The order in which a GPU runs threads and blocks is nobody's to know: results may not depend on
// it.
#include "ops/cuda/device.cuh"
#include "test/ops/splits.h"

namespace loqal::test {
namespace {

using emulation::Order;

TEST(ThreadOrder, EveryOperationGivesTheSameBytes) {
  const std::unique_ptr<Ops> ops = make_cuda_ops();
  const std::pair<Order, uint64_t> orders[] = {
      {Order::descending, 1}, {Order::random, 1}, {Order::random, 2}};
  for (const Split& split : kSplits)
    for (const DType X : {DType::F32, DType::BF16}) {
      SCOPED_TRACE(cat(split.name, " ", name_of(X)));
      emulation::options() = {};
      const Images expected = split.run(*ops, X);
      for (const auto& [order, seed] : orders) {
        emulation::options() = {.order = order, .seed = seed};
        EXPECT_TRUE(split.run(*ops, X) == expected) << "order " << int(order) << " seed " << seed;
      }
    }
  emulation::options() = {};
}

// Everything is on one stream and the host waits where it reads: late execution changes nothing.
TEST(ThreadOrder, LazyStreamsGiveTheSameBytes) {
  const std::unique_ptr<Ops> ops = make_cuda_ops();
  for (const Split& split : kSplits) {
    SCOPED_TRACE(split.name);
    emulation::options() = {};
    const Images expected = split.run(*ops, DType::BF16);
    emulation::options() = {.lazy_streams = true};
    EXPECT_TRUE(split.run(*ops, DType::BF16) == expected);
  }
  emulation::options() = {};
}

// The host never follows a pointer to the device.
TEST(ThreadOrder, DeviceMemoryThatTheHostCannotReach) {
  if (emulation::kAsan || emulation::kTsan) GTEST_SKIP() << "the plain build's test";
  emulation::options() = {.protect_memory = true};
  const std::unique_ptr<Ops> ops = make_cuda_ops();
  for (const Split& split : kSplits) split.run(*ops, DType::F32);
  emulation::options() = {};
}

}  // namespace
}  // namespace loqal::test
