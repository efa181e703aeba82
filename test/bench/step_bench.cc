// Whole training steps on the shapes that PyTorch is measured on (test/bench/torch_bench.py), and
// where their time goes. Random tokens, random weights. Prints one JSON line per run:
//   step_bench SHAPE fp32|bf16 THREADS STEPS
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>

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

int run(const std::string& name, bool bf16, int threads, int steps) {
  const Shape shape = kShapes.at(name);
  const ModelConfig config = config_of(shape);
  const auto ops = make_cpu_ops(threads);
  const DType X = bf16 ? DType::BF16 : DType::F32;
  const double peak = ops->peak_flops(X);
  Model model(*ops, config, {.B = shape.B, .X = X});
  model.init_random(1);
  AdamW optimizer(*ops,
                  {&model.table(), [&](int i) { return model.parameter(i); },
                   [&](int i) { return model.compute_copy(i); }},
                  {});
  FullGradSink sink(*ops, model.table(), optimizer, 1.0);
  const PhiloxStream stream(1, Purpose::test);
  const int64_t N = shape.B * shape.T;
  std::vector<int32_t> ids(size_t(N) + 1);
  for (int64_t i = 0; i <= N; i++)
    ids[size_t(i)] = int32_t(stream.bits(uint64_t(i)) % uint32_t(config.V));
  std::vector<double> seconds;
  for (int step = 0; step <= steps; step++) {
    const auto begin = std::chrono::steady_clock::now();
    optimizer.begin_step(3e-4);
    sink.begin_micro_batch(0);
    model.forward_backward(ids.data(), ids.data() + 1, shape.B, shape.T, 1.0f / float(N), sink);
    sink.finish_step();
    if (step > 0)  // the first one touches memory and creates primitives
      seconds.push_back(
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  std::printf(
      "{\"shape\":\"%s\",\"dtype\":\"%s\",\"threads\":%d,\"ms_per_step\":%.1f,\"tokens_per_s\":%."
      "1f,"
      "\"peak_gflops\":%.1f,\"share_of_peak\":%.3f,\"bytes\":%lld,\"device\":\"%s\"}\n",
      name.c_str(), bf16 ? "bf16" : "fp32", threads, median * 1e3, double(N) / median, peak * 1e-9,
      flops_per_token(config) * double(N) / median / peak,
      static_cast<long long>(ops->peak_bytes()), ops->description().c_str());
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
