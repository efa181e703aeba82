// Weights in and out through ./train: --export alone and after training, and models of others with
// --init, --eval-only and --sample.
#include "test/async/train_cli.h"

namespace loqal {
namespace {

class Export : public TrainCli {
 protected:
  const std::string run_ = tiny_ + data_ + " --precision fp32 --steps 4";

  void expect_model_of(const std::string& step, const std::string& exported) const {
    const auto theirs = files(step), ours = files(exported);
    EXPECT_EQ(ours.size() + 2, theirs.size()) << exported;  // but state.json, state.safetensors
    for (const auto& [name, bytes] : ours)
      EXPECT_TRUE(theirs.count(name) && theirs.at(name) == bytes) << exported << "/" << name;
    EXPECT_EQ(ours.count("model.safetensors") + ours.count("config.json"), 2u) << exported;
  }
};

TEST_F(Export, AfterTrainingAndFromACheckpoint) {
  expect(run_ + " --export a/b/hf/", 0, {"exported to a/b/hf"});
  expect_model_of("out/step_00000004", "a/b/hf");
  // More steps, then again; a run that is finished has nothing to do before.
  expect("--resume out --steps 6 --export later", 0);
  expect_model_of("out/step_00000006", "later");
  expect("--resume out --steps 6 --export finished", 0, {"the run is finished", "exported"});
  expect_model_of("out/step_00000006", "finished");
  const Outcome before = expect("--init a/b/hf --eval-only --val-data 'data_*.bin'", 0);
  EXPECT_CONTAINS(before.output, "a/b/hf: loss ");
  // Alone: no step is made, and the data may be gone.
  for (const std::string& shard : glob_files(dir_ / "data_*.bin")) remove_tree(shard);
  const std::string log = slurp("out/log.jsonl");
  expect("--resume out/step_00000004 --export alone", 0,
         {"exported    out/step_00000004 to alone"});
  expect_model_of("out/step_00000004", "alone");
  expect("--init alone --export again", 0);
  EXPECT_EQ(files("again"), files("alone"));
  EXPECT_EQ(slurp("out/log.jsonl"), log);
}

// Wrong at the start, not after hours.
TEST_F(Export, RefusalsComeBeforeTraining) {
  std::filesystem::create_directory(dir_ / "used");
  put("used/mine", "precious");
  const auto refused = [&](const std::string& options, int code, const std::string& part) {
    expect(options, code, {part});
    EXPECT_FALSE(exists("out/log.jsonl")) << options;
  };
  refused(run_ + " --export used", 1, "used: this directory is not empty");
  refused(run_ + " --export used/mine", 1, "expected a directory, found a file");
  refused(run_ + " --export used/mine/x", 1, "used/mine is a file");
  for (const char* out : {"hf", "hf/1", "hf.tmp", "hf.tmp/1", "./x/../hf/"})
    refused(run_ + " --export hf --out " + out, 2, cat("the run's --out ", out, " lies in"));
  for (const char* inside : {"out/step_00000004", "out/log.jsonl", "out/.lock", "out/x/y"})
    refused(run_ + " --export " + inside, 2, "lies in --out out, where runs");
  for (const char* here : {".", "..", "new/..", "used/../"})
    refused(run_ + " --export " + here, 1, "is the current directory or above it");
  refused(run_ + " --export /proc/hf", 1, "/proc/hf.tmp: cannot create the directory");
  std::filesystem::create_directory_symlink("nowhere", dir_ / "link");
  refused(run_ + " --export link", 1, "expected a directory, found a link to nothing");
  refused(run_ + " --arch gpt2 --tied true --head-dim 8 --export hf", 2, "transformers' GPT-2");
  refused(run_ + " --export ''", 2, "a new directory");
  refused("--export hf", 2, "--export needs a trained model");
  refused("--export hf --init used --precision bf16", 2, "--precision bf16 contradicts --export");
  refused("--export hf --init used --sample x", 2, "--sample and --export are two commands");
  refused("--export hf --init used --eval-only", 2, "--eval-only and --export are two commands");
  refused("--export hf --init used --resume out", 2, "both name a model");
  refused("--export hf --init used", 1, "config.json is missing");
  EXPECT_EQ(slurp("used/mine"), "precious");
  EXPECT_FALSE(exists("hf"));
}

// The export is written to DIR.tmp first: what has that name is somebody's.
TEST_F(Export, NothingIsDeletedForIt) {
  std::filesystem::create_directory(dir_ / "model.tmp");
  put("model.tmp/mine", "precious");
  expect(run_ + " --export model", 1, {"model.tmp exists; it would be replaced"});
  EXPECT_EQ(slurp("model.tmp/mine"), "precious");
  EXPECT_FALSE(exists("out/log.jsonl"));
  expect(run_ + " --out run.tmp", 0);
  expect("--resume run.tmp --export run", 1, {"run.tmp exists"});
  expect("--init run.tmp/step_00000004 --export run.tmp/step_00000004", 1, {"not empty"});
  EXPECT_TRUE(exists("run.tmp/step_00000004/state.json"));
}

TEST_F(Export, ALinkToAnEmptyDirectoryIsFollowed) {
  std::filesystem::create_directory(dir_ / "empty");
  std::filesystem::create_directory_symlink("empty", dir_ / "link");
  expect(run_ + " --export link", 0);
  EXPECT_TRUE(std::filesystem::is_symlink(dir_ / "link"));
  expect_model_of("out/step_00000004", "empty");
}

// A file that appears during training is in the way: the training was complete all the same.
TEST_F(Export, ATargetThatIsTakenDuringTrainingCostsNoTraining) {
  const pid_t child = start(tiny_ + data_ + " --steps 300 --save-every 0 --export hf");
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 1, child));
  put("hf.tmp", "mine");
  const Outcome o = finish(child);
  EXPECT_EQ(o.exit_code, 1);
  EXPECT_CONTAINS(o.output, "hf.tmp exists");
  EXPECT_EQ(slurp("hf.tmp"), "mine");
  EXPECT_TRUE(exists("out/step_00000300/state.json"));
  const std::string reason = records("out/log.jsonl", "end").at(0)["reason"];
  EXPECT_TRUE(reason.starts_with("done, but: ")) << reason;
}

TEST_F(Export, ASignalDuringAnExportLeavesNothing) {
  write_shards("wide", 60000, 2000, 2000);
  expect(
      "--model llama-9M --layers 1 --width 64 --heads 2 --seq-len 16 --batch-size 1 --steps 1 "
      "--eval-every 0 --train-data wide_000000.bin",
      0);
  const pid_t child = start("--resume out --export hf");
  for (int i = 0; i < 30000 && !exists("hf.tmp"); i++) usleep(100);
  kill(child, SIGINT);
  EXPECT_EQ(finish(child).exit_code, 130);
  EXPECT_FALSE(exists("hf.tmp"));
  EXPECT_FALSE(exists("hf"));
}

TEST_F(Export, AnInterruptedRunExportsNothing) {
  const pid_t child = start(tiny_ + data_ + " --steps 100000 --export hf");
  ASSERT_TRUE(wait_for_step("out/log.jsonl", 3, child));
  kill(child, SIGTERM);
  EXPECT_EQ(finish(child).exit_code, 143);
  EXPECT_FALSE(exists("hf"));
}

// What a download can look like.
TEST_F(Export, DamagedDirectoriesAreNamed) {
  expect(run_ + " --export hf", 0);
  const std::string model = slurp("hf/model.safetensors");
  const std::string options = data_ + " --steps 1 --init hf --out other";
  put("hf/model.safetensors", model.substr(0, model.size() / 2));
  expect(options, 1, {"hf/model.safetensors", "cut off or damaged"});
  put("hf/model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  expect(options, 1, {"hf/model.safetensors", "a Git LFS pointer, not the file itself"});
  put("hf/model.safetensors", model);
  const Json good = read_json(dir_ / "hf/config.json");
  for (const auto& [key, value] : good.items()) {
    if (!value.is_number() || key.find("token_id") != std::string::npos) continue;
    if (key == "num_key_value_heads" || key == "rope_theta") continue;  // transformers' defaults
    Json less = good;
    less.erase(key);
    put("hf/config.json", less.dump());
    expect(options, 1, {"hf/config.json", "\"" + key + "\" is missing"});
  }
  Json wrong = good;
  wrong["intermediate_size"] = 99;
  put("hf/config.json", wrong.dump());
  expect(options, 1, {"mlp.gate_proj.weight has shape", "expected [99, 32]"});
  wrong = good;
  wrong["model_type"] = "mistral";
  put("hf/config.json", wrong.dump());
  expect(options, 1, {"hf/config.json", "\"mistral\"", "\"gpt2\" or \"llama\""});
  remove_tree(dir_ / "hf/config.json");
  expect(options, 1, {"hf: config.json is missing"});
}

// A Hugging Face directory of GPT-2 with a vocabulary of six pieces: the tokenizer's files travel,
// those that only transformers reads too, and text is continued beyond the 16 positions.
TEST_F(Export, TokenizersTravelAndTextIsContinued) {
  std::filesystem::create_directory(dir_ / "bpe");
  put("bpe/vocab.json", R"({"a":0,"b":1,"ab":2,"Ġ":3,"c":4,"<|endoftext|>":5})");
  put("bpe/merges.txt", "#version: 0.2\na b\n");
  put("bpe/tokenizer_config.json", "{}");
  put("bpe/unrelated.txt", "x");
  write_shards("six", 6, 2000, 2000);
  expect(
      "--arch gpt2 --layers 1 --width 32 --heads 2 --seq-len 16 --tied true --batch-size 4 --steps "
      "3 "
      "--tokenizer bpe --train-data six_000000.bin --export hf",
      0);
  EXPECT_EQ(slurp("hf/merges.txt"), slurp("bpe/merges.txt"));
  EXPECT_EQ(slurp("hf/vocab.json"), slurp("bpe/vocab.json"));
  EXPECT_TRUE(exists("hf/tokenizer_config.json"));
  EXPECT_FALSE(exists("hf/unrelated.txt"));
  expect("--init hf --export copy", 0);
  EXPECT_EQ(files("copy"), files("hf"));
  const std::string sample = "--init hf --sample-tokens 60 --temperature 1000 --seed 3 --sample ";
  const Outcome o = expect(sample + "'ab c'", 0, {"ab c"});
  EXPECT_EQ(expect(sample + "'ab c'", 0).output, o.output);
  std::filesystem::create_directory(dir_ / "seven");
  put("seven/vocab.json", R"({"a":0,"b":1,"ab":2,"Ġ":3,"c":4,"<|endoftext|>":5,"d":6})");
  put("seven/merges.txt", "#version: 0.2\na b\n");
  expect(sample + "'ab d' --tokenizer seven", 1,
         {"seven/vocab.json has 7 ids, the model hf has 6"});
  expect("--init hf --tokenizer seven --export no", 1,
         {"seven/vocab.json has 7 ids, the model hf has 6"});
  EXPECT_FALSE(exists("no"));
  expect(sample + "'ab d'", 1, {"hf/vocab.json", "no piece for byte 100", "\" d\""});
}

// A vocabulary padded to 64 and a tokenizer of six pieces, for training, text and export.
TEST_F(Export, PaddedVocabulariesAndTheFilesOfOthers) {
  std::filesystem::create_directory(dir_ / "bpe");
  put("bpe/vocab.json", R"({"a":0,"b":1,"ab":2,"Ġ":3,"c":4,"<|endoftext|>":5})");
  put("bpe/merges.txt", "#version: 0.2\na b\n");
  put("bpe/generation_config.json", "{\"of\": \"another model\"}");
  expect(run_ + " --export hf", 0);
  Json config = read_json(dir_ / "hf/config.json");
  config["eos_token_id"] = {62, 63};
  put("hf/config.json", config.dump());
  put("hf/tokenizer.json", "{}");
  const Outcome o =
      expect("--init hf --tokenizer bpe --sample 'ab c' --temperature 1000 --sample-tokens 300", 0);
  EXPECT_LT(o.output.size(), 300u) << "62 or 63 ends it";
  put("hf/generation_config.json", "{\"of\": \"this one\"}");
  expect("--init hf --tokenizer bpe --export own", 0);
  EXPECT_EQ(slurp("own/generation_config.json"), "{\"of\": \"this one\"}");
  EXPECT_EQ(read_json(dir_ / "own/config.json")["eos_token_id"], Json({62, 63}));
  remove_tree(dir_ / "hf/generation_config.json");
  expect("--init hf --tokenizer bpe --export none", 0);
  EXPECT_FALSE(exists("none/generation_config.json"));
  // A tokenizer that loqal does not read travels through training.
  expect(data_ + " --init hf --batch-size 4 --steps 2 --out again", 0);
  EXPECT_EQ(slurp("again/step_00000002/tokenizer.json"), "{}");
  expect("--resume again --steps 4", 0);
  EXPECT_EQ(slurp("again/step_00000004/tokenizer.json"), "{}");
}

TEST_F(Export, OptionsThatACommandDoesNotUseAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"--resume o --export e --model gpt2-124M", "--model is not used by --export"},
      {"--init x --export e --batch-size 3", "--batch-size is not used by --export"},
      {"--init x --sample a --steps 3", "--steps is not used by --sample"},
      {"--init x --sample a --lr 9", "--lr is not used by --sample"},
      {"--init x --eval-only --val-data v --save-every 9",
       "--save-every is not used by --eval-only"}};
  for (const auto& [options, message] : cases) expect(options, 2, {message});
  // The file of a run serves them all.
  put("c.toml", "lr = 1e-3\nsave-every = 2\nval-data = [\"data_*.bin\"]\n");
  expect(run_ + " --config c.toml", 0);
  expect("--config c.toml --resume out --eval-only", 0, {"out/step_00000004: loss "});
  expect("--config c.toml --resume out --export hf", 0, {"exported"});
}

TEST_F(Export, AModelForVeryLongTextsSaysWhatHelps) {
  expect(run_ + " --export hf", 0);
  Json config = read_json(dir_ / "hf/config.json");
  config["max_position_embeddings"] = 2'000'000'000;
  put("hf/config.json", config.dump());
  expect("--init hf --export again", 1, {"of memory", "smaller --seq-len"});
  expect("--init hf --export again --seq-len 16", 0);
  expect_model_of("out/step_00000004", "again");
}

TEST_F(Export, DryRunsAreThoseOfTheCommand) {
  expect(run_, 0);
  const std::string dry = "--dry-run --init out/step_00000004 ";
  for (const char* command : {"--export hf", "--sample x", "--eval-only --val-data 'data_*.bin'"}) {
    const Outcome o = expect(dry + command, 0, {"weights"});
    EXPECT_EQ(o.output.find("activations") == std::string::npos,  // an export computes nothing
              o.output.find("--export \"hf\"") != std::string::npos);
    for (const char* part : {"gradients", "optimizer state", "run         "})
      EXPECT_EQ(o.output.find(part), std::string::npos) << part << "\n" << o.output;
    EXPECT_EQ(o.output.find("keys and values") != std::string::npos,
              o.output.find("--sample \"x\"") != std::string::npos);
  }
  expect(dry + "--export out", 1, {"not empty"});
  expect(dry + "--export hf", 0);
  EXPECT_FALSE(exists("hf"));
}

#if LOQAL_SENTENCEPIECE
// A trained model on stories, packed into windows of 512 with a start token before each: what
// transformers says of the same tokens. A wrong import is near ln 512 = 6.24.
TEST_F(TrainCli, ReferenceStories) {
  const std::string data = std::filesystem::absolute("../shared/data/");
  if (!std::filesystem::exists(data)) GTEST_SKIP() << "no reference data in " << data;
  const std::string text = read_file(data + "text/tinystories/exllamav3-tiny.utf8"),
                    separator = "<|endoftext|>";
  std::string lines;
  for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + separator.size()) {
    end = text.find(separator, begin);
    std::string story = text.substr(begin, end - begin);
    story.erase(0, story.find_first_not_of(" \n"));
    story.resize(story.find_last_not_of(" \n") + 1);
    if (!story.empty()) lines += dump_json({{"text", story}}) + "\n";
  }
  put("stories.jsonl", lines);
  const char* folder = std::getenv("LOQAL_BIN_DIR");
  const std::string tokenizer = data + "tokenizers/stories/tok512.model";
  ASSERT_EQ(system(cat(folder ? folder : ".", "/tokenize --tokenizer ", tokenizer,
                       " --bos before --eos none --out ", dir_ / "stories", " ",
                       dir_ / "stories.jsonl", " > /dev/null")
                       .c_str()),
            0);
  const std::string evaluate = "--init " + data + "models/stories260K-hf --tokenizer " + tokenizer +
                               " --eval-only --precision fp32 --val-data stories_000000.bin";
  // From transformers 4.38, on the same windows: 1.414978 and 1.539590.
  expect(evaluate + " --eval-tokens 30720", 0, {"loss 1.41498 ", "over 30720 tokens"});
  expect(evaluate, 0, {"loss 1.53959 ", "over 130048 tokens"});
}
#endif

}  // namespace
}  // namespace loqal
