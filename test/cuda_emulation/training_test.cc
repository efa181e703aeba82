// Whole training runs on the emulated GPU, by the program itself: $LOQAL_BIN_DIR/train is ./train
// with ops/cuda/ on top of the emulation.
#include <gtest/gtest.h>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

class CudaTraining : public TrainCli {
 protected:
  CudaTraining() { hides_gpu_ = false; }
  std::vector<double> losses(const std::string& options, const std::string& device) {
    expect(options + data_ + " --steps 20 --lr 3e-3 --warmup 2 --save-every 0 --device " + device +
               " --out " + device,
           0);
    std::vector<double> out;
    for (const Json& r : records(device + "/log.jsonl", "train")) out.push_back(r["loss"]);
    return out;
  }

  /// The losses of 20 steps agree with the CPU's, relative to them. Returns theirs.
  std::vector<double> expect_agreement(const std::string& options, double tolerance) {
    SCOPED_TRACE(options);
    for (const char* out : {"cpu", "cuda"}) std::filesystem::remove_all(dir_ / out);
    const std::vector<double> cpu = losses(options, "cpu"), cuda = losses(options, "cuda");
    EXPECT_EQ(cpu.size(), 20u);
    EXPECT_EQ(cuda.size(), 20u);
    double worst = 0;
    for (size_t i = 0; i < std::min(cpu.size(), cuda.size()); i++)
      worst = std::max(worst, std::abs(cuda[i] - cpu[i]) / cpu[i]);
    EXPECT_LT(worst, tolerance);
    return cpu;
  }
  void expect_agreement(const std::string& model) {
    expect_agreement(model + " --precision fp32", 1e-5);
    expect_agreement(model + " --precision bf16", 2e-3);
  }
};

TEST_F(CudaTraining, Gpt2LossesAgreeWithTheCpu) {
  expect_agreement(
      " --model gpt2-tiny --layers 2 --width 64 --heads 4 --vocab 64 --seq-len 48 --batch-size 4");
}

// Grouped heads, an odd feed-forward width as Llama 1B's, an untied head.
TEST_F(CudaTraining, LlamaLossesAgreeWithTheCpu) {
  expect_agreement(
      " --model llama-9M --layers 2 --width 64 --heads 4 --kv-heads 2 --ffn 171 --vocab 64"
      " --seq-len 48 --batch-size 4");
}

// Quantization gives the same bytes on both, so that only products differ, and they hardly.
TEST_F(CudaTraining, LowRankLossesAgreeWithTheCpu) {
  for (const std::string method :
       {"loqt --interval 5", "loqt --interval 5 --quant nf4 --optimizer adamw8bit",
        "loqt --interval 5 --quant none --subspace svd", "galore --interval 5",
        "relora --interval 5 --quant int8", "lora"}) {
    const std::vector<double> cpu =
        expect_agreement(tiny_ + " --precision fp32 --rank 8 --method " + method, 2e-5);
    ASSERT_EQ(cpu.size(), 20u);
    EXPECT_LT(cpu.back(), cpu.front()) << method;
    const size_t merges = records("cuda/log.jsonl", "merge").size();
    EXPECT_EQ(merges, records("cpu/log.jsonl", "merge").size()) << method;
    if (method == "lora") EXPECT_EQ(merges, 0u);
    else EXPECT_GT(merges, 14u) << method << ": more than one refresh";
  }
}

TEST_F(CudaTraining, AutoTakesTheGpuAndSaysSo) {
  const std::string options = tiny_ + data_ + " --steps 2 --out a";
  expect(options, 0, {"device      emulated GPU, 4 GiB", "bf16", "compute capability 8.0"});
  EXPECT_EQ(records("a/log.jsonl", "run").at(0)["options"]["device"], "cuda");
}

TEST_F(CudaTraining, TheSameRunGivesTheSameBytesAndResumesExactly) {
  const std::string options = tiny_ + data_ + " --device cuda --save-every 4 --steps 8";
  expect(options + " --out a", 0);
  expect(options + " --out b", 0);
  expect_same("a/step_00000008", "b/step_00000008");
  std::filesystem::remove_all(dir_ / "b/step_00000008");
  expect("--resume b --device cuda", 0);
  expect_same("a/step_00000008", "b/step_00000008");
}

// Who computes a round does not matter: one GPU for all workers, or two by turns.
TEST_F(CudaTraining, WorkersOfLocalSgdGoRoundRobinOverTheDevices) {
  const std::string options = tiny_ + data_ +
                              " --workers 3 --inner-steps 4 --heterogeneity very --steps 24"
                              " --save-every 12";
  expect(options + " --device cuda:0 --out one", 0);
  expect(options + " --device cuda:0,cuda:1 --out two", 0);
  expect_same("one/step_00000024", "two/step_00000024");
  expect("--resume two/step_00000012 --device cuda:1 --out two", 0);
  expect_same("one/step_00000024", "two/step_00000024");
  expect(options + " --device cuda:0,cuda:2 --out three", 1, {"there are only 2 GPUs"});
}

// 4 GiB is what the emulated GPU has.
TEST_F(CudaTraining, TooLittleMemory) {
  const std::string large = " --model llama-1B --vocab 64" + data_ + " --out a";
  expect(large + " --device cuda", 1, {"of the GPU's memory, 4096 MiB are available"});
  expect("--dry-run --model llama-1B --device cuda", 0, {"workspace"});
  expect("--dry-run --model llama-1B --device auto", 0,
         {"device      cpu (not the GPU: this needs"});
}

}  // namespace
}  // namespace loqal
