// What a user may say to ./train: one struct, one table. The table knows each option's name, range,
// help text, and whether it is part of the trajectory (a resume must then agree with it).
//
// Where a value comes from, later wins: default, the checkpoint of --resume, --config FILE, the
// command line. Every mistake is a usage error (exit 2) that names option, value, and what was
// allowed.
#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "async/local_sgd_options.h"
#include "async/method_options.h"
#include "core/json_fwd.h"
#include "optim/schedule.h"

namespace loqal {

struct Options {
  // data
  std::vector<std::string> train_data, val_data;
  std::string tokenizer;
  // model; -1: the preset's (or the data's) value
  std::string model = "llama-9M", arch, init = "random";
  int64_t layers = -1, width = -1, heads = -1, kv_heads = -1, head_dim = -1, ffn = -1, vocab = -1,
          seq_len = -1;
  std::string tied;
  // training; -1: derived from others
  int64_t steps = 1000, batch_size = 8, grad_accum = 1, total_batch = -1, seed = 1;
  int64_t eval_every = 200, eval_tokens = 1'000'000;
  bool eval_only = false;
  // optimizer
  double lr = 3e-4, min_lr = -1, weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, adam_eps = 1e-8,
         grad_clip = -1;
  std::string lr_schedule = "cosine", optimizer = "adamw", param_dtype = "fp32";
  int64_t warmup = -1;
  bool per_layer_updates = false;
  std::string recompute = "none";
  MethodOptions method;
  LocalSgdOptions local;
  // device
  std::string device = "auto", precision = "auto";  // once complete: auto, cpu or cuda, and
  std::vector<int> gpus = {0};                      // which of them
  int64_t threads = 0;
  // files
  std::string out = "out", resume, export_to;
  int64_t save_every = 1000, keep = 3;
  bool dry_run = false;
  // sampling
  std::string sample;
  int64_t sample_tokens = 100;
  double temperature = 1.0, top_p = 1.0;

  std::set<std::string> given;  ///< names that the user set, on the command line or in --config
  bool is_given(const std::string& name) const { return given.count(name) > 0; }
  bool sampling() const { return is_given("--sample"); }
  /// --export alone: the model is written as it is; with these two it is trained first.
  bool exporting() const {
    return is_given("--export") && !is_given("--train-data") && !is_given("--steps");
  }
};

/// Reads the command line and --config. Handles --help and --version itself: prints and returns
/// false.
bool parse_options(int argc, char** argv, Options& options);

/// Derived values and contradictions: fills every -1 but the model's sizes. Call it after a
/// resume's values were taken over.
void complete_options(Options& options);

/// The learning rate of plain training, or of one data shard of Local-SGD on the shard's own clock.
Schedule schedule_of(const Options& options);

/// What the user said, as on a command line; for the console.
std::string given_options(const Options& options);

/// All options with their effective values, for the log; without those of this call alone, for
/// state.json: equal commands give equal bytes, whatever --out, --device and --threads.
Json options_to_json(const Options& options, bool with_call);

/// The saved value of every option that the user did not give.
void adopt_saved_options(Options& options, const Json& saved, const std::string& where);

/// For a resume: takes the saved value of every option that the user did not give; those given that
/// belong to the trajectory must be equal, else a usage error lists the differences. A larger
/// --steps is allowed: then `notice` says so.
void take_saved_options(Options& options, const Json& saved, const std::string& where,
                        std::string& notice);

}  // namespace loqal
