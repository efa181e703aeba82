#include "async/server.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/json.h"

namespace loqal {

namespace {

constexpr size_t kRemembered = 64, kNeeded = 8;  // norms
constexpr double kTooLarge = 10;

// In double and in a fixed order; eight sums, so that it is as fast as memory.
double dot(std::span<const float> a, std::span<const float> b) {
  constexpr size_t lanes = 8;
  double lane[lanes] = {};
  size_t i = 0;
  for (; i + lanes <= a.size(); i += lanes)
    for (size_t j = 0; j < lanes; j++) lane[j] += double(a[i + j]) * double(b[i + j]);
  for (; i < a.size(); i++) lane[0] += double(a[i]) * double(b[i]);
  double sum = 0;
  for (const double l : lane) sum += l;
  return sum;
}

// norms: the product of both.
double cosine(std::span<const float> a, std::span<const float> b, double norms) {
  return norms > 0 ? dot(a, b) / norms : 0;
}

double median(std::deque<double> values) {
  const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

double PushWeight::of(int64_t staleness) const {
  return kind == Kind::constant ? value : 1 / std::sqrt(1.0 + double(staleness));
}

Server::Server(const ServerConfig& config, std::vector<float> weights)
    : config_(config),
      weights_(std::make_shared<std::vector<float>>(std::move(weights))),
      previous_(weights_->size()),
      outer_(config.outer, int64_t(weights_->size())) {}

bool Server::too_stale(const Push& push) const {
  return config_.weight.kind == PushWeight::Kind::polythres &&
         double(push.staleness) > config_.weight.value;
}

std::string Server::refusal(const Push& push, double norm) const {
  if (!push.failure.empty()) return push.failure;
  if (!std::isfinite(norm)) return "the norm is not finite";
  if (too_stale(push)) return cat("staleness ", push.staleness, " is above ", config_.weight.value);
  if (norms_.size() < kNeeded) return "";
  const double usual = median(norms_);
  if (norm <= kTooLarge * usual || norm / double(push.steps) <= kTooLarge * median(step_norms_))
    return "";
  return cat("the norm is more than ", kTooLarge, " times the usual ", usual);
}

// Weights that somebody still needs as they are, because a round began from them, are copied first.
std::span<float> Server::writable() {
  if (weights_.use_count() > 1) weights_ = std::make_shared<std::vector<float>>(*weights_);
  return *weights_;
}

Verdict Server::push(const Push& push) {
  Verdict v{.weight = config_.weight.of(push.staleness)};
  const std::span<float> g = push.delta;
  LOQAL_ASSERT(!push.failure.empty() || g.size() == weights_->size(), g.size());
  v.norm = push.failure.empty() ? std::sqrt(dot(g, g)) : std::nan("");
  v.reason = refusal(push, v.norm);
  v.accepted = v.reason.empty();
  if (!v.accepted) {
    v.distrust = !std::isfinite(v.norm) || !too_stale(push);
    distrusted_in_a_row_ += v.distrust;
    return v;
  }
  const std::span<const float> momentum = outer_.momentum();
  if (!momentum.empty())
    v.cos_momentum = cosine(g, momentum, v.norm * std::sqrt(dot(momentum, momentum)));
  if (accepted_ > 0) v.cos_previous = cosine(g, previous_, v.norm * norms_.back());
  std::copy(g.begin(), g.end(), previous_.begin());
  norms_.push_back(v.norm), step_norms_.push_back(v.norm / double(push.steps));
  if (norms_.size() > kRemembered) norms_.pop_front(), step_norms_.pop_front();
  accepted_++;
  distrusted_in_a_row_ = 0;

  if (config_.delay_compensation > 0) {
    const auto lambda = float(config_.delay_compensation);
    const std::vector<float>&now = *weights_, &then = *push.start;
    for (size_t i = 0; i < g.size(); i++) g[i] += lambda * g[i] * g[i] * (now[i] - then[i]);
  }
  if (v.weight != 1)
    for (float& x : g) x *= float(v.weight);
  outer_.push(outer_.collects() ? std::span<float>() : writable(), g);
  return v;
}

void Server::end_round() {
  if (outer_.pending() > 0) outer_.flush(writable());
}

std::vector<std::pair<std::string, std::span<float>>> Server::vectors() {
  auto all = outer_.state();
  all.push_back({"previous", previous_});
  return all;
}

Json Server::state() const {
  return {{"accepted", accepted_},
          {"distrusted_in_a_row", distrusted_in_a_row_},
          {"norms", std::vector<double>(norms_.begin(), norms_.end())},
          {"step_norms", std::vector<double>(step_norms_.begin(), step_norms_.end())},
          {"pending", outer_.pending()},
          {"outer_steps", outer_.steps()}};
}

void Server::restore(const Json& state, const std::string& where) {
  accepted_ = get<int64_t>(state, "accepted", where);
  distrusted_in_a_row_ = get<int64_t>(state, "distrusted_in_a_row", where);
  const auto norms = get<std::vector<double>>(state, "norms", where),
             step_norms = get<std::vector<double>>(state, "step_norms", where);
  norms_.assign(norms.begin(), norms.end());
  step_norms_.assign(step_norms.begin(), step_norms.end());
  outer_.set_counters(get<int64_t>(state, "pending", where),
                      get<int64_t>(state, "outer_steps", where));
}

int64_t Server::bytes(const ServerConfig& config, int64_t size, int64_t versions) {
  const int64_t vectors = 1 + OuterOptimizer::state_vectors(config.outer) +  // and `previous`
                          int64_t(config.delay_compensation > 0);  // the start of the push at hand
  return (vectors + versions) * size * int64_t(sizeof(float));
}

}  // namespace loqal
