// M1: the memory table of --dry-run is what a run then uses: the measured peak of the whole process
// is within 10 % of the printed total. Models are large enough for the program itself to be the
// small part.
#include <cmath>
#include <regex>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

struct Case {
  const char* name;
  const char* options;
  int vocab;
};

class Memory : public TrainCli, public testing::WithParamInterface<Case> {};

TEST_P(Memory, MeasuredPeakIsWithinTenPercentOfTheDryRun) {
  if (kSanitized) GTEST_SKIP() << "memory is measured without sanitizers";
  const auto& [name, options, vocab] = GetParam();
  write_shards("words", vocab, 8000, 8000);
  const Outcome dry = expect(cat("--dry-run --threads 2 --vocab ", vocab, " ", options), 0);
  std::smatch m;
  ASSERT_TRUE(std::regex_search(dry.output, m, std::regex("total +([\\d.]+) MiB"))) << dry.output;
  const double expected = std::stod(m[1]);
  ASSERT_GT(expected, 140) << "too small to tell";
  const Outcome o = expect(cat("--train-data 'words_*.bin' --threads 2 --steps 2 ", options), 0);
  double measured = 0;
  for (const Json& r : records("out/log.jsonl", "memory"))
    if (r["category"] == "measured peak") measured = r["bytes"].get<double>() / (1 << 20);
  EXPECT_NEAR(measured, expected, 0.1 * expected) << dry.output;
  // The log's own number against the kernel's: nothing is allocated after it but to say goodbye.
  EXPECT_NEAR(measured, double(o.peak_rss) / (1 << 20), 2);
  RecordProperty("percent_off", cat(100 * (measured / expected - 1)));
  std::printf("%s: expected %.1f MiB, measured %.1f MiB, %+.1f %%\n", name, expected, measured,
              100 * (measured / expected - 1));
}

INSTANTIATE_TEST_SUITE_P(
    Configurations, Memory,
    testing::Values(
        Case{"fp32", "--model llama-9M --batch-size 1", 32000},
        Case{"bf16", "--model llama-9M --batch-size 1 --precision bf16", 32000},
        Case{"per_layer", "--model llama-9M --batch-size 1 --per-layer-updates", 32000},
        Case{"activations", "--layers 16 --width 128 --heads 4 --seq-len 128 --batch-size 8", 512},
        Case{"recompute",
             "--layers 8 --width 256 --heads 4 --seq-len 128 --batch-size 6 --recompute block",
             512},
        // Almost all of it is one tensor, which is on the host once more when it is saved.
        Case{"gpt2", "--model gpt2-tiny --width 256 --layers 1 --seq-len 32 --batch-size 1",
             50257}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loqal
