// Outer optimizers: what the server of Local-SGD does with pseudo-gradients g = start - end of the
// workers' rounds. g is subtracted like a gradient. All in fp32 on the host; e is the outer
// learning rate, b the outer momentum.
//
//   sgd        w -= e g
//   heavyball  m = b m + g;  w -= e m
//   nesterov   m = b m + g;  w -= e (g + b m)         (PyTorch's SGD with nesterov; paper, Eq. 4)
//   adam       m = b m + (1-b) g;  v = .999 v + .001 g^2;  w -= e m^ / (sqrt(v^) + 1e-8)
//   dn         delayed Nesterov of period N: every push w -= e g / N, and the momentum once in a
//              period: m = b m + mean(g); w -= e (1 - c N + c) b m, where each of the N - 1 pushes
//              between does w -= e c b m           (Liu et al. 2024, arXiv 2401.09135, Alg. 3)
//
// The first four take one step for each push, or with collect(N) one for the mean of N pushes
// (FedBuff's buffer, Nguyen et al. 2021), or with collect(0) one when flush() is called: DiLoCo.
// Identities: dn with N = 1 and c = 0 is nesterov; with c = 0 its N pushes move w as one nesterov
// step on their mean does.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace loqal {

struct OuterConfig {
  enum class Kind { sgd, heavyball, nesterov, adam, dn };
  Kind kind = Kind::nesterov;
  double lr = 0.7, momentum = 0.9;
  int64_t collect = 1;  ///< pushes of one step; 0: until flush(). Not for dn
  int64_t period = 4;   ///< of dn
  double c = 0;         ///< of dn: share of the momentum that each push applies, 0 to 1/period
};

class OuterOptimizer {
 public:
  OuterOptimizer(const OuterConfig& config, int64_t size);

  /// One pseudo-gradient g, with all consequences for the weights; both of `size` numbers.
  void push(std::span<float> weights, std::span<const float> g);
  /// collect(0): the step for the mean of the pushes since the last flush(); nothing without one.
  void flush(std::span<float> weights);
  /// Whether the next push leaves the weights as they are.
  bool collects() const { return config_.collect != 1 && pending_ + 1 != config_.collect; }

  /// Vectors of `size` numbers that the optimizer keeps: {"momentum", m}, {"second", v} and
  /// {"sum", of the pushes of this period}, as far as it has them.
  std::vector<std::pair<std::string, std::span<float>>> state();
  std::span<const float> momentum() const { return momentum_; }
  static int64_t state_vectors(const OuterConfig& config);
  int64_t pending() const { return pending_; }  ///< pushes in the sum
  int64_t steps() const { return steps_; }
  void set_counters(int64_t pending, int64_t steps) { pending_ = pending, steps_ = steps; }

 private:
  void step(std::span<float> weights, std::span<const float> g);
  void delayed_nesterov(std::span<float> weights, std::span<const float> g);

  OuterConfig config_;
  std::vector<float> momentum_, second_, sum_;
  int64_t pending_ = 0, steps_ = 0;
};

}  // namespace loqal
