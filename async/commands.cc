// The commands of ./train that are not training: --dry-run, --eval-only, --export, --sample.
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <iostream>

#include "async/console.h"
#include "async/dry_schedule.h"
#include "async/local_trainer.h"
#include "async/setup.h"
#include "async/signals.h"
#include "async/training_run.h"
#include "core/json.h"
#include "model/sampling.h"

namespace loqal {

namespace {

// What a command that reads a model needs less of than training.
void fit_to_reading(Options& o) {
  if (!o.eval_only) o.batch_size = 1;              // one text at a time
  if (o.exporting()) o.precision = o.param_dtype;  // no copy for computing
}

// choice: choose_device()'s.
std::string device_line(const Options& o, const std::string& choice) {
  return cat("device      ", o.device, choice.empty() ? "" : " (" + choice + ")", "\n");
}

}  // namespace

int dry_run(Options o) {
  complete_options(o);
  const bool training = !o.eval_only && !o.sampling() && !o.exporting();
  if (!training) fit_to_reading(o);
  const auto tokenizer = open_tokenizer(o, o.init == "random" ? "" : o.init);
  const ModelConfig config = resolve_model(o, data_vocabulary(o.train_data, tokenizer.get()));
  if (training) resolve_batch(o, config);
  check_export(o, config);
  const std::string choice = choose_device(o, config, training);
  const auto ops = make_device(o, true);
  const std::vector<Parts> parts = build_all_parts(*ops, config, o, training);
  const Model& model = *parts[0].model;
  const int64_t program = program_bytes(config, o) + staging_bytes(o, model.table());
  print_model(std::cout, config, model.table());
  const int64_t per_step = o.batch_size * config.T * o.grad_accum;
  if (training)
    std::cout << "run         " << o.steps << " steps x " << per_step
              << " tokens = " << short_number(double(o.steps) * double(per_step)) << " tokens, "
              << o.precision << ", " << format("%.3g", flops_per_token(config) * double(per_step))
              << " FLOP a step\n";
  if (training) print_method(std::cout, o, config);
  std::cout << device_line(o, choice);
  if (!o.method.full()) print_tensors(std::cout, o, model.table(), model.parameter_type());
  const bool host = o.device == "cpu";  // the table is the device's
  print_memory(std::cout, *ops, host ? program : 0,
               host && training ? local_sgd_bytes(o, model.table()) : 0);
  if (training && o.local.on())
    print_schedule(std::cout, o, model.parameter_count() * int64_t(sizeof(float)));
  const Json options = options_to_json(o, true);
  for (const auto& [name, value] : options.items())
    std::cout << "  --" << name << " " << dump_json(value) << "\n";
  return 0;
}

namespace {

// A model for reading only, from --resume or --init.
struct Loaded {
  std::string directory;
  std::unique_ptr<Ops> ops;
  ModelConfig config;
  std::unique_ptr<Tokenizer> tokenizer;
  Parts parts;
};

Loaded load_for_reading(Options& o) {
  complete_options(o);
  Loaded l;
  const std::string checkpoint = resolve_resume(o);
  if (checkpoint.empty() && o.init == "random")
    fail("--resume auto: there is no checkpoint in " + o.out);
  l.directory = checkpoint.empty() ? o.init : checkpoint;
  if (!checkpoint.empty()) {
    const Json state = read_checkpoint_state(checkpoint);
    const std::string where = checkpoint + "/state.json";
    adopt_saved_options(o, get<Json>(state, "options", where), where);
  }
  if (o.eval_only && o.val_data.empty()) fail_usage("--eval-only needs --val-data");
  fit_to_reading(o);
  o.init = l.directory;
  l.tokenizer = open_tokenizer(o, l.directory);
  l.config = resolve_model(o, 0);
  if (!o.eval_only && l.tokenizer && l.tokenizer->vocab_size() > l.config.V)
    fail(cat("the tokenizer ", l.tokenizer->files().front(), " has ", l.tokenizer->vocab_size(),
             " ids, the model ", l.directory, " has ", l.config.V));
  check_export(o, l.config);
  const std::string choice = choose_device(o, l.config, false);
  if (isatty(STDERR_FILENO)) std::cerr << device_line(o, choice);
  l.ops = make_device(o, false);
  check_memory(l.config, o, false);
  l.parts = build_parts(*l.ops, l.config, o, false);
  if (checkpoint.empty()) load_weights(l.directory, *l.parts.model);
  else load_model(l.directory, *l.parts.model);
  return l;
}

// The id that texts begin with, -1: none.
int start_of(const std::string& directory) {
  const std::vector<int> ids = read_token_ids(directory, "bos_token_id");
  return ids.empty() ? -1 : ids.front();
}

}  // namespace

int evaluate_only(Options o) {
  watch_signals();
  Loaded l = load_for_reading(o);
  const std::optional<TokenizerInfo> info = info_of(l.tokenizer.get());
  Corpus corpus(o.val_data, "validation", int(l.config.V), info ? &*info : nullptr);
  EvalLoader loader(corpus, int(o.batch_size), int(l.config.T), o.eval_tokens);
  const std::optional<MeanLoss> mean = mean_loss(*l.parts.model, loader, o.batch_size, l.config.T,
                                                 [] { return stop_signal() != 0; });
  if (!mean) return signal_exit_code(stop_signal());
  std::cout << l.directory << ": loss " << format("%.5f", mean->loss) << "  ppl "
            << format("%.3f", std::exp(mean->loss)) << "  over " << mean->targets << " tokens\n";
  return 0;
}

int export_only(Options o) {
  watch_signals();
  Loaded l = load_for_reading(o);
  const TokenizerFiles files{tokenizer_files(l.tokenizer.get(), l.directory), start_of(l.directory),
                             read_token_ids(l.directory, "eos_token_id")};
  if (!export_model(o.export_to, *l.parts.model, files, [] { return stop_signal() != 0; }))
    return signal_exit_code(stop_signal());
  std::cout << "exported    " << l.directory << " to " << o.export_to << "\n";
  return 0;
}

int sample_text(Options o) {
  Loaded l = load_for_reading(o);
  if (!l.tokenizer)
    fail(cat(l.directory, ": no tokenizer beside the model"), "give --tokenizer FILE");
  std::vector<int32_t> ids = l.tokenizer->encode(o.sample);
  const int start = start_of(l.directory);
  std::vector<int> ends = read_token_ids(l.directory, "eos_token_id");
  if (ends.empty() && l.tokenizer->eos() >= 0) ends = {l.tokenizer->eos()};
  std::vector<int32_t> prompt = ids;  // begins with what is no text and is not shown
  if (start >= 0 && start < l.config.V) prompt.insert(prompt.begin(), start);
  if (prompt.empty())
    fail_usage("--sample \"\": this tokenizer needs at least one word to start from");
  const SamplingConfig config{.tokens = o.sample_tokens,
                              .temperature = o.temperature,
                              .top_p = o.top_p,
                              .seed = uint64_t(o.seed),
                              .eos = ends,
                              .ids = l.tokenizer->vocab_size()};
  // Decoding several tokens each time: one may be part of a character, or of the space before it.
  std::string shown;
  const auto show_up_to = [&](const std::string& text) {
    if (text.size() > shown.size() && text.starts_with(shown)) {
      std::cout << text.substr(shown.size()) << std::flush;
      shown = text;
    }
  };
  const auto show = [&](int32_t id) {
    ids.push_back(id);
    std::string text = l.tokenizer->decode(ids);
    while (text.ends_with("\xEF\xBF\xBD"))
      text.resize(text.size() - 3);  // a character not complete yet
    show_up_to(text);
    if (ids.size() < 64 || shown != l.tokenizer->decode(ids)) return;
    ids.erase(ids.begin(), ids.end() - 16);  // what the next tokens need
    shown = l.tokenizer->decode(ids);
  };
  std::cout << (shown = l.tokenizer->decode(ids)) << std::flush;
  const auto begin = std::chrono::steady_clock::now();
  const size_t made = sample(*l.parts.model, prompt, config, show).size();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  show_up_to(l.tokenizer->decode(ids));
  std::cout << std::endl;
  if (isatty(STDERR_FILENO))
    std::cerr << made << " tokens, " << format("%.1f", double(made) / seconds.count())
              << " tokens/s\n";
  return 0;
}

}  // namespace loqal
