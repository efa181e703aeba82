// --device: what is taken, what is said about it. run_cuda_tests has the other half, with a GPU
// that is emulated.
#include "ops/ops.h"
#include "test/async/train_cli.h"

namespace loqal {
namespace {

class DeviceTest : public TrainCli {};

TEST_F(DeviceTest, CudaWithoutAGpuIsACleanError) {
  if (cuda_status().usable) GTEST_SKIP() << "there is a GPU here";
  const Outcome o =
      expect(tiny_ + data_ + " --device cuda --out a", 1, {"--device cuda: ", "hint: "});
  EXPECT_NE(o.output.find(cuda_status().text), std::string::npos) << o.output;
  EXPECT_FALSE(exists("a/log.jsonl"));
}

TEST_F(DeviceTest, AutoTakesTheCpuAndSaysWhy) {
  if (cuda_status().usable) GTEST_SKIP() << "there is a GPU here";
  expect(tiny_ + data_ + " --steps 1 --out a", 0, {"device      CPU, ", "(no GPU: "});
  EXPECT_EQ(records("a/log.jsonl", "run").at(0)["options"]["device"], "cpu");
}

TEST_F(DeviceTest, ADryRunForAGpuNeedsNone) {
  expect("--dry-run --device cuda", 0, {"device      cuda", "bf16", "weights (bf16 copy)"});
}

}  // namespace
}  // namespace loqal
