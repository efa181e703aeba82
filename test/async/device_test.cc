// --device: what is taken, what is said about it. run_cuda_tests has the other half, with a GPU
// that is emulated.
#include "ops/ops.h"
#include "test/async/train_cli.h"

namespace loqal {
namespace {

class DeviceTest : public TrainCli {};

TEST_F(DeviceTest, CudaWithoutAGpuIsACleanError) {
  const Outcome o =
      expect(tiny_ + data_ + " --device cuda --out a", 1, {"--device cuda: ", "hint: "});
  if (!cuda_status().usable) {
    EXPECT_CONTAINS(o.output, cuda_status().text);
  }
  EXPECT_FALSE(exists("a/log.jsonl"));
}

TEST_F(DeviceTest, AutoTakesTheCpuAndSaysWhy) {
  expect(tiny_ + data_ + " --steps 1 --out a", 0, {"device      CPU, ", "(no GPU: "});
  EXPECT_EQ(records("a/log.jsonl", "run").at(0)["options"]["device"], "cpu");
}

TEST_F(DeviceTest, ADryRunForAGpuNeedsNone) {
  expect("--dry-run --device cuda", 0, {"device      cuda", "bf16", "weights (bf16 copy)"});
}

TEST_F(DeviceTest, HeadsThatTheGpuCannotAttendWith) {
  const std::string wide = " --model gpt2-tiny --width 288 --heads 2 --vocab 64";
  expect("--dry-run --device cuda" + wide, 2, {"heads are 144 wide, at most 128"});
  expect("--dry-run --device cpu" + wide, 0, {"device      cpu"});
}

}  // namespace
}  // namespace loqal
