#include "model/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "core/philox.h"

namespace loqal {

int32_t sample_token(const std::vector<float>& logits, double temperature, double top_p, double u) {
  // NaN compares with nothing, which std::sort must not see; infinity - infinity is NaN as well.
  for (size_t i = 0; i < logits.size(); i++)
    if (!std::isfinite(logits[i]))
      fail_nonfinite(cat("cannot sample: the logit of token ", i, " is ", logits[i]),
                     "the model's weights are damaged or its training diverged");
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[size_t(a)] != logits[size_t(b)] ? logits[size_t(a)] > logits[size_t(b)] : a < b;
  };
  if (temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  std::sort(order.begin(), order.end(), likelier);
  std::vector<double> weight;
  double total = 0;
  for (int32_t id : order) {
    weight.push_back(std::exp(double(logits[size_t(id)] - logits[size_t(order[0])]) / temperature));
    total += weight.back();
  }
  double kept = 0;
  size_t count = 0;
  while (count < weight.size() && (count == 0 || kept < top_p * total)) kept += weight[count++];
  double point = u * kept;
  for (size_t i = 0; i < count; i++) {
    point -= weight[i];
    if (point < 0) return order[i];
  }
  return order[count - 1];
}

std::vector<int32_t> sample(Model& model, const std::vector<int32_t>& prompt,
                            const SamplingConfig& config,
                            const std::function<void(int32_t)>& emit) {
  LOQAL_ASSERT(!prompt.empty(), "sampling starts from at least one token");
  const PhiloxStream stream(config.seed, Purpose::sample);
  const int64_t window = model.config().T;
  const auto ends = [&](int32_t id) {
    return std::find(config.eos.begin(), config.eos.end(), id) != config.eos.end();
  };
  std::vector<int32_t> text = prompt, made, choices;
  for (int32_t id = 0; id < model.config().V; id++)
    if (config.ids == 0 || id < config.ids || ends(id)) choices.push_back(id);
  // Tokens of `text` from `next` on are new to the model, which has seen `past` before them.
  int64_t past = 0, next = std::max<int64_t>(0, int64_t(text.size()) - window);
  for (int64_t n = 0; n < config.tokens; n++) {
    if (past == window) past = 0, next = int64_t(text.size()) - std::max<int64_t>(1, window / 2);
    std::vector<float> logits = model.next_logits({text.begin() + next, text.end()}, past);
    past += int64_t(text.size()) - next;
    next = int64_t(text.size());
    for (size_t i = 0; i < choices.size(); i++) logits[i] = logits[size_t(choices[i])];
    logits.resize(choices.size());
    const int32_t id = choices[size_t(
        sample_token(logits, config.temperature, config.top_p, stream.uniform(uint64_t(n))))];
    made.push_back(id);
    text.push_back(id);
    if (ends(id)) break;
    emit(id);
  }
  return made;
}

}  // namespace loqal
