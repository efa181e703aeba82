#include "optim/outer.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace loqal {

namespace {

using Kind = OuterConfig::Kind;
constexpr double kBeta2 = 0.999, kEpsilon = 1e-8;

bool has_momentum(const OuterConfig& c) { return c.kind != Kind::sgd; }
bool has_second(const OuterConfig& c) { return c.kind == Kind::adam; }
bool has_sum(const OuterConfig& c) { return c.kind == Kind::dn || c.collect != 1; }

}  // namespace

int64_t OuterOptimizer::state_vectors(const OuterConfig& c) {
  return int64_t(has_momentum(c)) + int64_t(has_second(c)) + int64_t(has_sum(c));
}

OuterOptimizer::OuterOptimizer(const OuterConfig& config, int64_t size)
    : config_(config),
      momentum_(size_t(has_momentum(config) ? size : 0)),
      second_(size_t(has_second(config) ? size : 0)),
      sum_(size_t(has_sum(config) ? size : 0)) {
  LOQAL_ASSERT(config.collect >= 0 && config.period >= 1, config.collect, " ", config.period);
}

void OuterOptimizer::push(std::span<float> w, std::span<const float> g) {
  if (config_.kind == Kind::dn) return delayed_nesterov(w, g);
  if (config_.collect == 1) return step(w, g);
  for (size_t i = 0; i < g.size(); i++) sum_[i] += g[i];
  if (++pending_ == config_.collect) flush(w);
}

void OuterOptimizer::flush(std::span<float> w) {
  if (pending_ == 0) return;
  const float mean = 1.0f / float(pending_);
  for (float& s : sum_) s *= mean;
  step(w, sum_);
  std::fill(sum_.begin(), sum_.end(), 0.0f);
  pending_ = 0;
}

void OuterOptimizer::step(std::span<float> w, std::span<const float> g) {
  steps_++;
  const auto e = float(config_.lr), b = float(config_.momentum);
  float *m = momentum_.data(), *v = second_.data();
  const size_t n = g.size();
  switch (config_.kind) {
    case Kind::sgd:
      for (size_t i = 0; i < n; i++) w[i] -= e * g[i];
      return;
    case Kind::heavyball:
      for (size_t i = 0; i < n; i++) w[i] -= e * (m[i] = b * m[i] + g[i]);
      return;
    case Kind::nesterov:
      for (size_t i = 0; i < n; i++) {
        m[i] = b * m[i] + g[i];
        w[i] -= e * (g[i] + b * m[i]);
      }
      return;
    case Kind::adam: {
      const auto b2 = float(kBeta2);
      const auto rate = float(config_.lr / (1 - std::pow(config_.momentum, double(steps_))));
      const auto debias = float(1 / (1 - std::pow(kBeta2, double(steps_))));
      for (size_t i = 0; i < n; i++) {
        m[i] = b * m[i] + (1 - b) * g[i];
        v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        w[i] -= rate * m[i] / (std::sqrt(v[i] * debias) + float(kEpsilon));
      }
      return;
    }
    case Kind::dn: LOQAL_ASSERT(false, "dn has a step of its own");
  }
}

void OuterOptimizer::delayed_nesterov(std::span<float> w, std::span<const float> g) {
  const auto b = float(config_.momentum), part = 1.0f / float(config_.period);
  const double N = double(config_.period);
  const bool last = ++pending_ == config_.period;
  const auto e = float(config_.lr),
             share = float(last ? 1 - config_.c * N + config_.c : config_.c) * b;
  float *m = momentum_.data(), *sum = sum_.data();
  for (size_t i = 0; i < g.size(); i++) {
    sum[i] += g[i];
    if (last) {
      m[i] = b * m[i] + sum[i] * part;
      sum[i] = 0;
    }
    w[i] -= e * (share * m[i] + g[i] * part);
  }
  if (!last) return;
  pending_ = 0;
  steps_++;
}

std::vector<std::pair<std::string, std::span<float>>> OuterOptimizer::state() {
  std::vector<std::pair<std::string, std::span<float>>> all;
  if (!momentum_.empty()) all.push_back({"momentum", momentum_});
  if (!second_.empty()) all.push_back({"second", second_});
  if (!sum_.empty()) all.push_back({"sum", sum_});
  return all;
}

}  // namespace loqal
