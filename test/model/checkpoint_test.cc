// Checkpoints: what is in the files, that it comes back, and what is refused. (Whole runs that
// resume: test/async/resume_test.cc.)
#include "model/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/json.h"
#include "core/safetensors.h"
#include "test/core/files.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

class Checkpoint : public ::testing::TestWithParam<std::pair<Arch, bool>> {
 protected:
  Checkpoint() : config_(small_config(GetParam().first, GetParam().second)), saved_(config_, 1) {
    // Moments that tell their place.
    saved_.for_each([&](int i) {
      std::vector<float> m = saved_.host(saved_.optimizer.state("adam_m", i)), v = m;
      const int64_t real = saved_.model.real_rows(i) * saved_.model.table()[i].cols();
      for (int64_t k = 0; k < real; k++)
        m[size_t(k)] = float(i) + 1e-3f * float(k), v[size_t(k)] = -m[size_t(k)];
      saved_.ops->upload(saved_.optimizer.state("adam_m", i), m.data());
      saved_.ops->upload(saved_.optimizer.state("adam_v", i), v.data());
    });
    saved_.optimizer.set_step_count(42);
    path_ = checkpoint_name(dir_.path, 7);
  }
  void save() { save_checkpoint(path_, saved_.model, saved_.optimizer, {{"note", "x"}}, {}); }

  const TempDir dir_;
  const ModelConfig config_;
  SmallModel saved_;
  std::string path_;
};

TEST_P(Checkpoint, RoundTrip) {
  save();
  EXPECT_TRUE(path_.ends_with("/step_00000007"));
  const Json state = read_checkpoint_state(path_);
  EXPECT_EQ(state["note"], "x");
  EXPECT_EQ(state["files"].size(), 3u);
  SmallModel loaded(config_, 2);
  ASSERT_NE(loaded.all(), saved_.all());
  load_checkpoint(path_, state, loaded.model, loaded.optimizer);
  EXPECT_EQ(loaded.all(), saved_.all());
  EXPECT_EQ(loaded.optimizer.step_count(), 42);
  const ModelConfig back = read_model_config(path_);
  EXPECT_EQ(back.L, config_.L);
  EXPECT_EQ(back.HS, config_.HS);
  // The same state gives the same bytes.
  const std::string again = checkpoint_name(dir_.path, 8);
  save_checkpoint(again, loaded.model, loaded.optimizer, {{"note", "x"}}, {});
  for (const char* name :
       {"/model.safetensors", "/state.safetensors", "/config.json", "/state.json"})
    EXPECT_EQ(read_file(path_ + name), read_file(again + name)) << name;
}

// Names and shapes by Hugging Face's GPT2LMHeadModel and LlamaForCausalLM: Conv1D is [in, out],
// Linear [out, in]; no padding of the vocabulary; a tied head is not stored twice.
TEST_P(Checkpoint, FileIsAsTransformersReadsIt) {
  save();
  const SafetensorsReader file(path_ + "/model.safetensors");
  const auto shape = [&](const std::string& name) { return file.info(name).shape; };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(file.metadata().at("format"), "pt");
  if (config_.arch == Arch::gpt2) {
    EXPECT_EQ(file.tensors().size(), 2u + 2 * 12 + 2);
    EXPECT_EQ(shape("transformer.wte.weight"), (Shape{37, 24}));
    EXPECT_EQ(shape("transformer.wpe.weight"), (Shape{16, 24}));
    EXPECT_EQ(shape("transformer.h.1.attn.c_attn.weight"), (Shape{24, 72}));
    EXPECT_EQ(shape("transformer.h.1.attn.c_proj.weight"), (Shape{24, 24}));
    EXPECT_EQ(shape("transformer.h.1.mlp.c_fc.weight"), (Shape{24, 40}));
    EXPECT_EQ(shape("transformer.h.1.mlp.c_proj.weight"), (Shape{40, 24}));
    EXPECT_EQ(shape("transformer.h.1.attn.c_attn.bias"), (Shape{72}));
    EXPECT_EQ(shape("transformer.ln_f.bias"), (Shape{24}));
    // Element [in, out] of the file is [out, in] of the table.
    const int p = saved_.model.table().find("transformer.h.0.mlp.c_fc.weight");
    const std::vector<float> ours = saved_.host(saved_.model.parameter(p));
    std::vector<float> stored(ours.size());
    read_floats(file, "transformer.h.0.mlp.c_fc.weight", stored.data());
    for (size_t in = 0; in < 24; in++)
      for (size_t out = 0; out < 40; out++) ASSERT_EQ(stored[in * 40 + out], ours[out * 24 + in]);
  } else {
    EXPECT_EQ(file.tensors().size(), 1u + 2 * 9 + 1 + (config_.tied ? 0 : 1));
    EXPECT_EQ(shape("model.embed_tokens.weight"), (Shape{37, 24}));
    EXPECT_EQ(shape("model.layers.1.self_attn.q_proj.weight"), (Shape{24, 24}));
    EXPECT_EQ(shape("model.layers.1.self_attn.k_proj.weight"), (Shape{8, 24}));  // 1 of 3 heads
    EXPECT_EQ(shape("model.layers.1.mlp.down_proj.weight"), (Shape{24, 40}));
    EXPECT_EQ(shape("model.layers.1.post_attention_layernorm.weight"), (Shape{24}));
    if (!config_.tied) {
      EXPECT_EQ(shape("lm_head.weight"), (Shape{37, 24}));
    }
  }
  EXPECT_EQ(file.contains("lm_head.weight"), !config_.tied);
}

TEST_P(Checkpoint, WrongTensorsAreNamed) {
  SmallModel other(config_, 2);
  const auto refusal = [&](const std::function<void(Tensors&)>& edit) {
    save();
    rewrite(path_ + "/model.safetensors", edit);
    return error_of([&] { load_weights(path_, other.model); });
  };
  const std::string name = config_.arch == Arch::gpt2 ? "transformer.h.1.mlp.c_fc.weight"
                                                      : "model.layers.1.mlp.up_proj.weight";
  const auto find = [&](Tensors& t) {
    return std::find_if(t.begin(), t.end(), [&](const auto& x) { return x.first.name == name; });
  };
  const std::string missing = refusal([&](Tensors& t) { t.erase(find(t)); });
  EXPECT_CONTAINS(missing, "model.safetensors");
  EXPECT_CONTAINS(missing, name + " is missing");
  const std::string unknown = refusal([&](Tensors& t) {
    t.push_back({{.name = "extra.weight", .shape = {2}}, {1, 2}});
  });
  EXPECT_CONTAINS(unknown, "extra.weight [2]");
  const std::string shape =
      refusal([&](Tensors& t) { std::swap(find(t)->first.shape[0], find(t)->first.shape[1]); });
  EXPECT_CONTAINS(shape, name);
  EXPECT_CONTAINS(shape, config_.arch == Arch::gpt2 ? "[40, 24], expected [24, 40]"
                                                    : "[24, 40], expected [40, 24]");
  const std::string vocabulary = error_of([&] {  // a checkpoint of another vocabulary
    save();
    ModelConfig larger = config_;
    larger.V = 40;
    SmallModel wide(larger);
    load_weights(path_, wide.model);
  });
  EXPECT_CONTAINS(vocabulary, "[37, 24], expected [40, 24]");
}

// C1: without the optimizer's half it is no checkpoint.
TEST_P(Checkpoint, MissingOptimizerStateIsAnError) {
  save();
  remove_tree(path_ + "/state.safetensors");
  EXPECT_CONTAINS(error_of([&] { read_checkpoint_state(path_); }), "state.safetensors");
}

// "files" must name at least the model's three, or nothing would be checked.
TEST_P(Checkpoint, AStateThatListsNoFilesIsAnError) {
  save();
  Json state = read_json(path_ + "/state.json");
  state["files"].erase("state.safetensors");
  write_file_atomic(path_ + "/state.json", dump_json(state));
  EXPECT_CONTAINS(error_of([&] { read_checkpoint_state(path_); }), "\"state.safetensors\"");
  state["files"] = nullptr;
  write_file_atomic(path_ + "/state.json", dump_json(state));
  EXPECT_CONTAINS(error_of([&] { read_checkpoint_state(path_); }), "files");
}

// N2: the last checkpoint must stay finite.
TEST_P(Checkpoint, ANonFiniteParameterIsNotSaved) {
  save();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    SmallModel broken(config_);
    const int p = broken.model.table().size() - 1;
    std::vector<float> values = broken.host(broken.model.parameter(p));
    values[0] = bad;
    broken.ops->upload(broken.model.parameter(p), values.data());
    try {
      save_checkpoint(path_, broken.model, broken.optimizer, Json::object(), {});
      ADD_FAILURE() << "saved";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code, Exit::nonfinite);
      EXPECT_CONTAINS(e.what(), broken.model.table()[p].name);
    }
    EXPECT_EQ(read_checkpoint_state(path_)["note"], "x") << "the one before is untouched";
    EXPECT_EQ(list_checkpoints(dir_.path).size(), 1u);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Checkpoint,
                         ::testing::Values(std::pair(Arch::llama, false),
                                           std::pair(Arch::llama, true),
                                           std::pair(Arch::gpt2, true)),
                         [](const auto& info) {
                           return std::string(info.param.first == Arch::gpt2 ? "gpt2" : "llama") +
                                  (info.param.second ? "_tied" : "");
                         });

// OpenAI's own GPT-2 files have no "transformer." before the names.
TEST(CheckpointNames, WithoutThePrefixLoadToo) {
  const TempDir dir;
  SmallModel saved(small_config(Arch::gpt2, true), 1), loaded(small_config(Arch::gpt2, true), 2);
  save_checkpoint(dir / "c", saved.model, saved.optimizer, Json::object(), {});
  rewrite(dir / "c/model.safetensors", [](Tensors& tensors) {
    for (auto& [info, values] : tensors)
      info.name = info.name.substr(std::string("transformer.").size());
  });
  load_weights(dir / "c", loaded.model);
  loaded.for_each([&](int i) {
    EXPECT_EQ(loaded.host(loaded.model.parameter(i)), saved.host(saved.model.parameter(i)));
  });
}

TEST(Initialization, IsTheSameForAnyNumberOfThreads) {
  const auto weights = [](int threads) {
    ModelConfig config = small_config(Arch::llama, false);
    config.C = 200;  // several chunks in the larger matrices
    const auto ops = make_cpu_ops(1);
    Model model(*ops, config, {.B = 1, .training = false, .threads = threads});
    model.init_random(3);
    std::vector<float> all, host;
    for (int i = 0; i < model.table().size(); i++) {
      if (model.table()[i].segment == Segment::frozen) continue;
      host.resize(size_t(model.parameter(i).numel()));
      ops->download(host.data(), model.parameter(i));
      all.insert(all.end(), host.begin(), host.end());
    }
    return all;
  };
  const std::vector<float> one = weights(1);
  EXPECT_EQ(weights(3), one);
  EXPECT_EQ(weights(0), one);
}

// What load_tokenizer() could not load is no tokenizer.
TEST(FindTokenizer, NeedsBothFilesOfAPair) {
  for (const auto& [one, other] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    const TempDir dir;
    EXPECT_EQ(find_tokenizer(dir.path), "");
    write_file_atomic(dir / one, "{}");
    EXPECT_EQ(find_tokenizer(dir.path), "") << one;
    write_file_atomic(dir / other, "");
    EXPECT_EQ(find_tokenizer(dir.path), dir.path) << one;
  }
  const TempDir dir;
  write_file_atomic(dir / "tokenizer.model", "x");
  EXPECT_EQ(find_tokenizer(dir.path), dir.path);
}

class Directories : public ::testing::Test {
 protected:
  void make(const std::string& name, bool complete = true) {
    create_directories(dir_ / name);
    if (complete) write_file_atomic(dir_ / name + "/state.json", "{}");
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const std::string& path : list_checkpoints(dir_.path))
      out.push_back(path.substr(dir_.path.size() + 1));
    return out;
  }
  using Names = std::vector<std::string>;
  const TempDir dir_;
};

TEST_F(Directories, OnlyCompleteStepsInTheOrderOfTheirNumbers) {
  EXPECT_EQ(list_checkpoints(dir_ / "nowhere").size(), 0u);
  make("step_00000100"), make("step_00000020"), make("step_00000300", false);
  make("step_00000200.tmp"), make("step_0000020x"), make("other");
  make("step_100000000"), make("step_99999999");  // nine digits sort as numbers
  EXPECT_EQ(names(), (Names{"step_00000020", "step_00000100", "step_99999999", "step_100000000"}));
  EXPECT_EQ(checkpoint_name("out", 20), "out/step_00000020");
  EXPECT_EQ(checkpoint_name("out", 100000000), "out/step_100000000");
}

TEST_F(Directories, PruningKeepsTheNewest) {
  for (int step : {1, 2, 3, 10}) make(cat("step_0000", step < 10 ? "000" : "00", step));
  prune_checkpoints(dir_.path, 0);
  EXPECT_EQ(names().size(), 4u);
  prune_checkpoints(dir_.path, 5);
  EXPECT_EQ(names().size(), 4u);
  prune_checkpoints(dir_.path, 2);
  EXPECT_EQ(names(), (Names{"step_00000003", "step_00000010"}));
  prune_checkpoints(dir_.path, 1);
  EXPECT_EQ(names(), (Names{"step_00000010"}));
}

TEST_F(Directories, GoingBackSetsTheLaterOnesAside) {
  make("step_00000010"), make("step_00000020"), make("step_00000030");
  set_aside_checkpoints_after(dir_.path, 10);
  EXPECT_EQ(names(), (Names{"step_00000010"}));
  EXPECT_EQ(read_file(dir_ / "step_00000030.superseded/state.json"), "{}");
  make("step_00000030");
  set_aside_checkpoints_after(dir_.path, 10);  // again, over the first one's
  EXPECT_EQ(names(), (Names{"step_00000010"}));
}

}  // namespace
}  // namespace loqal
