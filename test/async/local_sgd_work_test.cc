// Local-SGD of real language models in this process: resumed at any event, by any number of
// threads, it goes on bit by bit as if it had not been interrupted. ThreadSanitizer runs this, too.
#include "async/local_sgd.h"

#include <gtest/gtest.h>

#include "core/philox.h"
#include "data/shard_writer.h"
#include "test/core/files.h"

namespace loqal {
namespace {

struct Method {
  const char* name;
  void (*set)(LocalSgdOptions& o);
};

/// One process's part of a run.
struct Session {
  Session(const Options& o, const ModelConfig& config, int64_t threads) : console(o.steps) {
    Options mine = o;
    mine.threads = threads;
    const auto record = [this](Json line) {
      for (const char* clock : {"t_wall", "tokens_per_s", "step_ms", "mfu"}) line.erase(clock);
      lines.push_back(dump_json(line));
    };
    work = std::make_unique<LocalSgd>(
        WorkEnvironment{mine, config, 1e9, record, &console},
        [files = o.train_data] { return std::make_unique<Corpus>(files, "training", 64); });
  }
  void begin() {
    work->model().init_random(1);
    work->begin();
  }
  void resume(const std::string& path) {
    const Json state = read_checkpoint_state(path);
    load_weights(path, work->model());
    work->begin();
    work->restore(state, path);
    load_state_tensors(path, work->tensors());
  }
  void save(const std::string& path) {
    work->settle();
    Json state = {{"tokens", work->tokens()}};
    work->add_state(state);
    save_checkpoint(path, work->model(), work->tensors(), std::move(state), {});
  }

  Console console;
  std::vector<std::string> lines;
  std::unique_ptr<LocalSgd> work;
};

class LocalSgdWork : public testing::TestWithParam<Method> {
 protected:
  void SetUp() override {
    const PhiloxStream random(1, Purpose::test);
    std::vector<int32_t> ids;
    for (uint64_t i = 0; i < 2000; i++) ids.push_back(int32_t(random.bits(i) % 64));
    ShardWriter writer(dir_ / "data", {.vocab_size = 64}, 2000);
    writer.write(ids);
    writer.finish();
    writer.publish();
    options_.train_data = {shard_path(dir_ / "data", 0)};
    options_.layers = 1, options_.width = 16, options_.heads = 2, options_.seq_len = 8;
    options_.steps = 1000, options_.batch_size = 2, options_.lr = 1e-2;
    options_.device = "cpu", options_.precision = "fp32";
    options_.local.workers = 4, options_.local.inner_steps = 5;
    options_.local.heterogeneity = "very";
    GetParam().set(options_.local);
    complete_options(options_);
    config_ = resolve_model(options_, 64);
    testing::internal::CaptureStdout();  // a line for each push
  }
  void TearDown() override { testing::internal::GetCapturedStdout(); }

  const TempDir dir_;
  Options options_;
  ModelConfig config_;
};

TEST_P(LocalSgdWork, ResumesAtAnyEventWithAnyNumberOfThreads) {
  constexpr int kPushes = 14;
  Session whole(options_, config_, 2);
  whole.begin();
  std::vector<size_t> lines;  // before each push
  for (int i = 0; i <= kPushes; i++) {
    whole.save(dir_ / cat("at", i));
    lines.push_back(whole.lines.size());
    if (i < kPushes) {
      ASSERT_TRUE(whole.work->advance());
    }
  }
  const std::string end = read_file(dir_ / cat("at", kPushes, "/state.safetensors")),
                    model = read_file(dir_ / cat("at", kPushes, "/model.safetensors"));
  for (int at = 0; at < kPushes; at++)
    for (const int64_t threads :
         at % 4 == 1 ? std::vector<int64_t>{1, 2, 4} : std::vector<int64_t>{4}) {
      Session rest(options_, config_, threads);
      rest.resume(dir_ / cat("at", at));
      for (int i = at; i < kPushes; i++) ASSERT_TRUE(rest.work->advance());
      const std::string where = cat("resumed after push ", at, " with ", threads, " threads");
      EXPECT_EQ(rest.lines, std::vector(whole.lines.begin() + std::ptrdiff_t(lines[size_t(at)]),
                                        whole.lines.end()))
          << where;
      rest.save(dir_ / "end");
      EXPECT_TRUE(read_file(dir_ / "end/state.safetensors") == end) << where;
      EXPECT_TRUE(read_file(dir_ / "end/model.safetensors") == model) << where;
      remove_tree(dir_ / "end");
    }
}

INSTANTIATE_TEST_SUITE_P(
    Methods, LocalSgdWork,
    testing::Values(Method{"dn_dylu", [](LocalSgdOptions& o) { o.dylu = true, o.grace = 1; }},
                    Method{"sync", [](LocalSgdOptions& o) { o.sync = true; }},
                    Method{"compensated_adam",
                           [](LocalSgdOptions& o) {
                             o.outer = "adam", o.outer_lr = 0.01, o.delay_compensation = 0.5;
                             o.push_weight = "poly", o.inner_state = "reset";
                           }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace loqal
