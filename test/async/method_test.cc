// The low-rank methods as a user runs them: options, resume around refreshes, logs, export, memory.
#include <cmath>
#include <regex>

#include "core/format.h"
#include "core/safetensors.h"
#include "test/async/train_cli.h"

namespace loqal {
namespace {

class Method : public TrainCli {
 protected:
  const std::string loqt_ = tiny_ + data_ + " --method loqt --rank 4 --lr 1e-2 --interval 10";
  const std::string val_ = " --val-data data_000001.bin --eval-every 10";

  /// Cuts the log before its last evaluation.
  void forget_last_evaluation(const std::string& out) const {
    const std::string log = out + "/log.jsonl", whole = slurp(log);
    put(log, whole.substr(0, whole.rfind("{\"kind\":\"eval\"")));
  }
};

// Bar: resume one step before, at, and after a refresh is byte-identical. With --interval 7 and
// --growth 1.2 (LoQT) they are at steps 0, 7 and 15, with gaps that do not grow at 7 and 14; a
// checkpoint's number is the next step.
struct ResumeCase {
  const char* options;
  int refresh;         ///< step of one
  const char* renews;  ///< what of a matrix's state changes in it, and in no step beside it
};

class MethodResume : public Method, public testing::WithParamInterface<ResumeCase> {
 protected:
  static std::string step_dir(int at) { return cat("step_000000", at); }
  std::string bytes_of(int at, const std::string& tensor) const {
    const SafetensorsReader file(dir_ / ("whole/" + step_dir(at) + "/state.safetensors"));
    return {static_cast<const char*>(file.data(tensor)), size_t(file.info(tensor).bytes)};
  }
};

TEST_P(MethodResume, AroundARefreshIsTheWholeByteForByte) {
  const auto& [options, refresh, renews] = GetParam();
  expect(cat(tiny_, data_, " --rank 4 --lr 1e-2 --steps 23 --save-every 1 --keep 0 --out whole ",
             options),
         0);
  for (int at = refresh - 1; at <= refresh + 1; at++) {
    const std::string out = cat("half", at);
    copy("whole/" + step_dir(at), cat("copy", at, "/", step_dir(at)));
    expect(cat("--resume copy", at, " --out ", out), 0);
    expect_same("whole/step_00000023", out + "/step_00000023");
    EXPECT_EQ(columns(out + "/log.jsonl"), columns("whole/log.jsonl", at));
    if (*renews && at > refresh - 1) {
      EXPECT_EQ(bytes_of(at, renews) != bytes_of(at - 1, renews), at == refresh + 1) << at;
    }
  }
}

constexpr const char* kBasis = "model.layers.0.self_attn.q_proj.weight.P";
INSTANTIATE_TEST_SUITE_P(
    Options, MethodResume,
    testing::Values(
        ResumeCase{"--method loqt --interval 7", 15, kBasis},
        ResumeCase{"--method loqt --interval 7 --quant nf4", 15, kBasis},
        ResumeCase{"--method loqt --interval 7 --optimizer adamw8bit --param-dtype bf16", 15,
                   kBasis},
        ResumeCase{"--method loqt --interval 7 --per-layer-updates --refresh-moments rotate", 15,
                   kBasis},
        ResumeCase{"--method loqt --interval 7 --grad-accum 2 --subspace svd", 15, kBasis},  // Q15
        ResumeCase{"--method galore --interval 7", 14,
                   "galore_p.model.layers.0.self_attn.q_proj.weight"},
        ResumeCase{"--method galore --interval 7 --optimizer adamw8bit --per-layer-updates", 14,
                   "galore_p.model.layers.0.self_attn.q_proj.weight"},
        ResumeCase{"--method lora --quant int8", 14, ""},
        ResumeCase{"--method relora --interval 7 --quant none", 14,
                   "model.layers.0.self_attn.q_proj.weight"},
        ResumeCase{"--method relora --interval 7 --quant int8 --refresh-moments keep", 14,
                   "model.layers.0.self_attn.q_proj.weight"}),
    [](const auto& info) {
      std::string name = "o";
      for (const char* c = info.param.options; *c; c++)
        if (std::isalnum(*c)) name += *c;
      return name;
    });

TEST_F(Method, MergeRecordsFollowTheSchedule) {
  expect(loqt_ + " --steps 50", 0);
  std::vector<int64_t> steps;
  for (const Json& r : records("out/log.jsonl", "merge")) {
    if (r["layer"] != "model.layers.0.self_attn.q_proj.weight") continue;
    steps.push_back(r["step"].get<int64_t>());
    EXPECT_GE(r["retained"].get<double>(), 0.8) << "int8, stochastic: unbiased (spec 2)";
    EXPECT_LE(r["error"].get<double>(), 0.0092 * 1.05);
  }
  // Refreshes at 0, 10, 21, 32 and none closer than 10 to the end; a step's line has its number
  // + 1.
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 11, 22, 33}));
  EXPECT_EQ(records("out/log.jsonl", "merge").size(), 4u * 14u);
}

// Issue, 7: the export is the effective weights; what the last evaluation was made with. Q6, Q10:
// whatever the weights are held in. In bf16 the product of two rounded factors is not the rounded
// product.
TEST_F(Method, ExportAndLastCheckpointHoldTheEffectiveWeights) {
  for (const std::string quant : {"none", "int8", "nf4"}) {
    SCOPED_TRACE(quant);
    const std::string out = "out_" + quant, hf = "hf_" + quant;
    expect(cat(loqt_, val_, " --precision fp32 --quant ", quant,
               " --steps 30 --save-every 15 --export ", hf, " --out ", out),
           0);
    EXPECT_EQ(slurp(out + "/step_00000030/model.safetensors"), slurp(hf + "/model.safetensors"));
    EXPECT_FALSE(exists(out + "/step_00000015/model.safetensors"));
    const std::vector<Json> evals = records(out + "/log.jsonl", "eval");
    ASSERT_EQ(evals.size(), quant == "none" ? 4u : 5u);  // 0, 10, 20, 30, and 30 once more
    if (quant != "none") {
      EXPECT_EQ(evals[3]["weights"], "effective");
      EXPECT_EQ(evals[4]["weights"], "merged");
      EXPECT_EQ(evals[4]["step"], 30);
      EXPECT_NE(evals[4]["loss"], evals[3]["loss"]) << "without factors it is another model";
    }
    const std::string loss = format("loss %.5f", evals[3]["loss"].get<double>());
    const std::string val = " --eval-only --val-data data_000001.bin";
    expect("--resume " + out + val, 0, {loss});
    expect("--precision fp32 --init " + hf + val, 0, {loss});
    expect(cat("--resume ", out, "/step_00000015 --export ", hf, "15"), 0);
    expect(cat("--resume ", out, "/step_00000015", val), 0);
  }
}

// A signal in the evaluation of the rounded weights, after the last save: a resume makes it up,
// once.
TEST_F(Method, AResumeMakesUpTheEvaluationOfTheRoundedWeights) {
  expect(loqt_ + val_ + " --steps 10", 0);
  const double loss = records("out/log.jsonl", "eval").back()["loss"].get<double>();
  forget_last_evaluation("out");
  expect("--resume out", 0, {"merged"});
  EXPECT_EQ(records("out/log.jsonl", "eval").back()["loss"].get<double>(), loss);
  EXPECT_EQ(records("out/log.jsonl", "end").back()["reason"], "done");
  expect("--resume out", 0, {"the run is finished"});

  // That of a run that was once shorter does not count.
  expect("--resume out --steps 20", 0, {"merged"});
  forget_last_evaluation("out");
  expect("--resume out", 0, {"merged"});
  EXPECT_EQ(records("out/log.jsonl", "eval").back()["step"], 20);
  EXPECT_EQ(records("out/log.jsonl", "eval").back()["weights"], "merged");
}

// reports.md Q5: rounding away what the factors hold is said where it costs 1 % of perplexity or
// more. Data with something to learn: one token again and again.
TEST_F(Method, AMergeThatCostsQualityIsAWarning) {
  write_shards("same", std::vector<int32_t>(1000, 7), 1000, {.vocab_size = kVocab});
  const std::string run = tiny_ +
                          " --train-data same_000000.bin --val-data same_000000.bin"
                          " --method loqt --rank 4 --lr-dense 0 --warmup 1 --steps 30 --lr ";
  const auto costs = [&](const std::string& options, const std::string& out) {
    const Outcome o = this->run(cat(run, options, " --out ", out));
    EXPECT_EQ(o.exit_code, 0) << o.output;
    const std::vector<Json> evals = records(out + "/log.jsonl", "eval");
    EXPECT_EQ(evals.back()["weights"], "merged");
    const double rise =
        evals.back()["loss"].get<double>() - evals[evals.size() - 2]["loss"].get<double>();
    const auto warned = [](const Outcome& outcome) {
      return outcome.output.find("warning: with its factors rounded") != std::string::npos;
    };
    EXPECT_EQ(warned(o), rise > 0.01) << rise << "\n" << o.output;
    // Also where a resume makes the evaluation up.
    forget_last_evaluation(out);
    EXPECT_EQ(warned(this->run("--resume " + out)), rise > 0.01);
    return rise;
  };
  EXPECT_LT(costs("1e-6 --quant int8", "small"), 0.01);
  EXPECT_GT(costs("3e-4 --quant nf4", "large"), 0.01);
}

// With any method: at rate 0 the embeddings stay as they began.
TEST_F(Method, DenseTensorsHaveTheirOwnRate) {
  const std::string embedding = "model.embed_tokens.weight",
                    matrix = "model.layers.0.mlp.up_proj.weight";
  for (const char* method : {"full", "loqt --rank 4 --quant none"}) {
    std::vector<float> at[2][2];
    for (const int steps : {2, 4}) {
      const std::string out = cat("out", steps, std::string(method).substr(0, 4));
      expect(cat(tiny_, data_, " --lr 1e-2 --lr-dense 0 --steps ", steps, " --out ", out,
                 " --method ", method),
             0);
      const SafetensorsReader file(
          dir_ / (out + "/step_0000000" + std::to_string(steps) + "/model.safetensors"));
      for (int i = 0; i < 2; i++) {
        std::vector<float>& x = at[steps / 2 - 1][i];
        const std::string& name = i == 0 ? embedding : matrix;
        x.resize(size_t(file.info(name).numel()));
        read_floats(file, name, x.data());
      }
    }
    EXPECT_EQ(at[0][0], at[1][0]) << method;
    EXPECT_NE(at[0][1], at[1][1]) << method;
  }
}

// reports.md Q6: a part of the model that is not there is named, not begun anew.
TEST_F(Method, AMissingFactorIsAnError) {
  expect(loqt_ + " --steps 4 --save-every 2", 0);
  const std::string file = "out/step_00000002/state.safetensors", name = "q_proj.weight.B";
  std::string bytes = slurp(file);
  bytes.replace(bytes.find(name), name.size(), "q_proj.weight.X");
  put(file, bytes);
  expect("--resume out/step_00000002 --out again", 1, {"state.safetensors"});
  EXPECT_FALSE(exists("again"));
}

// reports.md Q12: the norm that is logged is that of what is trained, also where gradients are used
// layer by layer; in a refresh step that of the dense tensors.
TEST_F(Method, TheGradientNormIsNotZero) {
  for (const char* method : {"loqt --per-layer-updates", "galore --per-layer-updates", "lora"}) {
    const std::string out = std::string("out_") + std::string(method).substr(0, 4);
    expect(cat(tiny_, data_, " --rank 4 --lr 1e-2 --steps 12 --out ", out, " --method ", method),
           0);
    for (const Json& r : records(out + "/log.jsonl", "train"))
      EXPECT_GT(r["grad_norm"].get<double>(), 1e-3) << method << " " << r["step"];
  }
}

// reports.md Q12. A model of zeros has no gradient.
TEST_F(Method, AGradientThatStaysZeroIsAWarning) {
  expect(tiny_ + data_ + " --steps 1 --export zeros", 0);
  std::string bytes = slurp("zeros/model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  std::fill(bytes.begin() + ptrdiff_t(8 + header), bytes.end(), '\0');
  put("zeros/model.safetensors", bytes);
  const std::string warning =
                        "warning: the gradient has been zero for 10 steps: nothing is learned",
                    run = data_ + " --init zeros --batch-size 4 --out ";
  const Outcome before = expect(run + "nine --steps 9", 0);
  EXPECT_EQ(before.output.find(warning), std::string::npos) << before.output;
  expect(run + "ten --steps 10", 0, {warning});
}

// At rate 0 what the first refresh makes of them stays: of the matrices, the rounding error of NF4
// (spec/loqt.md, section 2), and of that what compensation leaves.
TEST_F(Method, FineTuningStartsFromTheFloatWeights) {
  expect(tiny_ + data_ + " --steps 20 --lr 1e-2 --out base", 0);
  const struct {
    const char* method;
    double least, most;  ///< |W_eff - W| / |W|
  } cases[] = {{"loqt --quant nf4", 0, 0.95 * 0.0920},
               {"loqt --quant nf4 --compensate 0", 0.97 * 0.0920, 1.03 * 0.0920},
               {"lora", 0, 1e-6},
               {"galore", 0, 1e-6}};
  for (const auto& [method, least, most] : cases) {
    const std::string out = cat("tuned", &method - &cases[0].method);
    expect(cat(data_, " --init base/step_00000020 --method ", method,
               " --rank 4 --steps 3 --lr 0 --lr-schedule constant --out ", out),
           0);
    double squares = 0, difference = 0;
    const SafetensorsReader before(dir_ / "base/step_00000020/model.safetensors"),
        after(dir_ / (out + "/step_00000003/model.safetensors"));
    for (const TensorInfo& t : before.tensors()) {
      if (t.name.find("_proj") == std::string::npos) continue;
      std::vector<float> a(size_t(t.numel())), b(a.size());
      read_floats(before, t.name, a.data());
      read_floats(after, t.name, b.data());
      for (size_t i = 0; i < a.size(); i++) {
        squares += double(a[i]) * double(a[i]);
        difference += std::pow(double(a[i]) - double(b[i]), 2);
      }
    }
    const double moved = std::sqrt(difference / squares);
    EXPECT_GE(moved, least) << method;
    EXPECT_LE(moved, most) << method;
  }
}

TEST_F(Method, SamplesAndEvaluatesWithoutTheOptionsOfTheRun) {
  expect(loqt_ + " --steps 12", 0);
  expect("--resume out --eval-only --val-data data_000001.bin", 0, {"loss"});
  expect("--init out/step_00000012 --eval-only --val-data data_000001.bin", 0, {"loss"});
}

// Q15, Q16 and the options' contract: what cannot be is refused while parsing, with the way out.
TEST_F(Method, ContradictionsAreRefused) {
  const std::string base = tiny_ + data_ + " --steps 5 ";
  const auto refused = [&](const std::string& options, const std::vector<std::string>& parts) {
    expect(base + options, 2, parts);
    EXPECT_FALSE(exists("out")) << options;
  };
  for (const char* option : {"--rank 4", "--quant int8", "--scale 0.5", "--interval 5",
                             "--growth 1.1", "--compensate 3", "--subspace svd"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    refused(option, {name, "not used by --method full", "loqt"});
  }
  refused("--method loqt --workers 2", {"--method loqt", "--workers"});  // Q3: no matrix is split
  refused("--method galore --quant int8", {"--quant", "not used by --method galore"});
  refused("--method lora --interval 5", {"--interval", "not used by --method lora"});
  refused("--method loqt --quant none --rounding nearest", {"--rounding", "--quant none"});
  refused("--method loqt --quant none --compensate 2", {"--compensate", "--quant none"});
  refused("--method loqt --quant nf4 --quant-block 128", {"--quant-block 128", "nf4", "64"});
  refused("--method loqt --quant-block 100", {"--quant-block 100", "64, 128 or 256"});  // Q2
  refused("--method loqt --quant-block 1024", {"--quant-block 1024"});
  refused("--method loqt --max-gap 50", {"--max-gap 50", "--interval 100"});
  refused("--method loqt --per-layer-updates --grad-accum 2", {"--grad-accum 2"});
  refused("--method galore --param-dtype bf16", {"--param-dtype bf16", "galore"});
  refused("--method relora --refresh-moments rotate", {"rotate", "relora"});
  refused("--method qlora", {"--method qlora", "loqt"});
  refused("--method loqt --growth -1", {"--growth -1"});
}

TEST_F(Method, AResumeKeepsTheMethod) {
  expect(loqt_ + " --steps 12", 0);
  expect("--resume out --steps 14 --rank 8", 2, {"--rank was 4, now 8"});
  expect("--resume out --steps 14 --quant nf4", 2, {"--quant was \"int8\", now \"nf4\""});
  expect("--resume out --steps 14 --interval 11", 2, {"--interval was 10, now 11"});
  expect("--resume out --steps 14 --scale 1", 2, {"--scale was 0.5, now 1"});  // Q10
  expect("--resume out --steps 14", 0);
}

// Q14: which tensors are held how; Q16: what the options mean; Q11: a rank that is too large.
TEST_F(Method, DryRunTellsTensorsAndRefreshes) {
  expect("--dry-run --model llama-60M --method loqt --rank 20 --steps 10000 --lr 0.01", 0,
         {"rank 20", "0 100 201 302 403 505", "model.layers.0.mlp.down_proj.weight.P", "int8-128",
          "frozen", "trained", "below 1/16 of the width", "weights lr x s = 0.005"});
  expect("--dry-run --model llama-60M --method loqt --rank 600 --steps 1000", 0,
         {"--rank 600 is above 512, the smaller side of some matrix"});
  expect("--dry-run --model llama-60M --kv-heads 2 --method galore --rank 200", 0,
         {"--rank 200 is above 128, the smaller side of some matrix", "trained, rank 200",
          "trained, rank 128"});
}

// Bar: weights and optimizer state in the unit of the paper's table, bytes / (2^20 1000).
TEST_F(Method, MemoryOfThePapersTable) {
  const std::tuple<const char*, int, double> rows[] = {
      {"60M", 128, 0.180}, {"130M", 256, 0.400}, {"350M", 256, 0.890}, {"1B", 512, 3.05}};
  for (const auto& [size, rank, bar] : rows) {
    const Outcome o = expect(cat("--dry-run --model llama-", size, " --method loqt --rank ", rank,
                                 " --param-dtype bf16 --optimizer adamw8bit --batch-size 1"),
                             0);
    double sum = 0;
    const std::regex line("\n  (weights|optimizer state)[^\n]*? +([\\d.]+) MiB");
    for (std::sregex_iterator m(o.output.begin(), o.output.end(), line), end; m != end; ++m)
      sum += std::stod((*m)[2]) / 1000;
    EXPECT_LE(sum, bar) << size;
    EXPECT_GE(sum, 0.97 * bar) << size << ": something is not counted\n" << o.output;
    std::printf("%s: %.4f, bar %.3f\n", size, sum, bar);
  }
}

// The same of the smallest one by the allocator of a real run.
TEST_F(Method, MemoryByTheAllocator) {
  if (kSanitized) GTEST_SKIP() << "minutes with sanitizers";
  write_shards("words", 32000, 400, 400);
  expect(
      "--train-data 'words_*.bin' --model llama-60M --method loqt --rank 128 --param-dtype bf16 "
      "--optimizer adamw8bit --batch-size 1 --seq-len 32 --steps 1 --lr 0 --save-every 0",
      0);
  double sum = 0;
  for (const Json& r : records("out/log.jsonl", "memory")) {
    const std::string category = r["category"];
    if (category.starts_with("weights") || category == "optimizer state")
      sum += r["bytes"].get<double>() / (1 << 20) / 1000;
  }
  EXPECT_LE(sum, 0.180);
  EXPECT_GE(sum, 0.97 * 0.180);
}

}  // namespace
}  // namespace loqal
