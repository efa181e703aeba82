// Whole training steps on the shapes that PyTorch is measured on (test/bench/torch_bench.py), and
// where their time goes. Random tokens, random weights. Prints one JSON line per run:
//   step_bench SHAPE fp32|bf16 THREADS STEPS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

#include "core/json.h"
#include "core/philox.h"
#include "model/model.h"
#include "optim/grad_sinks.h"

namespace loqal {
namespace {

struct Shape {
  const char* preset;
  int64_t L, C, NH, V, B, T;  // 0: the preset's
};

const std::map<std::string, Shape> kShapes = {
    {"gpt2-124M", {"gpt2-124M", 0, 0, 0, 0, 4, 256}},
    {"gpt2-124M-T64", {"gpt2-124M", 0, 0, 0, 0, 4, 64}},
    {"char", {"gpt2-124M", 6, 384, 6, 65, 12, 256}},
    {"llama-60M", {"llama-60M", 0, 0, 0, 0, 8, 256}},
};

ModelConfig config_of(const Shape& s) {
  ModelConfig c = preset_config(s.preset);
  if (s.L) c.L = s.L;
  if (s.C) c.C = s.C, c.F = 4 * s.C, c.NH = c.NKV = s.NH, c.HS = s.C / s.NH;
  if (s.V) c.V = s.V;
  c.T = s.T;
  return c;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Bytes per second, read and written, of the best of several copies that no cache holds.
double copy_bandwidth(Ops& ops) {
  constexpr int64_t n = 32 << 20;
  const Buffer from = ops.alloc(n * 4, "workspace"), to = ops.alloc(n * 4, "workspace");
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const auto begin = std::chrono::steady_clock::now();
    ops.copy({to.as<float>(), 1, n}, {from.as<float>(), 1, n});
    if (round > 0) best = std::max(best, double(2 * n * 4) / seconds_since(begin));
  }
  return best;
}

/// The training loop's body on random tokens.
class Step {
 public:
  Step(Ops& ops, const ModelConfig& config, int64_t B, DType X)
      : model_(ops, config, {.B = B, .X = X}),
        optimizer_(ops,
                   {&model_.table(), [this](int i) { return model_.parameter(i); },
                    [this](int i) { return model_.compute_copy(i); }},
                   {}),
        sink_(ops, model_.table(), optimizer_, 1.0),
        B_(B),
        T_(config.T),
        ids_(size_t(B * config.T) + 1) {
    model_.init_random(1);
    const PhiloxStream stream(1, Purpose::test);
    for (size_t i = 0; i < ids_.size(); i++) ids_[i] = int32_t(stream.bits(i) % uint32_t(config.V));
  }
  double run() {
    const auto begin = std::chrono::steady_clock::now();
    optimizer_.begin_step(3e-4);
    sink_.begin_micro_batch(0);
    model_.forward_backward(ids_.data(), ids_.data() + 1, B_, T_, 1.0f / float(B_ * T_), sink_);
    sink_.finish_step();
    return seconds_since(begin);
  }

 private:
  Model model_;
  AdamW optimizer_;
  FullGradSink sink_;
  int64_t B_, T_;
  std::vector<int32_t> ids_;
};

int run(const std::string& name, bool bf16, int threads, int steps) {
  const Shape shape = kShapes.at(name);
  const ModelConfig config = config_of(shape);
  const auto ops = make_cpu_ops(threads);
  const DType X = bf16 ? DType::BF16 : DType::F32;
  const double peak = ops->peak_flops(X), bandwidth = copy_bandwidth(*ops);
  Step step(*ops, config, shape.B, X);
  step.run();  // touches memory, creates primitives
  std::vector<double> seconds;
  for (int i = 0; i < steps; i++) seconds.push_back(step.run());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];

  std::map<std::string, OpCost> costs;
  ops->profile(&costs);
  const double profiled = step.run();
  Json budget = Json::object();
  for (const auto& [op, cost] : costs)
    budget[op] = {{"calls", cost.calls},
                  {"ms", cost.seconds * 1e3},
                  {"gflop", cost.flops * 1e-9},
                  {"gbyte", cost.bytes * 1e-9},
                  {"floor_ms", 1e3 * std::max(cost.flops / peak, cost.bytes / bandwidth)}};
  const double N = double(shape.B * shape.T);
  const Json result = {{"shape", name},
                       {"dtype", bf16 ? "bf16" : "fp32"},
                       {"threads", threads},
                       {"ms_per_step", median * 1e3},
                       {"tokens_per_s", N / median},
                       {"peak_gflops", peak * 1e-9},
                       {"copy_gbytes_per_s", bandwidth * 1e-9},
                       {"share_of_peak", flops_per_token(config) * N / median / peak},
                       {"bytes", ops->peak_bytes()},
                       {"device", ops->description()},
                       {"profiled_ms", profiled * 1e3},
                       {"budget", budget}};
  std::printf("%s\n", dump_json(result).c_str());
  return 0;
}

}  // namespace
}  // namespace loqal

int main(int argc, char** argv) {
  if (argc != 5 || !loqal::kShapes.count(argv[1])) {
    std::fprintf(
        stderr,
        "usage: step_bench gpt2-124M|gpt2-124M-T64|char|llama-60M fp32|bf16 THREADS STEPS\n");
    return 2;
  }
  return loqal::run(argv[1], std::string(argv[2]) == "bf16", std::stoi(argv[3]),
                    std::stoi(argv[4]));
}
