// A source whose best possible loss is known: a first-order Markov chain with few successors for
// each state. Its entropy rate, sum over i of pi(i) H(P(i, .)), is what no model can beat (Shannon
// 1948).
#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "core/philox.h"

namespace loqal {

class MarkovSource {
 public:
  static constexpr int kStates = 16, kSuccessors = 4;

  explicit MarkovSource(uint64_t seed) : p_(kStates * kStates, 0.0) {
    const PhiloxStream random(seed, Purpose::test);
    uint64_t n = 0;
    for (int i = 0; i < kStates; i++) {
      double total = 0;
      p(i, (i + 1) % kStates) =
          1e-3;  // a ring of rare steps: every state is reached from every other
      for (int k = 0; k < kSuccessors; k++, n += 2)
        p(i, int(random.bits(n) % kStates)) += 0.1 + double(random.uniform(n + 1));
      for (int j = 0; j < kStates; j++) total += p(i, j);
      for (int j = 0; j < kStates; j++) p(i, j) /= total;
    }
  }

  std::vector<int32_t> draw(uint64_t seed, size_t count) const {
    const PhiloxStream random(seed, Purpose::test, 1);
    std::vector<int32_t> ids;
    int state = 0;
    for (size_t n = 0; n < count; n++) {
      double u = double(random.uniform(n));
      int next = 0;
      for (int j = 0; j < kStates && u >= 0; j++)
        if (p(state, j) > 0) next = j, u -= p(state, j);
      ids.push_back(state = next);
    }
    return ids;
  }

  /// Nats per token.
  double entropy() const {
    std::vector<double> pi(kStates, 1.0 / kStates);
    for (int round = 0; round < 1000; round++) {  // power iteration
      std::vector<double> next(kStates, 0.0);
      for (int i = 0; i < kStates; i++)
        for (int j = 0; j < kStates; j++) next[size_t(j)] += pi[size_t(i)] * p(i, j);
      pi = next;
    }
    double h = 0;
    for (int i = 0; i < kStates; i++)
      for (int j = 0; j < kStates; j++)
        if (p(i, j) > 0) h -= pi[size_t(i)] * p(i, j) * std::log(p(i, j));
    return h;
  }

  /// Mean of -log p over a sample: the entropy, but for this sample's luck.
  double loss_on(const std::vector<int32_t>& ids) const {
    double sum = 0;
    for (size_t n = 1; n < ids.size(); n++) sum -= std::log(p(ids[n - 1], ids[n]));
    return sum / double(ids.size() - 1);
  }

 private:
  double& p(int i, int j) { return p_[size_t(i * kStates + j)]; }
  double p(int i, int j) const { return p_[size_t(i * kStates + j)]; }
  std::vector<double> p_;
};

}  // namespace loqal
