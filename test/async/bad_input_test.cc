// What people get wrong, through ./train: exit codes, and messages that say what to do. Data and
// numbers here; options in options_test.cc.
#include <cmath>
#include <regex>

#include "core/safetensors.h"
#include "test/async/train_cli.h"
#include "test/data/data_test_util.h"

namespace loqal {
namespace {

class BadInput : public TrainCli {
 protected:
  /// A refusal before anything happened: one error, no log, no directory.
  void expect_refusal(const std::string& arguments, int exit_code,
                      const std::vector<std::string>& parts) {
    expect(arguments, exit_code, parts);
    EXPECT_FALSE(exists("out/log.jsonl")) << arguments;
    remove_tree(dir_ / "out");
  }
};

// D1: the check belongs to the first batch that uses the shard: no step may have been made of it.
TEST_F(BadInput, TokenOutsideTheVocabulary) {
  for (const int id : {kVocab, 65535})
    for (const size_t place : {size_t(1000), size_t(4095)}) {
      std::vector<uint16_t> ids = distinct_ids(0, 4096);
      for (uint16_t& i : ids) i = uint16_t(i % kVocab);
      ids[place] = uint16_t(id);
      put("bad.bin", llmc_shard(ids));
      expect(tiny_ + " --train-data bad.bin --steps 3", 1,
             {"bad.bin", cat("token ", place), cat("id ", id), cat("vocabulary size ", kVocab)});
      EXPECT_TRUE(records("out/log.jsonl", "train").empty());
      remove_tree(dir_ / "out");
    }
  // The header itself may say that the vocabulary is too large: then it is refused at the start.
  write_shards("wide", kVocab + 1, 3000, 1000);
  expect_refusal(tiny_ + " --train-data 'wide_*.bin'", 1,
                 {"wide_000000.bin", "vocabulary size 65", "the model has 64", "--vocab"});
  // The same id in validation data.
  std::vector<uint16_t> ids(200, 5);
  ids[150] = kVocab;
  put("bad.bin", llmc_shard(ids));
  expect(tiny_ + data_ + " --val-data bad.bin", 1, {"bad.bin", "token 150", "id 64"});
}

// D2: a GPT-2 tokenizer of 257 ids beside shards of 64, and shards of two tokenizers.
TEST_F(BadInput, TokenizerShardAndModelDisagree) {
  std::filesystem::create_directory(dir_ / "gpt2");
  Json vocabulary = {{"<|endoftext|>", 256}};
  int other = 256;
  for (int b = 0; b < 256; b++) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    const int c = printable ? b : other++;
    vocabulary[c < 128 ? std::string(1, char(c))
                       : std::string{char(0xC0 | c >> 6), char(0x80 | (c & 63))}] = b;
  }
  put("gpt2/encoder.json", vocabulary.dump());
  put("gpt2/vocab.bpe", "#version: 0.2\n");
  const std::string any_vocab =
      "--layers 1 --width 32 --heads 2 --seq-len 16 --batch-size 4 --steps 2";
  expect_refusal(any_vocab + data_ + " --tokenizer gpt2", 1,
                 {"data_000000.bin", "vocabulary size 64", "gpt2", "257"});
  write_shards("hashed", 257, 3000, 3000, {.tokenizer_hash = 0x1234});
  expect_refusal(any_vocab + " --train-data 'hashed_*.bin' --tokenizer gpt2", 1,
                 {"hashed_000000.bin", "hash", "0000000000001234"});
  write_shards("more", 257, 3000, 3000, {.tokenizer_hash = 0x1235});
  expect_refusal(any_vocab + " --train-data 'hashed_*.bin' 'more_*.bin'", 1,
                 {"hashed_000000.bin", "more_000000.bin", "0000000000001234", "0000000000001235"});
  expect_refusal(any_vocab + " --train-data 'hashed_*.bin' --vocab 200", 1, {"257", "200"});
  expect_refusal(any_vocab + data_ + " --tokenizer nowhere", 1, {"nowhere"});
}

// D4: one line with the path and what is in the file.
TEST_F(BadInput, ForeignShards) {
  const std::string good = llmc_shard(distinct_ids(0, 64));
  const std::vector<std::pair<std::string, std::string>> contents = {
      {"", "empty"},
      {"abc", "3 bytes"},
      {std::string(5000, '\xff'), "magic"},
      {"<!DOCTYPE html><html><body>404</body></html>" + std::string(2000, ' '), "HTML"},
      {good.substr(0, good.size() - 2), "bytes"},
      {good + "xx", "bytes"}};
  for (const auto& [content, part] : contents) {
    put("bad.bin", content);
    expect_refusal(tiny_ + " --train-data bad.bin", 1, {"bad.bin", part});
    expect_refusal(tiny_ + data_ + " --val-data bad.bin", 1, {"bad.bin", part});
  }
}

// D10, D11.
TEST_F(BadInput, TooLittleData) {
  const std::string model =
      "--layers 1 --width 32 --heads 2 --vocab 64 --seq-len 64 --batch-size 4";
  put("ten.bin", llmc_shard(distinct_ids(0, 10)));
  expect_refusal(model + " --train-data ten.bin", 1,
                 {"training set has 10 tokens", "257", "reduce B or T, or add data"});
  std::vector<uint16_t> ids = distinct_ids(0, 4 * 64 + 1);
  for (uint16_t& i : ids) i = uint16_t(i % kVocab);
  put("exact.bin", llmc_shard(ids));
  expect(model + " --train-data exact.bin --steps 2 --out exact", 0);
  ids.pop_back();
  put("less.bin", llmc_shard(ids));
  expect_refusal(model + " --train-data less.bin", 1, {"training set has 256 tokens", "257"});
  put("none.bin", llmc_shard(std::vector<uint16_t>()));
  for (const char* val : {"ten.bin", "none.bin"})
    expect_refusal(model + " --train-data exact.bin --val-data " + val, 1,
                   {"validation set has ", "65 in one shard"});
  expect_refusal(model + " --train-data 'no/such_*.bin'", 1,
                 {"no training data", "'no/such_*.bin'"});
  expect_refusal(model + " --train-data exact.bin --val-data 'non_*.bin'", 1,
                 {"no validation data", "'non_*.bin'"});
}

// D11: a last batch that is not full counts with its true weight. 3 windows in batches of 4 and of
// 1 are the same tokens: the losses agree up to fp32's rounding of sums.
TEST_F(BadInput, PartialValidationBatchIsWeightedRight) {
  put("val.bin", llmc_shard(distinct_ids(0, 50)));
  double loss[2];
  int i = 0;
  for (const char* batch : {"4", "1"}) {
    const std::string out = cat("batch", batch);
    expect(cat("--layers 1 --width 32 --heads 2 --vocab 64 --seq-len 16 --steps 1 --batch-size ",
               batch, data_, " --val-data val.bin --out ", out),
           0);
    const Json eval = records(out + "/log.jsonl", "eval").at(0);
    EXPECT_EQ(eval["tokens"], 48);
    loss[i++] = eval["loss"];
  }
  EXPECT_NEAR(loss[0], loss[1], 1e-6 * loss[0]);
}

// N2: a learning rate that no model survives. The run stops at the step, and what was saved before
// it is finite.
TEST_F(BadInput, NonFiniteStopsTheRun) {
  for (const char* options :
       {"", " --per-layer-updates", " --precision bf16", " --arch gpt2 --tied true"}) {
    const Outcome o =
        expect(tiny_ + data_ + options + " --lr 1e30 --warmup 3 --steps 50 --save-every 1 --keep 0",
               3, {"is not finite", "the last good checkpoint is out/step_0000", "--lr"});
    std::smatch found;
    ASSERT_TRUE(std::regex_search(o.output, found, std::regex("step (\\d+): (.*) is not finite")))
        << o.output;
    const int step = std::stoi(found[1]);
    EXPECT_TRUE(std::regex_search(
        o.output, std::regex("(model|transformer|lm_head)[.\\w]+|layer \\d|embedding")));
    EXPECT_EQ(records("out/log.jsonl", "train").back()["step"], step - 1);
    ASSERT_TRUE(std::regex_search(o.output, found, std::regex("checkpoint is (out/step_\\d+)")));
    const SafetensorsReader model(dir_ / found[1].str() + "/model.safetensors");
    for (const TensorInfo& t : model.tensors()) {
      std::vector<float> values(size_t(t.numel()));
      read_floats(model, t.name, values.data());
      for (const float v : values) ASSERT_TRUE(std::isfinite(v)) << t.name;
    }
    const std::string log = slurp("out/log.jsonl");
    const Json last = parse_json(log.substr(log.rfind('\n', log.size() - 2) + 1), "last line");
    EXPECT_EQ(last["kind"], "end");
    EXPECT_CONTAINS(last["reason"].get<std::string>(), "is not finite");
    remove_tree(dir_ / "out");
  }
}

// A step that ends in weights that no pass survives: the evaluation after it finds out, and says so
// of that step.
TEST_F(BadInput, NonFiniteEvaluationNamesItsStep) {
  expect(
      tiny_ + data_ + " --val-data data_000000.bin --eval-every 1 --lr 1e30 --warmup 0 --arch gpt2",
      3, {"step 1: the validation loss is not finite", "no checkpoint was written"});
}

// M1: the answer comes before the memory is touched, and it is the right one by --dry-run's table.
TEST_F(BadInput, ABatchThatDoesNotFit) {
  const std::string model =
      "--layers 16 --width 512 --heads 8 --vocab 64 --seq-len 512 --threads 1";
  write_shards("long", kVocab, 4096 * 512 + 1, 1 << 30);
  const Outcome o = run(model + " --train-data 'long_*.bin' --batch-size 4096");
  EXPECT_EQ(o.exit_code, 1) << o.output;
  std::smatch m;
  ASSERT_TRUE(std::regex_search(o.output, m,
                                std::regex("needs (\\d+) MiB of memory, (\\d+) MiB are available")))
      << o.output;
  const double needed = std::stod(m[1]), available = std::stod(m[2]);
  EXPECT_GT(needed, available);
  EXPECT_LT(o.peak_rss, int64_t(300) << 20);
  EXPECT_FALSE(exists("out/log.jsonl"));
  ASSERT_TRUE(
      std::regex_search(o.output, m, std::regex("largest --batch-size that fits is (\\d+)")))
      << o.output;
  const int64_t fits = std::stoll(m[1]);
  const auto total = [&](int64_t batch) {
    const std::string table = run(cat(model, " --dry-run --batch-size ", batch)).output;
    std::smatch t;
    return std::regex_search(table, t, std::regex("total +([\\d.]+) MiB")) ? std::stod(t[1]) : -1;
  };
  // 16 MiB: what the process itself holds differs a little between two runs.
  EXPECT_LE(total(fits), available + 16);
  EXPECT_GT(total(fits + 1), available - 16);
}

}  // namespace
}  // namespace loqal
