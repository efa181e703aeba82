// Model configurations: published sizes, Hugging Face's config.json, and sizes that cannot be.
#include "model/config.h"

#include <gtest/gtest.h>

#include "core/json.h"
#include "model/model.h"
#include "test/core/files.h"

namespace loqal {
namespace {

int64_t parameters(const ModelConfig& config) {
  const auto ops = make_cpu_ops(1, true);  // counts, allocates nothing
  return Model(*ops, config, {}).parameter_count();
}

// Millions, V = 32000: the counts of the LoQT authors' models (Loeschcke et al. 2024), each summed
// from its config.json. GPT-2: OpenAI's files, 124,439,808 for the smallest (Radford et al. 2019).
TEST(Presets, HaveThePublishedSizes) {
  for (const auto& [name, millions] :
       std::vector<std::pair<std::string, double>>{{"llama-60M", 58.1},
                                                   {"llama-130M", 134.1},
                                                   {"llama-350M", 368.0},
                                                   {"llama-1B", 1339.1},
                                                   {"llama-7B", 6738.4},
                                                   {"llama-13B", 13015.9}})
    EXPECT_NEAR(double(parameters(preset_config(name))) / 1e6, millions, 0.05) << name;
  // Llama 7B and 13B to the last one: Touvron et al. 2023, as Hugging Face counts them.
  EXPECT_EQ(parameters(preset_config("llama-7B")), 6738415616);
  EXPECT_EQ(parameters(preset_config("llama-13B")), 13015864320);
  EXPECT_EQ(parameters(preset_config("gpt2-124M")), 124439808);
  EXPECT_EQ(parameters(preset_config("gpt2-350M")), 354823168);
  EXPECT_EQ(parameters(preset_config("gpt2-774M")), 774030080);
  EXPECT_EQ(parameters(preset_config("gpt2-1.5B")), 1557611200);
}

TEST(Presets, AreAllValid) {
  for (const std::string& name : preset_names()) {
    const ModelConfig c = preset_config(name);
    EXPECT_NO_THROW(validate(c)) << name;
    EXPECT_EQ(c.preset, name);
    EXPECT_EQ(c.V, c.arch == Arch::gpt2 ? 50257 : 32000) << name;
  }
  try {
    preset_config("llama-60m");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code, Exit::usage);
    EXPECT_CONTAINS(e.what(), "did you mean llama-60M?");
    EXPECT_CONTAINS(e.hint, "gpt2-124M");
  }
}

TEST(HfConfig, RoundTrip) {
  std::vector<ModelConfig> all;
  for (const std::string& name : preset_names()) all.push_back(preset_config(name));
  ModelConfig odd = preset_config("llama-9M");  // head size, key/value heads and theta of their own
  odd.HS = 48, odd.NKV = 2, odd.tied = true, odd.norm_eps = 1e-5f, odd.rope_theta = 500000,
  odd.V = 777;
  all.push_back(odd);
  for (const ModelConfig& c : all) {
    const ModelConfig b =
        from_hf_config(parse_json(dump_json(to_hf_config(c, 1, 2)), "config.json"), "config.json");
    EXPECT_EQ(std::tie(b.arch, b.L, b.C, b.NH, b.NKV, b.HS, b.F, b.V, b.T, b.tied, b.norm_eps,
                       b.rope_theta),
              std::tie(c.arch, c.L, c.C, c.NH, c.NKV, c.HS, c.F, c.V, c.T, c.tied, c.norm_eps,
                       c.rope_theta))
        << c.preset;
  }
}

// Hugging Face's names and their values; what transformers cannot do without.
TEST(HfConfig, Fields) {
  const Json gpt2 = to_hf_config(preset_config("gpt2-124M"), -1, 50256);
  EXPECT_EQ(gpt2["model_type"], "gpt2");
  EXPECT_EQ(gpt2["architectures"], Json::array({"GPT2LMHeadModel"}));
  EXPECT_EQ(gpt2["activation_function"], "gelu_new");
  EXPECT_EQ(gpt2["n_embd"], 768);
  EXPECT_EQ(gpt2["n_positions"], 1024);
  EXPECT_TRUE(gpt2["bos_token_id"].is_null());
  EXPECT_EQ(gpt2["eos_token_id"], 50256);
  const Json llama = to_hf_config(preset_config("llama-7B"), 1, 2);
  EXPECT_EQ(llama["model_type"], "llama");
  EXPECT_EQ(llama["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(llama["intermediate_size"], 11008);
  EXPECT_EQ(llama["hidden_act"], "silu");
  EXPECT_EQ(llama["tie_word_embeddings"], false);
}

// openai-community/gpt2's own config.json, shortened: no n_inner, no tie_word_embeddings.
TEST(HfConfig, OfOthers) {
  const ModelConfig c = from_hf_config(
      parse_json(R"({"model_type":"gpt2","n_ctx":1024,"n_embd":768,"n_head":12,"n_layer":12,
                     "n_positions":1024,"vocab_size":50257,"layer_norm_epsilon":1e-05})",
                 "c"),
      "c");
  EXPECT_EQ(c.F, 3072);
  EXPECT_TRUE(c.tied);
  EXPECT_EQ(parameters(c), 124439808);
  // Llama without num_key_value_heads (before grouped queries) and with a head_dim of its own.
  const ModelConfig l = from_hf_config(
      parse_json(
          R"({"model_type":"llama","hidden_size":64,"intermediate_size":96,"num_hidden_layers":1,
                     "num_attention_heads":4,"max_position_embeddings":32,"vocab_size":100,
                     "rms_norm_eps":1e-6,"head_dim":32})",
          "c"),
      "c");
  EXPECT_EQ(l.NKV, 4);
  EXPECT_EQ(l.HS, 32);
  EXPECT_FALSE(l.tied);
  EXPECT_EQ(l.rope_theta, 10000);
}

TEST(HfConfig, ErrorsNameFileAndKey) {
  const auto refusal = [](const std::string& text) {
    return error_of([&] { from_hf_config(parse_json(text, "d/config.json"), "d/config.json"); });
  };
  EXPECT_CONTAINS(refusal("{}"), "\"model_type\" is missing");
  EXPECT_CONTAINS(refusal(R"({"model_type":"bert"})"), "d/config.json");
  EXPECT_CONTAINS(refusal(R"({"model_type":"bert"})"), "\"bert\"");
  EXPECT_CONTAINS(refusal(R"({"model_type":"gpt2","vocab_size":"many"})"), "\"vocab_size\"");
  EXPECT_CONTAINS(
      refusal(R"({"model_type":"gpt2","vocab_size":9,"n_positions":8,"n_embd":10,"n_layer":1,
                             "n_head":3,"layer_norm_epsilon":1e-5})"),
      "3 heads do not divide width 10");
}

// Models whose results ours would not be: each key is refused by name, its harmless values are not.
TEST(HfConfig, OtherMathIsRefused) {
  const auto with = [](const char* preset, const std::string& key, const std::string& value) {
    Json j = to_hf_config(preset_config(preset), -1, -1);
    j[key] = parse_json(value, key);
    return from_hf_config(j, "d/config.json");
  };
  struct Case {
    const char *preset, *key, *good, *bad;
  };
  for (const Case& c : {
           Case{"llama-9M", "rope_scaling", "null", R"({"type":"linear","factor":2})"},
           Case{"llama-9M", "quantization_config", "null", R"({"bits":4})"},
           Case{"llama-9M", "hidden_act", "\"silu\"", "\"gelu\""},
           Case{"llama-9M", "attention_bias", "false", "true"},
           Case{"llama-9M", "mlp_bias", "false", "true"},
           Case{"llama-9M", "rope_parameters", R"({"rope_type":"default","rope_theta":5e5})",
                R"({"rope_type":"llama3","rope_theta":5e5})"},
           Case{"llama-9M", "rope_parameters", "null", "7"},
           Case{"llama-9M", "rope_theta", "500000", "0"},
           Case{"llama-9M", "rms_norm_eps", "1e-5", "\"nan\""},
           Case{"llama-9M", "num_key_value_heads", "2", "3"},
           Case{"llama-9M", "head_dim", "64", "63"},
           Case{"llama-9M", "hidden_size", "256", "4611686018427387905"},
           Case{"gpt2-tiny", "activation_function", "\"gelu_pytorch_tanh\"", "\"relu\""},
           Case{"gpt2-tiny", "scale_attn_by_inverse_layer_idx", "false", "true"},
           Case{"gpt2-tiny", "scale_attn_weights", "true", "false"},
           Case{"gpt2-tiny", "add_cross_attention", "false", "true"},
           Case{"gpt2-tiny", "tie_word_embeddings", "true", "false"},
           Case{"gpt2-tiny", "reorder_and_upcast_attn", "true", nullptr},  // the same values
           Case{"gpt2-tiny", "n_layer", "2", "-1"},
       }) {
    EXPECT_NO_THROW(with(c.preset, c.key, c.good)) << c.key;
    if (!c.bad) continue;
    const std::string refusal = error_of([&] { with(c.preset, c.key, c.bad); });
    EXPECT_CONTAINS(refusal, "d/config.json");
    EXPECT_CONTAINS(refusal, c.key);
  }
}

// transformers 5 keeps rope_theta in an object of its own.
TEST(HfConfig, RopeParameters) {
  Json j = to_hf_config(preset_config("llama-9M"), -1, -1);
  j["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_EQ(from_hf_config(j, "c").rope_theta, 500000);
  j["rope_parameters"].erase("rope_theta");
  EXPECT_EQ(from_hf_config(j, "c").rope_theta, 10000) << "the one beside it";
  j["rope_parameters"] = {{"partial_rotary_factor", 0.5}, {"rope_theta", 10000.0}};
  EXPECT_CONTAINS(error_of([&] { from_hf_config(j, "c"); }), "partial_rotary_factor");
}

// A GPT-2 whose heads are not C / NH wide comes back, and its file says that only loqal reads it.
TEST(HfConfig, Gpt2WithHeadsOfItsOwn) {
  ModelConfig c = preset_config("gpt2-tiny");
  EXPECT_FALSE(c.own_heads());
  EXPECT_FALSE(to_hf_config(c, -1, -1).contains("loqal_only"));
  c.HS = 48;
  EXPECT_TRUE(c.own_heads());
  const Json j = to_hf_config(c, -1, -1);
  EXPECT_EQ(j["head_dim"], 48);
  EXPECT_CONTAINS(j["loqal_only"].get<std::string>(), "head_dim");
  EXPECT_EQ(from_hf_config(j, "c").HS, 48);
  ModelConfig llama = preset_config("llama-9M");
  llama.HS = 48;  // transformers knows this one
  EXPECT_FALSE(to_hf_config(llama, -1, -1).contains("loqal_only"));
}

TEST(Validate, NamesTheOption) {
  const auto refusal = [](const std::function<void(ModelConfig&)>& edit,
                          const char* preset = "llama-9M") {
    ModelConfig c = preset_config(preset);
    edit(c);
    return error_of([&] { validate(c); });
  };
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.L = 0; }), "--layers 0");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.V = 1; }), "--vocab 1");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.T = -1; }), "--seq-len -1");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.NKV = 3; }),
                  "--kv-heads 3: must divide --heads 4");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.HS = 31; }), "--head-dim 31");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.NKV = 2; }, "gpt2-tiny"), "--kv-heads 2");
  EXPECT_CONTAINS(refusal([](ModelConfig& c) { c.tied = false; }, "gpt2-tiny"), "--tied false");
}

// One layer by hand, C = 4, F = 6, V = 10, T = 8, two heads of 2: matrices 4 * 16 + 3 * 24 + 40 =
// 176.
TEST(Flops, PerToken) {
  ModelConfig c = preset_config("llama-9M");
  c.L = 1, c.C = 4, c.NH = c.NKV = 2, c.HS = 2, c.F = 6, c.V = 10, c.T = 8;
  EXPECT_EQ(flops_per_token(c), 6 * 176 + 6 * 4 * 8);
}

TEST(Vocabulary, IsPaddedTo128) {
  ModelConfig c = preset_config("gpt2-124M");
  EXPECT_EQ(c.Vp(), 50304);  // llm.c's padded size
  c.V = 128;
  EXPECT_EQ(c.Vp(), 128);
}

}  // namespace
}  // namespace loqal
