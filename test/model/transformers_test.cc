// Models that transformers wrote, and what transformers computes with them. The small ones in
// test/golden/transformers/ come from test/golden/transformers_parity.py, which also gives this
// test larger ones, and ones that loqal exported, in $LOQAL_TRANSFORMERS (directories with colons
// between).
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "core/safetensors.h"
#include "model/checkpoint.h"
#include "model/sampling.h"

namespace loqal {
namespace {

template <class T>
std::vector<T> tensor(const SafetensorsReader& file, const std::string& name) {
  const auto* p = static_cast<const T*>(file.data(name));
  return {p, p + file.info(name).numel()};
}

std::vector<std::string> directories() {
  std::vector<std::string> found = glob_files("test/golden/transformers/*");
  EXPECT_EQ(found.size(), 3u);
  const char* more = getenv("LOQAL_TRANSFORMERS");
  std::istringstream in(more ? more : "");
  for (std::string directory; std::getline(in, directory, ':');) found.push_back(directory);
  return found;
}

// 1e-5 of logits between -4 and 4: theirs in double, ours in fp32, position by position in one pass
// and over the cache.
TEST(TransformersTest, LogitsAndGreedyIdsAreTheirs) {
  for (const std::string& directory : directories()) {
    SCOPED_TRACE(directory);
    const SafetensorsReader golden(directory + "/golden.safetensors");
    const auto prompt = tensor<int32_t>(golden, "prompt"),
               greedy = tensor<int32_t>(golden, "greedy");
    const auto expected = tensor<double>(golden, "logits");
    const auto ops = make_cpu_ops(2);
    Model model(*ops, read_model_config(directory), {.training = false, .cache = true});
    load_weights(directory, model);
    double worst = 0, largest = 0;
    for (const bool cached : {false, true})
      for (int64_t t = 0; t < int64_t(prompt.size()); t++) {
        const auto last = prompt.begin() + t + 1;
        const std::vector<float> logits =
            model.next_logits({cached ? last - 1 : prompt.begin(), last}, cached ? t : 0);
        const double* row = &expected[size_t(t) * logits.size()];
        for (size_t i = 0; i < logits.size(); i++) {
          worst = std::max(worst, std::abs(double(logits[i]) - row[i]));
          largest = std::max(largest, std::abs(row[i]));
        }
      }
    EXPECT_LE(worst, 1e-5);
    EXPECT_GT(largest, 1.0) << "too small to tell";
    const SamplingConfig sampling{.tokens = int64_t(greedy.size()), .temperature = 0};
    EXPECT_EQ(sample(model, prompt, sampling, [](int32_t) {}), greedy);
    if (getenv("LOQAL_TRANSFORMERS"))
      std::printf("%s  logits up to %.1f, largest difference %.1e; %zu greedy ids equal\n",
                  directory.c_str(), largest, worst, greedy.size());
  }
}

}  // namespace
}  // namespace loqal
