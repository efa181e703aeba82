// Directories of Hugging Face: one file or shards, what old checkpoints hold besides, damage, and
// the way back (export). What transformers computes with them: transformers_test.cc.
#include <filesystem>

#include "core/json.h"
#include "model/checkpoint.h"
#include "model/sampling.h"
#include "model/weight_files.h"
#include "test/core/files.h"
#include "test/core/fuzz.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

class Import : public ::testing::Test {
 protected:
  explicit Import(Arch arch = Arch::llama, bool tied = false)
      : config_(small_config(arch, tied)), saved_(config_, 1), loaded_(config_, 2) {
    export_model(dir_.path + "/m", saved_.model, {});
  }
  std::string path(const std::string& name) const { return dir_.path + "/m/" + name; }
  std::string one() const { return path("model.safetensors"); }
  std::string index() const { return path("model.safetensors.index.json"); }

  /// model.safetensors in three shards, as save_pretrained() names them.
  void shard() {
    size_t count = 0;
    rewrite(one(), [&](Tensors& t) { count = t.size(); });
    Json map;
    for (size_t s = 0; s < 3; s++) {
      const std::string name = cat("model-0000", s + 1, "-of-00003.safetensors");
      rewrite(
          one(),
          [&](Tensors& t) {
            t = Tensors(t.begin() + int64_t(s * count / 3),
                        t.begin() + int64_t((s + 1) * count / 3));
            for (const auto& [info, values] : t) map[info.name] = name;
          },
          path(name));
    }
    remove_tree(one());
    set_map(map);
  }
  Json map() const { return read_json(index())["weight_map"]; }
  void set_map(const Json& map) const {
    write_file_atomic(index(), dump_json({{"metadata", {{"total_size", 1}}}, {"weight_map", map}}));
  }
  std::string refusal() {
    return error_of([&] { load_weights(dir_.path + "/m", loaded_.model); });
  }
  void expect_loads() {
    ASSERT_NE(loaded_.all(), saved_.all());
    load_weights(dir_.path + "/m", loaded_.model);
    EXPECT_EQ(loaded_.all(), saved_.all());
  }
  void add_tensor(const std::string& name, const std::vector<int64_t>& shape, float value) const {
    int64_t n = 1;
    for (const int64_t d : shape) n *= d;
    rewrite(one(), [&](Tensors& t) {
      t.push_back({{.name = name, .shape = shape}, std::vector<float>(size_t(n), value)});
    });
  }

  const TempDir dir_;
  const ModelConfig config_;
  SmallModel saved_, loaded_;
};

TEST_F(Import, ShardsAreOneModel) {
  shard();
  expect_loads();
}

TEST_F(Import, IndexAndFilesMustAgree) {
  shard();
  const Json good = map();
  const std::string name = "model.norm.weight", second = "model-00002-of-00003.safetensors",
                    third = "model-00003-of-00003.safetensors";
  ASSERT_EQ(good[name], third);
  const auto with = [&](const Json& value) {
    Json changed = good;
    changed[name] = value;
    set_map(changed);
    return refusal();
  };
  EXPECT_CONTAINS(with("model-00004-of-00003.safetensors"), "no such file");
  EXPECT_CONTAINS(with("model-00004-of-00003.safetensors"), name);
  EXPECT_CONTAINS(with(second), second + ": tensor \"" + name + "\" is missing");
  for (const char* escape : {"../m/model-00003-of-00003.safetensors", "/etc/passwd", "", ".", "..",
                             "x/model-00003-of-00003.safetensors"})
    EXPECT_CONTAINS(with(escape), "a file beside the index") << escape;
  EXPECT_CONTAINS(with(7), "expected a string");
  Json less = good;
  less.erase(name);
  set_map(less);
  EXPECT_CONTAINS(refusal(), third + ": tensor \"" + name + "\" is missing in " + index());
  set_map(good);
  rewrite(path(second), [&](Tensors& t) { t.push_back({{.name = name, .shape = {1}}, {1}}); });
  EXPECT_CONTAINS(refusal(), second + ": tensor \"" + name + "\" belongs to another file in");
  remove_tree(path(third));
  EXPECT_CONTAINS(refusal(), "names " + third);
}

TEST_F(Import, AnIndexThatIsNone) {
  shard();
  const std::pair<const char*, const char*> contents[] = {
      {"", "not valid JSON"},
      {"{\"weight_map\":{}}", "expected an object of tensors and files"},
      {"{\"weight_map\":[1]}", "expected an object of tensors and files"},
      {"{\"metadata\":{}}", "\"weight_map\" is missing"}};
  for (const auto& [content, message] : contents) {
    write_file_atomic(index(), content);
    EXPECT_CONTAINS(refusal(), message);
    EXPECT_CONTAINS(refusal(), index());
  }
}

TEST_F(Import, OneFormAndNoOther) {
  fs::copy(one(), dir_ / "kept");
  shard();
  fs::copy(dir_ / "kept", one());
  EXPECT_CONTAINS(refusal(), "found both model.safetensors and model.safetensors.index.json");
  Json only = map();
  for (auto& [name, file] : only.items()) file = "model.safetensors";
  set_map(only);  // the index of a model in one file
  expect_loads();
  remove_tree(one()), remove_tree(index());
  EXPECT_CONTAINS(refusal(), "found neither");
  write_file_atomic(path("pytorch_model.bin"), "x");
  EXPECT_CONTAINS(refusal(), "expected model.safetensors, found pytorch_model.bin");
}

TEST_F(Import, DamagedIndexIsAnErrorOrTheModel) {
  shard();
  const std::string good = read_file(index());
  Damage damage;
  int accepted = 0;
  for (int i = 0; i < 300; i++) {
    std::ofstream(index(), std::ios::trunc) << damage(good);
    try {
      const WeightFiles files(dir_.path + "/m");
      EXPECT_TRUE(files.find("model.norm.weight"));
      accepted++;
    } catch (const Error&) {
    }
  }
  EXPECT_LT(accepted, 150);
}

TEST_F(Import, TruncatedFilesAreNamed) {
  shard();
  const std::string victim = path("model-00002-of-00003.safetensors"), whole = read_file(victim);
  for (const size_t size : {size_t(0), size_t(7), size_t(100), whole.size() - 1}) {
    write_file_atomic(victim, whole.substr(0, size));
    EXPECT_CONTAINS(refusal(), "model-00002-of-00003.safetensors") << size;
  }
}

// Old versions of transformers saved what they could have computed.
TEST_F(Import, RotaryAnglesOfOldFilesAreNoWeights) {
  add_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", {4}, 1);
  expect_loads();
  add_tensor("model.layers.0.attn.bias", {4}, 1);
  EXPECT_CONTAINS(refusal(), "model.layers.0.attn.bias [4] is not part of this model");
  rewrite(one(), [](Tensors& t) { t.pop_back(); });
  add_tensor("model.layers.0.self_attn.rotary_emb.other", {4}, 1);
  EXPECT_CONTAINS(refusal(), "rotary_emb.other [4] is not part of this model");
}

TEST_F(Import, AHeadThatIsMissingHasAHint) {
  rewrite(one(), [](Tensors& t) {
    std::erase_if(t, [](const auto& x) { return x.first.name == "lm_head.weight"; });
  });
  try {
    load_weights(dir_.path + "/m", loaded_.model);
    ADD_FAILURE() << "loaded";
  } catch (const Error& e) {
    EXPECT_CONTAINS(e.what(), "lm_head.weight is missing");
    EXPECT_CONTAINS(e.hint, "tie_word_embeddings");
  }
}

// LlamaModel and GPT2Model, without the language model around them.
TEST_F(Import, NamesOfBaseModels) {
  rewrite(one(), [](Tensors& t) {
    for (auto& [info, values] : t)
      if (info.name.starts_with("model.")) info.name = info.name.substr(6);
  });
  expect_loads();
}

class ImportTied : public Import {
 protected:
  ImportTied() : Import(Arch::gpt2, true) {}
};

TEST_F(ImportTied, MasksOfOldFilesAreNoWeights) {
  for (int l = 0; l < 2; l++) {
    add_tensor(cat("transformer.h.", l, ".attn.bias"), {1, 1, 16, 16}, 1);
    add_tensor(cat("transformer.h.", l, ".attn.masked_bias"), {}, -1e4f);
  }
  expect_loads();
}

// X1: a head that is stored once more is the embedding, or the file contradicts its config.json.
TEST_F(ImportTied, AStoredHeadMustBeTheEmbedding) {
  const auto add_head = [&](float difference) {
    rewrite(one(), [&](Tensors& t) {
      for (size_t i = 0; i < t.size(); i++)
        if (t[i].first.name == "transformer.wte.weight") {
          auto head = t[i];
          head.first.name = "lm_head.weight";
          head.second.back() += difference;
          t.push_back(head);
          return;
        }
    });
  };
  add_head(1e-3f);
  EXPECT_CONTAINS(refusal(), "lm_head.weight [37, 24] is not the same as transformer.wte.weight");
  rewrite(one(), [](Tensors& t) { t.pop_back(); });
  add_head(0);
  loaded_.model.init_random(2);
  expect_loads();
}

TEST_F(ImportTied, TokenIdsOfConfigs) {
  const auto ids = [&](const char* config) {
    write_file_atomic(path("config.json"), config);
    return std::pair(read_token_ids(dir_.path + "/m", "bos_token_id"),
                     read_token_ids(dir_.path + "/m", "eos_token_id"));
  };
  using Ids = std::vector<int>;
  EXPECT_EQ(ids("{}"), std::pair(Ids{}, Ids{}));
  EXPECT_EQ(ids(R"({"bos_token_id":null,"eos_token_id":7})"), std::pair(Ids{}, Ids{7}));
  EXPECT_EQ(ids(R"({"bos_token_id":1,"eos_token_id":[5,6]})"), std::pair(Ids{1}, Ids{5, 6}));
  EXPECT_EQ(ids(R"({"bos_token_id":1,"eos_token_id":[]})"), std::pair(Ids{1}, Ids{}));
  EXPECT_CONTAINS(error_of([&] { ids(R"({"bos_token_id":"x"})"); }), "bos_token_id");
}

// ---- export --------------------------------------------------------------------------------

TEST_F(ImportTied, ExportIsACheckpointsModelWithTokenizersOfHuggingFacesNames) {
  write_file_atomic(dir_ / "encoder.json", "{}");
  write_file_atomic(dir_ / "vocab.bpe", "#");
  const TokenizerFiles files{
      read_tokenizer_files({dir_ / "encoder.json", dir_ / "vocab.bpe"}), 3, {4, 9}};
  save_checkpoint(dir_ / "c", saved_.model, saved_.optimizer, Json::object(), files);
  export_model(dir_ / "e/", saved_.model, files);
  for (const char* name : {"model.safetensors", "config.json", "vocab.json", "merges.txt"})
    EXPECT_EQ(read_file(dir_ / "e/" + name), read_file(dir_ / "c/" + name)) << name;
  EXPECT_EQ(glob_files(dir_ / "e/*").size(), 4u);
  EXPECT_EQ(read_file(dir_ / "e/vocab.json"), "{}");
  EXPECT_EQ(read_token_ids(dir_ / "e", "bos_token_id"), std::vector<int>{3});
  EXPECT_EQ(read_token_ids(dir_ / "e", "eos_token_id"), (std::vector<int>{4, 9}));
}

TEST_F(Import, ExportReplacesNothing) {
  create_directories(dir_ / "used");
  write_file_atomic(dir_ / "used/mine", "precious");
  write_file_atomic(dir_ / "file", "precious");
  EXPECT_CONTAINS(error_of([&] { export_model(dir_ / "used", saved_.model, {}); }), "not empty");
  EXPECT_CONTAINS(error_of([&] { export_model(dir_ / "file", saved_.model, {}); }), "found a file");
  EXPECT_EQ(read_file(dir_ / "used/mine") + read_file(dir_ / "file"), "preciousprecious");
  create_directories(dir_ / "empty");
  export_model(dir_ / "empty", saved_.model, {});
  EXPECT_EQ(read_file(dir_ / "empty/model.safetensors"), read_file(one()));
}

TEST_F(Import, ExportStopsWhenAsked) {
  int asked = 0;
  EXPECT_FALSE(export_model(dir_ / "e", saved_.model, {}, [&] { return ++asked == 3; }));
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(glob_files(dir_ / "e*"), std::vector<std::string>());
}

// A full disk: no directory rather than half of one.
TEST_F(Import, ExportThatFailsLeavesNothing) {
  EXPECT_TRUE(true_in_child([&] {
    limit_file_size(5000);
    const std::string message = error_of([&] { export_model(dir_ / "e", saved_.model, {}); });
    return message.find("model.safetensors") != std::string::npos;
  }));
  EXPECT_EQ(glob_files(dir_ / "e*"), std::vector<std::string>());
}

// ---- models of others, where the reference data lies beside the checkout -------------------

class ReferenceModels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!fs::exists(data_)) GTEST_SKIP() << "no reference data in " << data_;
  }
  static std::unique_ptr<Model> open(Ops& ops, const std::string& directory) {
    auto model = std::make_unique<Model>(ops, read_model_config(directory),
                                         ModelOptions{.training = false, .cache = true});
    load_weights(directory, *model);
    return model;
  }
  const std::string data_ = "../shared/data/models/";
  const std::unique_ptr<Ops> ops_ = make_cpu_ops(2);
};

// A trained Llama; nll, logits and greedy ids from a forward pass in numpy's float64.
TEST_F(ReferenceModels, Stories260K) {
  const std::string directory = data_ + "stories260K-hf";
  const auto model = open(*ops_, directory);
  const Json golden = read_json(directory + "/golden.json");
  const auto prompt = get<std::vector<int32_t>>(golden, "prompt_ids", "golden");
  std::vector<int32_t> targets(prompt.begin() + 1, prompt.end());
  const int64_t n = int64_t(targets.size());
  EXPECT_NEAR(model->forward(prompt.data(), targets.data(), 1, n) / double(n), 0.18036, 1e-4);
  const auto nll = get<std::vector<double>>(golden, "nll", "golden");
  ASSERT_EQ(nll.size(), targets.size());
  for (size_t i = 0; i < nll.size(); i++) {
    std::vector<int32_t> only(targets.size(), -1);
    only[i] = targets[i];
    EXPECT_NEAR(model->forward(prompt.data(), only.data(), 1, n), nll[i], 1e-4) << i;
  }
  const auto last = get<std::vector<double>>(golden, "last_logits", "golden");
  const std::vector<float> logits = model->next_logits(prompt);
  ASSERT_EQ(last.size(), logits.size());
  for (size_t i = 0; i < last.size(); i++) EXPECT_NEAR(logits[i], last[i], 1e-4) << i;
  const auto greedy = get<std::vector<int32_t>>(golden, "greedy_continuation_ids", "golden");
  ASSERT_EQ(greedy.size(), 40u);
  EXPECT_EQ(sample(*model, prompt, {.tokens = 40, .temperature = 0}, [](int32_t) {}), greedy);
}

TEST_F(ReferenceModels, TinyRandomGpt2ComesBackBitForBit) {
  const std::string directory = data_ + "tiny-random-gpt2";
  const TempDir dir;
  export_model(dir / "e", *open(*ops_, directory), {});
  const SafetensorsReader theirs(directory + "/model.safetensors"),
      ours(dir / "e/model.safetensors");
  EXPECT_EQ(theirs.tensors().size(), ours.tensors().size());
  for (const TensorInfo& t : theirs.tensors()) {
    EXPECT_EQ(ours.info(t.name).shape, t.shape) << t.name;
    ASSERT_EQ(ours.info(t.name).bytes, t.bytes) << t.name;
    EXPECT_EQ(std::memcmp(ours.data(t.name), theirs.data(t.name), size_t(t.bytes)), 0) << t.name;
  }
}

}  // namespace
}  // namespace loqal
