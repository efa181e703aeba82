// U1, U2: options, config files and their mistakes, through ./train. Every mistake is exit code 2
// and names the option.
#include "async/options.h"

#include <regex>

#include "test/async/train_cli.h"

namespace loqal {
namespace {

class OptionsCli : public TrainCli {};

TEST_F(OptionsCli, Mistakes) {
  const std::string good = tiny_ + data_;
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"--stepz 5", {"unknown option --stepz", "did you mean --steps?"}},
      {"--batchsize=5", {"unknown option --batchsize", "did you mean --batch-size?"}},
      {"--lr abc", {"--lr abc", "number from 0"}},
      {"--lr 1e999", {"--lr 1e999", "number from 0"}},
      {"--lr nan", {"--lr nan"}},
      {"--lr -1e-3", {"--lr -1e-3"}},
      {"--steps -5", {"--steps -5", "whole number from 1"}},
      {"--steps 0", {"--steps 0"}},
      {"--steps 2.5", {"--steps 2.5", "whole number"}},
      {"--steps 56,080", {"--steps 56,080", "whole number"}},
      {"--steps 99999999999999999999", {"--steps 99999999999999999999"}},
      {"--steps 5 --steps 6", {"--steps"}},
      {"--grad-accum 0", {"--grad-accum 0", "from 1"}},
      {"--precision fp16", {"--precision fp16", "fp32", "bf16"}},
      {"--lr-schedule cosin", {"--lr-schedule cosin", "did you mean cosine?"}},
      {"--recompute blok", {"--recompute blok", "block"}},
      {"--beta1 1", {"--beta1 1"}},
      {"--lr 1e-4 --min-lr 1e-3", {"--min-lr 0.001", "--lr 0.0001"}},
      {"--per-layer-updates --grad-clip 1", {"--grad-clip 1", "--per-layer-updates"}},
      {"--per-layer-updates --grad-accum 2", {"--grad-accum 2", "--per-layer-updates"}},
      {"--per-layer-updates --total-batch 128", {"--total-batch 128", "--per-layer-updates"}},
      {"--total-batch 128 --grad-accum 2", {"--total-batch", "--grad-accum"}},
      {"--total-batch 100", {"--total-batch 100", "64 tokens", "nearest: 64 or 128"}},
      {"--total-batch 63", {"--total-batch 63", "nearest: 64"}},
      {"--heads 5 --width 32", {"--heads 5", "--width 32"}},
      {"--kv-heads 3 --heads 4", {"--kv-heads 3", "--heads 4"}},
      {"--head-dim 7", {"--head-dim 7", "even"}},
      {"--arch gpt2 --tied false", {"--tied false"}},
      {"--device gpu", {"--device gpu", "cuda:0,cuda:1"}},
      {"--device cuda:", {"\"cuda:\" is no device"}},
      {"--device cuda:0,cpu", {"\"cpu\" is no device"}},
      {"--workers 2 --device cuda:1,cuda:1", {"cuda:1 stands there twice"}},
      {"--device cuda:0,cuda:1", {"2 devices for 1 worker", "--workers"}},
      {"surprise", {"surprise"}},
      {"--eval-only", {"--eval-only needs a trained model", "--resume"}},
      {"--sample x", {"--sample", "--resume"}}};
  for (const auto& [mistake, parts] : cases) {
    // The mistake comes first: a doubled option must not be CLI11's complaint about our own
    // --heads.
    std::string rest = good;
    for (const char* own : {"--heads", "--width", "--steps"})
      if (mistake.find(own) != std::string::npos)
        rest = std::regex_replace(rest, std::regex(cat(own, " \\d+")), "");
    expect(mistake + " " + rest, 2, parts);
    EXPECT_FALSE(exists("out")) << mistake;
  }
  expect("--model lama-9M" + data_, 2, {"--model lama-9M", "did you mean llama-9M?", "gpt2-124M"});
  expect(tiny_, 2, {"--train-data", "./tokenize"});
}

TEST_F(OptionsCli, ConfigFileMistakesHaveALine) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"lr = 1e-3\nwidht = 5\n", {"c.toml:2", "widht", "did you mean width?"}},
      {"lr = 1e-3\nsteps = 5\n\nlr = 2e-3\n", {"c.toml:4", "lr", "line 1"}},
      {"# a comment\nlr = \"abc\"\n", {"c.toml:2", "--lr abc"}},
      {"steps = -3\n", {"c.toml:1", "--steps -3"}},
      {"steps = true\n", {"c.toml:1", "--steps true"}},
      {"\nlr = 1e999\n", {"c.toml:2", "--lr 1e999"}},
      {"steps = 56,080\n", {"c.toml:1", "--steps"}},
      {"per-layer-updates = 3\n", {"c.toml:1", "--per-layer-updates 3"}},
      {"lr = 1e-3\nsteps 5\n", {"c.toml:2", "steps 5"}},
      {"[training]\nsteps = 3\n", {"c.toml:2", "steps"}}};
  for (const auto& [text, parts] : cases) {
    put("c.toml", text);
    expect(tiny_ + data_ + " --config c.toml", 2, parts);
    EXPECT_FALSE(exists("out")) << text;
  }
}

TEST_F(OptionsCli, ConfigFileWorksAndTheCommandLineWins) {
  put("c.toml",
      "# tiny\ntrain-data = [\"data_*.bin\"]\nmodel = \"llama-9M\"\nlayers = 2\nwidth = 32\n"
      "heads = 2\nvocab = 64\nseq-len = 16\nbatch-size = 4\nsteps = 9\nlr = 5e-4\n"
      "per-layer-updates = true\n");
  expect("--config c.toml --steps 3", 0);
  expect_each_step_once("out/log.jsonl", 1, 3);
  const Json options = records("out/log.jsonl", "run").at(0)["options"];
  EXPECT_EQ(options["steps"], 3);
  EXPECT_EQ(options["lr"], 5e-4);
  EXPECT_EQ(options["per-layer-updates"], true);
  EXPECT_EQ(options["min-lr"], 0.1 * 5e-4);  // derived values are in the log as well
  EXPECT_EQ(options["grad-clip"], 0.0);
  // U1: and in the checkpoint.
  EXPECT_EQ(read_json(dir_ / "out/step_00000003/state.json")["options"]["lr"], 5e-4);
}

TEST_F(OptionsCli, DryRunNeedsNoDataAndAllocatesNothing) {
  const Outcome o = expect("--dry-run --model llama-7B --batch-size 8 --recompute block", 0,
                           {"6738.42 M", "weights", "optimizer state", "gradients", "activations",
                            "total", "--model \"llama-7B\"", "--lr 0.0003"});
  if (!kSanitized) {
    EXPECT_LT(o.peak_rss, int64_t(200) << 20);
  }
  EXPECT_FALSE(exists("out"));
  // 4 bytes for each of 6738.4 M parameters, up to alignment gaps; Adam keeps two more numbers.
  std::smatch m;
  ASSERT_TRUE(std::regex_search(o.output, m, std::regex("weights +([\\d.]+) MiB")));
  const double weights = std::stod(m[1]), expected = 6738.415616e6 * 4 / (1 << 20);
  EXPECT_NEAR(weights, expected, 1e-3 * expected);
  ASSERT_TRUE(std::regex_search(o.output, m, std::regex("optimizer state +([\\d.]+) MiB")));
  EXPECT_NEAR(std::stod(m[1]), 2 * weights, 0.2);
}

TEST_F(OptionsCli, EvaluationAloneTakesTheDataOfTheRunOrSaysThatItNeedsSome) {
  expect(tiny_ + data_ + " --steps 2 --val-data data_000001.bin", 0);
  const double loss = records("out/log.jsonl", "eval").back()["loss"];
  const Outcome o =
      expect("--eval-only --resume out", 0, {"out/step_00000002: loss ", "992 tokens"});
  std::smatch m;
  ASSERT_TRUE(std::regex_search(o.output, m, std::regex("loss ([\\d.]+)")));
  EXPECT_NEAR(std::stod(m[1]), loss, 1e-5);  // five digits are printed
  expect("--eval-only --init out/step_00000002", 2, {"--eval-only needs --val-data"});
  expect("--eval-only --resume auto --out nothing --val-data data_000001.bin", 1,
         {"no checkpoint in nothing"});
}

// U2: without numbers to work out, accumulation follows from the tokens of one step.
TEST_F(OptionsCli, TotalBatchGivesTheAccumulation) {
  expect(tiny_ + data_ + " --total-batch 192 --steps 2", 0, {"batch 4 x 16 x 3 accumulated"});
  EXPECT_EQ(records("out/log.jsonl", "run").at(0)["options"]["grad-accum"], 3);
  EXPECT_EQ(records("out/log.jsonl", "run").at(0)["tokens_per_step"], 192);
  EXPECT_EQ(records("out/log.jsonl", "train").at(1)["tokens"], 2 * 192);
}

TEST_F(OptionsCli, FirstStepsHelpAndVersion) {
  expect("", 0, {"make quickstart", "./tokenize", "--train-data", "--help"});
  expect("--version", 0, {"loqal "});
  const Outcome help = expect("--help", 0, {"--config", "--version"});
  const Json all = options_to_json(Options(), true);
  EXPECT_GT(all.size(), 40u);
  for (const auto& [name, value] : all.items()) EXPECT_CONTAINS(help.output, "\n  --" + name + " ");
}

}  // namespace
}  // namespace loqal
