// Padded shards from end to end: text through ./tokenize's code, the loader, a model, a loss.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "async/local_trainer.h"
#include "data/loader.h"
#include "data/tokenize.h"
#include "optim/grad_sinks.h"
#include "test/data/data_test_util.h"
#include "test/model/small_model.h"

namespace loqal {
namespace {

class PaddedTest : public DataTest, public testing::WithParamInterface<Arch> {
 protected:
  static constexpr int kT = 16, kVocab = 257, kEos = 256;
  const std::vector<std::string> documents_ = {"some words", "x", "longer than one row of sixteen",
                                               "exactly 15 long"};

  /// Rows of 16 by a byte-level tokenizer: ids 0..255 are bytes, 256 ends documents and pads.
  void SetUp() override {
    nlohmann::json vocabulary = {{"<|endoftext|>", kEos}};
    for (int b = 0; b < 256; b++) vocabulary[spelling(b)] = b;
    write("encoder.json", vocabulary.dump());
    write("vocab.bpe", "#version: 0.2\n");
    std::string lines;
    for (const std::string& d : documents_) lines += nlohmann::json{{"text", d}}.dump() + "\n";
    TokenizeOptions options;
    options.inputs = {write("in.jsonl", lines)};
    options.tokenizer = dir_.string();
    options.out = path("t");
    options.eos = "after";
    options.row_length = kT;
    std::ostringstream log;
    ASSERT_TRUE(tokenize(options, log));
    EXPECT_NE(log.str().find("1 documents cut (25 %)"), std::string::npos) << log.str();
  }
  static ModelConfig config() {
    ModelConfig c = small_config(GetParam(), false);
    c.V = kVocab, c.T = kT;
    return c;
  }
};

// The loss over padded rows is that of each document by itself, at its own length, without any
// padding: -log p(next byte) over its bytes and the end, cut to 16 ids.
TEST_P(PaddedTest, LossIsThatOfTheUnpaddedDocuments) {
  SmallModel m(config(), 5, 2);
  double sum = 0;
  int64_t count = 0;
  for (const std::string& document : documents_) {
    std::vector<int32_t> ids(document.begin(),
                             document.begin() + std::min<long>(15, long(document.size())));
    ids.push_back(kEos);
    const int64_t n = int64_t(ids.size()) - 1;
    sum += m.model.forward(ids.data(), ids.data() + 1, 1, n);
    count += n;
  }
  Corpus corpus({path("t_*.bin")}, "validation", kVocab);
  EvalLoader loader(corpus, 2, kT, 1000000);
  const auto mean = mean_loss(m.model, loader, 2, kT, [] { return false; });
  EXPECT_EQ(mean->targets, count);
  // fp32 sums of some 40 terms near ln 257, in another order.
  EXPECT_NEAR(mean->loss, sum / double(count), 1e-5);
}

// Padding changes nothing: with other ids in its place a training step gives the same weights and
// moments, to the bit.
TEST_P(PaddedTest, TrainingDoesNotSeeThePadding) {
  Corpus corpus({path("t_*.bin")}, "training", kVocab);
  std::vector<int32_t> tokens(kT), targets(kT);
  corpus.window(0, kT, tokens.data(), targets.data());  // "some words" and eos, five pads
  ASSERT_EQ(std::count(targets.begin(), targets.end(), -1), 6);
  const auto after_a_step = [&] {
    SmallModel m(config(), 5, 1);
    FullGradSink sink(*m.ops, m.model.table(), m.optimizer, 1);
    m.optimizer.begin_step(1e-3);
    sink.begin_step();
    sink.begin_micro_batch(0);
    m.model.forward_backward(tokens.data(), targets.data(), 1, kT, 0.1f, sink);
    EXPECT_GT(sink.finish_step().grad_norm, 0);
    return m.all();
  };
  const std::vector<float> padded = after_a_step();
  std::fill(tokens.begin() + 11, tokens.end(), int('?'));
  EXPECT_TRUE(after_a_step() == padded);
  tokens[10] = '!';  // not padding: the eos
  EXPECT_TRUE(after_a_step() == padded) << "the last text position has no target";
  tokens[9] = '!';
  EXPECT_FALSE(after_a_step() == padded);
}

INSTANTIATE_TEST_SUITE_P(Archs, PaddedTest, testing::Values(Arch::gpt2, Arch::llama));

}  // namespace
}  // namespace loqal
