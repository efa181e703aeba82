// What a model is: architecture and sizes. The letters are those of design.md:
//   L layers  C channels  NH heads  NKV key/value heads  HS head size  F feed-forward width
//   V vocabulary  Vp padded vocabulary  T sequence length (positions)
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/json_fwd.h"

namespace loqal {

enum class Arch { gpt2, llama };

struct ModelConfig {
  Arch arch = Arch::llama;
  std::string preset;  ///< where the sizes came from; informational
  int64_t L = 0;
  int64_t C = 0;
  int64_t NH = 0;
  int64_t NKV = 0;  ///< divides NH; GPT-2: equal to NH
  int64_t HS = 0;   ///< need not be C / NH (see own_heads()); even for Llama (RoPE)
  int64_t F = 0;
  int64_t V = 0;
  int64_t T = 0;
  bool tied = false;  ///< the head is the token embedding
  float norm_eps = 1e-5f;
  float rope_theta = 10000;

  /// Rows of the embedding in memory. The padding rows are zero, get no gradient, and are never
  /// part of logits, loss or checkpoints.
  int64_t Vp() const { return (V + 127) / 128 * 128; }
  /// Heads that are not C / NH wide: "head_dim" in config.json. Llama in transformers knows that
  /// key, GPT-2 does not: there its heads are always n_embd / n_head wide, so that such a GPT-2
  /// checkpoint is read by loqal alone. Its config.json says so under "loqal_only".
  bool own_heads() const { return NH * HS != C; }
  const char* arch_name() const { return arch == Arch::gpt2 ? "gpt2" : "llama"; }
};

/// Sizes of a preset, usage error with the list of names if unknown. Vocabulary and sequence length
/// are the family's defaults: 50257/1024 (GPT-2), 32000/256 (Llama as in GaLore and LoQT),
/// 32000/1024 (async).
ModelConfig preset_config(const std::string& name);
std::vector<std::string> preset_names();

/// Usage error naming the option whose value cannot be.
void validate(const ModelConfig& config);

/// FLOPs of forward and backward per token: 6 x weights that multiply, plus causal attention
/// 6 L NH HS T (Chowdhery et al. 2022, appendix B, halved for the causal mask).
double flops_per_token(const ModelConfig& config);

/// Hugging Face's config.json for this model, and back. Error naming the file and the key for a key
/// that is missing, or that asks for a model whose results ours would not be (RoPE scaling, other
/// activations, biases ...).
Json to_hf_config(const ModelConfig& config, int bos, int eos);  ///< ids: -1 is null
ModelConfig from_hf_config(const Json& json, const std::string& where);

}  // namespace loqal
