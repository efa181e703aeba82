// The random numbers of the authors' notebook: MT19937 as Python, numpy and torch use it
// (spec/async.md 4.3), and with them the notebook's choice of data shards.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "async/scheduler.h"

namespace loqal {

/// Python's random.seed(42): the C library's generator, seeded with the array {42}.
class PythonRandom {
 public:
  explicit PythonRandom(uint32_t seed) {
    constexpr int n = 624;
    std::vector<uint32_t> s(n);
    s[0] = 19650218u;
    for (uint32_t i = 1; i < n; i++) s[i] = 1812433253u * (s[i - 1] ^ s[i - 1] >> 30) + i;
    uint32_t i = 1;
    for (int k = 0; k < n; k++) {
      s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + seed;
      if (++i == n) s[0] = s[n - 1], i = 1;
    }
    for (int k = 1; k < n; k++) {
      s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
      if (++i == n) s[0] = s[n - 1], i = 1;
    }
    s[0] = 0x80000000u;
    set_state(s);
  }
  uint32_t below(uint32_t n) {
    const int bits = 32 - __builtin_clz(n);
    for (;;)
      if (const uint32_t r = uint32_t(engine_() >> (32 - bits)); r < n) return r;
  }
  template <class T>
  void shuffle(std::vector<T>& x) {
    for (uint32_t i = uint32_t(x.size()) - 1; i > 0; i--) std::swap(x[i], x[below(i + 1)]);
  }
  std::vector<int> shuffled(int n) {
    std::vector<int> x(static_cast<size_t>(n));
    std::iota(x.begin(), x.end(), 0);
    shuffle(x);
    return x;
  }

 private:
  void set_state(const std::vector<uint32_t>& s) {
    std::string text;
    for (const uint32_t v : s) text += std::to_string(v) + " ";
    std::istringstream(text + "624") >> engine_;  // all used up: the next call makes new ones
  }
  std::mt19937 engine_;
};

/// numpy's legacy seed(42).
class NumpyRandom {
 public:
  explicit NumpyRandom(uint32_t seed) : engine_(seed) {}
  /// Polar Box-Muller, two at a time.
  double normal() {
    if (has_next_) return has_next_ = false, next_;
    double x1, x2, r2;
    do {
      x1 = 2 * uniform() - 1;
      x2 = 2 * uniform() - 1;
      r2 = x1 * x1 + x2 * x2;
    } while (r2 >= 1 || r2 == 0);
    const double f = std::sqrt(-2 * std::log(r2) / r2);
    next_ = f * x1, has_next_ = true;
    return f * x2;
  }
  /// So many normals are drawn and forgotten; an even number.
  void skip_normals(int64_t n) {
    for (; n > 0; n -= 2)
      for (double r2 = 0; r2 >= 1 || r2 == 0;) {
        const double x1 = 2 * uniform() - 1, x2 = 2 * uniform() - 1;
        r2 = x1 * x1 + x2 * x2;
      }
  }
  uint32_t choice(uint32_t n) {
    if (n == 1) return 0;
    uint32_t mask = n - 1;
    for (const int shift : {1, 2, 4, 8, 16}) mask |= mask >> shift;
    for (;;)
      if (const uint32_t r = uint32_t(engine_()) & mask; r < n) return r;
  }

 private:
  double uniform() {
    const auto high = uint32_t(engine_()) >> 5, low = uint32_t(engine_()) >> 6;
    return (high * 67108864.0 + low) / 9007199254740992.0;
  }
  std::mt19937 engine_;
  double next_ = 0;
  bool has_next_ = false;
};

/// Uniform among the shards with the fewest visits, with numpy's numbers.
inline Scheduler::Sampler toy_sampler() {
  auto random = std::make_shared<NumpyRandom>(42);
  return [random](int, const std::vector<ShardCount>& shards) {
    int64_t fewest = shards[0].visits;
    for (const ShardCount& s : shards) fewest = std::min(fewest, s.visits);
    std::vector<int> candidates;
    for (int i = 0; i < int(shards.size()); i++)
      if (shards[size_t(i)].visits == fewest) candidates.push_back(i);
    return candidates[random->choice(uint32_t(candidates.size()))];
  };
}

}  // namespace loqal
