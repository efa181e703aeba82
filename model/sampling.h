// Text from a model, one token at a time.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "model/model.h"

namespace loqal {

struct SamplingConfig {
  int64_t tokens = 100;      ///< at most this many new ones
  double temperature = 1.0;  ///< 0: always the most likely token
  double top_p = 1.0;  ///< nucleus sampling (Holtzman et al. 2020); 1: all of the distribution
  uint64_t seed = 1;
  std::vector<int32_t> eos;  ///< each ends the text, and is the last of what is returned
  int64_t ids = 0;  ///< of the tokenizer: of the model's others only eos is drawn; 0: no limit
};

/// One draw from softmax(logits / temperature), cut to the smallest set of tokens whose probability
/// is at least top_p. u in [0, 1) is the random number. Ties go to the smaller id.
/// Error (exit 3) if a logit is not finite.
int32_t sample_token(const std::vector<float>& logits, double temperature, double top_p, double u);

/// Continues `prompt` (not empty). The model has a cache: after the prompt each token costs one
/// position. A model sees config.T positions; when they are full, the newer half of them is
/// computed anew from position 0 and the older half forgotten. Of a longer prompt the end is seen.
/// `emit` gets each new token at once, but eos. Returns the new tokens.
std::vector<int32_t> sample(Model& model, const std::vector<int32_t>& prompt,
                            const SamplingConfig& config, const std::function<void(int32_t)>& emit);

}  // namespace loqal
