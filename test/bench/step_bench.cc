// Whole training steps on the shapes that PyTorch is measured on (test/bench/torch_bench.py), and
// where their time goes. Random tokens, random weights. Prints one JSON line per run:
//   step_bench SHAPE fp32|bf16 THREADS|cuda STEPS
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
    {"gpt2-124M-T1024", {"gpt2-124M", 0, 0, 0, 0, 16, 1024}},
    {"llama-130M-T1024", {"llama-130M", 0, 0, 0, 0, 16, 1024}},
    {"llama-350M-T1024", {"llama-350M", 0, 0, 0, 0, 16, 1024}},
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

/// Seconds of one call, until the device has done it.
template <class F>
double seconds_of(Ops& ops, const F& call) {
  std::map<std::string, OpCost> costs;
  ops.profile(&costs);
  call();
  ops.profile(nullptr);
  double seconds = 0;
  for (const auto& [name, cost] : costs) seconds += cost.seconds;
  return seconds;
}

/// Bytes per second, read and written, of the best of several passes over more than caches hold. In
/// place: writing elsewhere would read the lines to be overwritten, too.
double memory_bandwidth(Ops& ops) {
  constexpr int64_t n = 64 << 20;
  const Buffer memory = ops.alloc(n * 4, "workspace");
  const Tensor x(memory.as<float>(), 1, n);
  double best = 0;
  for (int round = 0; round < 5; round++) {
    const double seconds = seconds_of(ops, [&] { ops.copy(x, x); });
    if (round > 0) best = std::max(best, double(2 * n * 4) / seconds);
  }
  return best;
}

/// FLOP/s of a large matrix product: the machine's peak, as Ops::peak_flops measures it once. A
/// shared machine's speed changes within seconds, so each step is compared with the peak around it.
class Peak {
 public:
  Peak(Ops& ops, DType X, int64_t n)
      : ops_(ops),
        n_(n),
        a_(ops.alloc(n * n * int64_t(size_of(X)), "workspace")),
        b_(ops.alloc(n * n * int64_t(size_of(X)), "workspace")),
        c_(ops.alloc(n * n * int64_t(size_of(X)), "workspace")),
        X_(X) {
    measure();
  }
  double measure() {
    if (n_ == 0) return ops_.peak_flops(X_);  // measured once, as a GPU of one's own allows
    const Tensor a(a_.data(), X_, n_, n_), b(b_.data(), X_, n_, n_), c(c_.data(), X_, n_, n_);
    double fastest = 1e30;
    for (int round = 0; round < 5; round++)
      fastest =
          std::min(fastest, seconds_of(ops_, [&] { ops_.matmul(c, a, b, {.transpose_b = true}); }));
    return 2.0 * double(n_) * double(n_) * double(n_) / fastest;
  }

 private:
  Ops& ops_;
  int64_t n_;
  Buffer a_, b_, c_;
  DType X_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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
    float done;  // waits for the device
    model_.ops().download(&done, Tensor(model_.parameter(0).data, DType::F32, 1, 1));
    return seconds_since(begin);
  }

 private:
  Model model_;
  AdamW optimizer_;
  FullGradSink sink_;
  int64_t B_, T_;
  std::vector<int32_t> ids_;
};

int run(const std::string& name, bool bf16, const std::string& device, int steps) {
  const Shape shape = kShapes.at(name);
  const ModelConfig config = config_of(shape);
  const bool cuda = device == "cuda";
  const auto ops = cuda ? make_cuda_ops() : make_cpu_ops(std::stoi(device));
  const DType X = bf16 ? DType::BF16 : DType::F32;
  const double N = double(shape.B * shape.T), flops = flops_per_token(config) * N;
  const double bandwidth = memory_bandwidth(*ops);
  Peak peak_meter(*ops, X, cuda ? 0 : 1248);
  Step step(*ops, config, shape.B, X);
  step.run();  // touches memory, creates primitives
  std::vector<double> seconds, peaks = {peak_meter.measure()}, shares;
  for (int i = 0; i < steps; i++) {
    seconds.push_back(step.run());
    peaks.push_back(peak_meter.measure());
    shares.push_back(flops / seconds.back() / ((peaks[size_t(i)] + peaks.back()) / 2));
  }

  std::map<std::string, OpCost> costs;
  ops->profile(&costs);
  const double profiled = step.run();
  ops->profile(nullptr);
  const double peak = (peaks.back() + peak_meter.measure()) / 2;
  Json budget = Json::object();
  for (const auto& [op, cost] : costs)
    budget[op] = {{"calls", cost.calls},
                  {"ms", cost.seconds * 1e3},
                  {"gflop", cost.flops * 1e-9},
                  {"gbyte", cost.bytes * 1e-9},
                  {"floor_ms", 1e3 * std::max(cost.flops / peak, cost.bytes / bandwidth)}};
  const Json result = {{"shape", name},
                       {"dtype", bf16 ? "bf16" : "fp32"},
                       {"threads", device},
                       {"ms_per_step", median(seconds) * 1e3},
                       {"fastest_ms", *std::min_element(seconds.begin(), seconds.end()) * 1e3},
                       {"tokens_per_s", N / median(seconds)},
                       {"peak_gflops", median(peaks) * 1e-9},
                       {"gbytes_per_s", bandwidth * 1e-9},
                       {"share_of_peak", median(shares)},
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
        "usage: step_bench gpt2-124M[-T64|-T1024]|char|llama-60M|llama-130M-T1024|llama-350M-T1024 "
        "fp32|bf16 THREADS|cuda STEPS\n");
    return 2;
  }
  return loqal::run(argv[1], std::string(argv[2]) == "bf16", argv[3], std::stoi(argv[4]));
}
