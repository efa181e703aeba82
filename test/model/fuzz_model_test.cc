// Damaged config.json and state.json: an Error, or a configuration that can be.
#include <gtest/gtest.h>

#include "core/file.h"
#include "core/json.h"
#include "model/checkpoint.h"
#include "test/core/fuzz.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

TEST(FuzzModel, ConfigJson) {
  const std::string seeds[] = {
      dump_json(to_hf_config(preset_config("gpt2-tiny"), -1, 50256), 2),
      dump_json(to_hf_config(preset_config("llama-9M"), 1, 2), 2),
      R"({"model_type":"llama","vocab_size":9,"hidden_size":8,"intermediate_size":9,"head_dim":4,)"
      R"("num_hidden_layers":1,"num_attention_heads":2,"max_position_embeddings":4,)"
      R"("rms_norm_eps":1e-6,"rope_parameters":{"rope_type":"default","rope_theta":1e4}})"};
  Damage damage;
  int accepted = 0;
  for (int i = 0; i < 3000; i++) {
    try {
      const ModelConfig c = from_hf_config(parse_json(damage(seeds[i % 3]), "fuzz"), "fuzz");
      EXPECT_TRUE(c.L > 0 && c.C > 0 && c.NH > 0 && c.NKV > 0 && c.HS > 0 && c.F > 0 && c.V > 0);
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_GT(accepted, 20);
  EXPECT_LT(accepted, 1500);
}

TEST(FuzzModel, StateJson) {
  const FastDir dir;
  Json files;
  for (const char* name : {"model.safetensors", "state.safetensors", "config.json"}) {
    FileWriter file(dir / name);
    file.write(std::string("contents of ") + name);
    const FileSum sum = file.finish();
    files[name] = {{"bytes", sum.bytes}, {"crc32", sum.crc32}};
  }
  const std::string state = dump_json({{"note", "x"},
                                       {"version", 1},
                                       {"adam_step", 7},
                                       {"options", {{"--lr", 1e-3}, {"--seed", 1}}},
                                       {"files", files}},
                                      2);
  dir.write("state.json", state);
  EXPECT_EQ(read_checkpoint_state(dir.path)["adam_step"], 7);
  Damage damage;
  int accepted = 0;
  for (int i = 0; i < 3000; i++) {
    dir.write("state.json", damage(state));
    try {
      read_checkpoint_state(dir.path);
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 1500);
}

}  // namespace
}  // namespace loqal
