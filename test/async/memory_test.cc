// M1: the memory table of --dry-run is what a run then uses: the measured peak of the whole process
// is within 10 % of the printed total. Models are large enough for the program itself to be the
// small part.
#include <cmath>
#include <regex>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

struct Case {
  std::string name, options;
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
  std::printf("%s: expected %.1f MiB, measured %.1f MiB, %+.1f %%\n", name.c_str(), expected,
              measured, 100 * (measured / expected - 1));
}

const char* kNarrow = "--layers 8 --width 320 --heads 4 --seq-len 128 --batch-size 6 ";

/// Every combination of precision, recomputation and per-layer updates, and two models of other
/// proportions.
std::vector<Case> cases() {
  std::vector<Case> all = {
      // Almost all of it is one tensor, which is on the host once more when it is saved.
      {"gpt2_one_large_tensor",
       "--model gpt2-tiny --width 256 --layers 1 --seq-len 32 --batch-size 1", 50257},
      {"llama_large_vocabulary", "--model llama-9M --batch-size 1", 32000}};
  all.push_back({"bf16_parameters", cat(kNarrow, "--param-dtype bf16"), 512});
  all.push_back({"moments_in_8_bits", cat(kNarrow, "--optimizer adamw8bit"), 512});
  all.push_back({"loqt_int8", cat(kNarrow, "--method loqt --rank 64"), 8192});
  for (const char* precision : {"fp32", "bf16"})
    for (const char* recompute : {"none", "block"})
      for (const bool per_layer : {false, true})
        all.push_back({cat(precision, "_recompute_", recompute, per_layer ? "_per_layer" : ""),
                       cat(kNarrow, "--precision ", precision, " --recompute ", recompute,
                           per_layer ? " --per-layer-updates" : ""),
                       512});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Configurations, Memory, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace loqal
