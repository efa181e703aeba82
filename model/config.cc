#include "model/config.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/json.h"
#include "core/suggest.h"

namespace loqal {

namespace {

struct Preset {
  const char* name;
  Arch arch;
  int64_t C, F, NH, HS, L, V, T;
  bool tied;
};

// GPT-2: Radford et al. 2019. Llama: the configurations of GaLore and LoQT (C, F, NH, L). async:
// "Asynchronous Local-SGD Training for Language Modeling", table 6; its unstated FFN is taken as
// SwiGLU of 8/3 C.
constexpr Preset kPresets[] = {
    {"gpt2-tiny", Arch::gpt2, 128, 512, 4, 32, 4, 50257, 256, true},
    {"gpt2-124M", Arch::gpt2, 768, 3072, 12, 64, 12, 50257, 1024, true},
    {"gpt2-350M", Arch::gpt2, 1024, 4096, 16, 64, 24, 50257, 1024, true},
    {"gpt2-774M", Arch::gpt2, 1280, 5120, 20, 64, 36, 50257, 1024, true},
    {"gpt2-1.5B", Arch::gpt2, 1600, 6400, 25, 64, 48, 50257, 1024, true},
    {"llama-9M", Arch::llama, 128, 352, 4, 32, 4, 32000, 256, false},
    {"llama-20M", Arch::llama, 256, 688, 4, 64, 4, 32000, 256, false},
    {"llama-35M", Arch::llama, 384, 1024, 8, 48, 6, 32000, 256, false},
    {"llama-60M", Arch::llama, 512, 1376, 8, 64, 8, 32000, 256, false},
    {"llama-130M", Arch::llama, 768, 2048, 12, 64, 12, 32000, 256, false},
    {"llama-350M", Arch::llama, 1024, 2736, 16, 64, 24, 32000, 256, false},
    {"llama-1B", Arch::llama, 2048, 5461, 32, 64, 24, 32000, 256, false},
    {"llama-7B", Arch::llama, 4096, 11008, 32, 128, 32, 32000, 256, false},
    {"llama-13B", Arch::llama, 5120, 13824, 40, 128, 40, 32000, 256, false},
    {"async-20M", Arch::llama, 256, 688, 4, 64, 6, 32000, 1024, false},
    {"async-60M", Arch::llama, 896, 2392, 16, 64, 3, 32000, 1024, true},
    {"async-150M", Arch::llama, 896, 2392, 16, 64, 12, 32000, 1024, true},
};

/// Keys of a foreign config.json that change what the model computes: each must be absent, null or
/// what this program does.
class ForeignKeys {
 public:
  ForeignKeys(const Json& json, const std::string& where) : json_(json), where_(where) {}

  void require(const char* key, bool ours) const {
    if (get_or<bool>(json_, key, where_, ours) != ours) refuse(key, ours ? "true" : "false");
  }
  void require(const char* key, const std::vector<std::string>& ours) const {
    const std::string found = get_or<std::string>(json_, key, where_, ours[0]);
    if (std::find(ours.begin(), ours.end(), found) == ours.end()) refuse(key, ours[0]);
  }
  void require_none(const char* key) const {
    if (json_.contains(key) && !json_[key].is_null()) refuse(key, "null");
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& ours) const {
    fail(cat(where_, ": \"", key, "\": expected ", ours, ", found ",
             json_detail::shortened(json_[key])),
         "loqal does not compute that kind of model");
  }
  const Json& json_;
  const std::string where_;
};

void check_gpt2_math(const Json& j, const std::string& where) {
  const ForeignKeys keys(j, where);
  keys.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"});  // one formula, two names
  keys.require("scale_attn_weights", true);
  keys.require("scale_attn_by_inverse_layer_idx", false);
  keys.require("add_cross_attention", false);
  keys.require("tie_word_embeddings", true);
  keys.require_none("quantization_config");
}

void check_llama_math(const Json& j, const std::string& where) {
  const ForeignKeys keys(j, where);
  keys.require("hidden_act", std::vector<std::string>{"silu"});
  keys.require("attention_bias", false);
  keys.require("mlp_bias", false);
  keys.require_none("rope_scaling");
  keys.require_none("quantization_config");
}

/// The base of the rotary angles: under "rope_parameters" in files of transformers 5, before beside
/// the other keys.
double read_rope_theta(const Json& j, const std::string& where) {
  if (!j.contains("rope_parameters") || j["rope_parameters"].is_null())
    return get_or<double>(j, "rope_theta", where, 10000);
  const Json rope = get<Json>(j, "rope_parameters", where);
  const std::string there = where + ": rope_parameters";
  ForeignKeys(rope, there).require("rope_type", std::vector<std::string>{"default"});
  if (get_or<double>(rope, "partial_rotary_factor", there, 1) != 1)
    fail(there + ": \"partial_rotary_factor\": expected 1");
  return rope.contains("rope_theta") ? get<double>(rope, "rope_theta", there)
                                     : get<double>(j, "rope_theta", where);
}

// 1e-05 and not 9.999999747378752e-06, which a reader in double precision would take for another
// number than the file that the float came from has.
double shortest(float x) {
  char text[32];
  double value = x;
  std::from_chars(text, std::to_chars(text, text + sizeof text, x).ptr, value);
  return value;
}

void check_positive(double x, const char* key, const std::string& where) {
  if (!(x > 0) || !std::isfinite(float(x)))
    fail(cat(where, ": \"", key, "\": expected a positive number, found ", x));
}

}  // namespace

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}

ModelConfig preset_config(const std::string& name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    ModelConfig c;
    c.arch = p.arch, c.preset = name, c.L = p.L, c.C = p.C, c.NH = c.NKV = p.NH, c.HS = p.HS,
    c.F = p.F;
    c.V = p.V, c.T = p.T, c.tied = p.tied;
    c.norm_eps = p.arch == Arch::gpt2 ? 1e-5f : 1e-6f;
    return c;
  }
  std::string all;
  for (const std::string& p : preset_names()) all += " " + p;
  fail_usage(
      cat("--model ", name, ": no such preset; did you mean ", closest(name, preset_names()), "?"),
      "presets:" + all);
}

void validate(const ModelConfig& c) {
  const auto at_least = [](const char* option, int64_t value, int64_t low) {
    if (value < low) fail_usage(cat(option, " ", value, ": must be at least ", low));
  };
  at_least("--layers", c.L, 1);
  at_least("--width", c.C, 1);
  at_least("--heads", c.NH, 1);
  at_least("--kv-heads", c.NKV, 1);
  at_least("--head-dim", c.HS, 1);
  at_least("--ffn", c.F, 1);
  at_least("--vocab", c.V, 2);
  at_least("--seq-len", c.T, 1);
  const double weights =
      double(c.L) * double(c.C) * (4.0 * double(c.NH) * double(c.HS) + 3.0 * double(c.F)) +
      double(c.C) * double(c.V);
  if (weights > 1e13)
    fail_usage(cat("this model has ", weights, " weights; sizes are computed for up to 1e13"));
  if (c.NH % c.NKV) fail_usage(cat("--kv-heads ", c.NKV, ": must divide --heads ", c.NH));
  if (c.arch == Arch::gpt2 && c.NKV != c.NH)
    fail_usage(
        cat("--kv-heads ", c.NKV, ": GPT-2 has as many key/value heads as heads (", c.NH, ")"),
        "grouped-query attention is part of --arch llama");
  if (c.arch == Arch::gpt2 && !c.tied)
    fail_usage("--tied false: GPT-2's head is its token embedding",
               "use --arch llama for an untied head");
  if (c.arch == Arch::llama && c.HS % 2)
    fail_usage(cat("--head-dim ", c.HS, ": must be even, rotary embedding turns pairs"));
}

double flops_per_token(const ModelConfig& c) {
  const double attention = double(c.C) * double(c.HS) * double(2 * c.NH + 2 * c.NKV);
  const double mlp = double(c.C) * double(c.F) * (c.arch == Arch::gpt2 ? 2 : 3);
  const double weights = double(c.L) * (attention + mlp) + double(c.C) * double(c.V);
  return 6 * weights + 6.0 * double(c.L) * double(c.NH) * double(c.HS) * double(c.T);
}

Json to_hf_config(const ModelConfig& c, int bos, int eos) {
  Json j;
  const bool gpt2 = c.arch == Arch::gpt2;
  j["architectures"] = {gpt2 ? "GPT2LMHeadModel" : "LlamaForCausalLM"};
  j["model_type"] = c.arch_name();
  j["vocab_size"] = c.V;
  if (gpt2) {
    j["n_positions"] = c.T;
    j["n_ctx"] = c.T;
    j["n_embd"] = c.C;
    j["n_layer"] = c.L;
    j["n_head"] = c.NH;
    j["n_inner"] = c.F;
    j["activation_function"] = "gelu_new";
    j["layer_norm_epsilon"] = shortest(c.norm_eps);
    for (const char* dropout : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) j[dropout] = 0.0;
  } else {
    j["hidden_size"] = c.C;
    j["intermediate_size"] = c.F;
    j["num_hidden_layers"] = c.L;
    j["num_attention_heads"] = c.NH;
    j["num_key_value_heads"] = c.NKV;
    j["max_position_embeddings"] = c.T;
    j["hidden_act"] = "silu";
    j["rms_norm_eps"] = shortest(c.norm_eps);
    j["rope_theta"] = shortest(c.rope_theta);
    j["attention_bias"] = false;
  }
  if (c.own_heads()) j["head_dim"] = c.HS;
  if (gpt2 && c.own_heads()) j["loqal_only"] = "head_dim: transformers' GPT-2 has no such key";
  j["tie_word_embeddings"] = c.tied;
  j["bos_token_id"] = bos >= 0 ? Json(bos) : Json(nullptr);
  j["eos_token_id"] = eos >= 0 ? Json(eos) : Json(nullptr);
  j["torch_dtype"] = "float32";
  return j;
}

ModelConfig from_hf_config(const Json& j, const std::string& where) {
  ModelConfig c;
  const std::string type = get<std::string>(j, "model_type", where);
  if (type != "gpt2" && type != "llama")
    fail(cat(where, ": model_type is \"", type, "\"; expected \"gpt2\" or \"llama\""));
  c.arch = type == "gpt2" ? Arch::gpt2 : Arch::llama;
  // 32 bits: no product of two sizes overflows.
  const auto number = [&](const char* key) {
    const int64_t n = get<int64_t>(j, key, where), most = std::numeric_limits<int32_t>::max();
    if (n < 1 || n > most) fail(cat(where, ": \"", key, "\": expected 1 to ", most, ", found ", n));
    return n;
  };
  const auto present = [&](const char* key) { return j.contains(key) && !j[key].is_null(); };
  c.V = number("vocab_size");
  if (c.arch == Arch::gpt2) {
    check_gpt2_math(j, where);
    c.T = number("n_positions"), c.C = number("n_embd"), c.L = number("n_layer"),
    c.NH = number("n_head");
    c.NKV = c.NH;
    c.F = present("n_inner") ? number("n_inner") : 4 * c.C;
    c.norm_eps = float(get<double>(j, "layer_norm_epsilon", where));
    c.tied = true;
  } else {
    check_llama_math(j, where);
    c.C = number("hidden_size"), c.F = number("intermediate_size"),
    c.L = number("num_hidden_layers");
    c.NH = number("num_attention_heads"), c.T = number("max_position_embeddings");
    c.NKV = present("num_key_value_heads") ? number("num_key_value_heads") : c.NH;
    c.norm_eps = float(get<double>(j, "rms_norm_eps", where));
    c.rope_theta = float(read_rope_theta(j, where));
    c.tied = present("tie_word_embeddings") && get<bool>(j, "tie_word_embeddings", where);
  }
  check_positive(c.norm_eps, c.arch == Arch::gpt2 ? "layer_norm_epsilon" : "rms_norm_eps", where);
  check_positive(c.rope_theta, "rope_theta", where);
  if (c.NKV > c.NH || c.NH % c.NKV)
    fail(cat(where, ": \"num_key_value_heads\": ", c.NKV, " does not divide ", c.NH, " heads"));
  if (!present("head_dim") && c.C % c.NH)
    fail(cat(where, ": ", c.NH, " heads do not divide width ", c.C));
  c.HS = present("head_dim") ? number("head_dim") : c.C / c.NH;
  if (c.arch == Arch::llama && c.HS % 2)
    fail(cat(where, ": \"head_dim\": ", c.HS, " must be even, rotary embedding turns pairs"));
  return c;
}

}  // namespace loqal
