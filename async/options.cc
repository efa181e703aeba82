#include "async/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <iostream>
#include <limits>
#include <map>
#include <sstream>

#include "async/option_table.h"
#include "core/file.h"
#include "core/json.h"
#include "model/config.h"

namespace loqal {

namespace {

constexpr const char* kVersion = "loqal 0.1";

void add_all(OptionTable& t, Options& o) {
  using enum Scope;
  t.section("data");
  t.list("--train-data", o.train_data, "token shards to train on: files or quoted patterns", run);
  t.list("--val-data", o.val_data, "token shards to evaluate on", run);
  t.text("--tokenizer", o.tokenizer,
         "SentencePiece model or GPT-2 folder: checked against the shards, saved along", run);
  t.section("model");
  t.text("--model", o.model, "preset, see the list below", trajectory);
  t.choice("--arch", o.arch, {"gpt2", "llama"}, "override the preset, as do the sizes below",
           trajectory);
  t.integer("--layers", o.layers, 1, 10000, "transformer blocks", trajectory);
  t.integer("--width", o.width, 1, 1 << 20, "channels of the residual stream", trajectory);
  t.integer("--heads", o.heads, 1, 1 << 16, "attention heads", trajectory);
  t.integer("--kv-heads", o.kv_heads, 1, 1 << 16, "key/value heads (Llama); a divisor of --heads",
            trajectory);
  t.integer("--head-dim", o.head_dim, 1, 1 << 16, "size of one head [width/heads]", trajectory);
  t.integer("--ffn", o.ffn, 1, 1 << 22, "width of the feed-forward layer", trajectory);
  t.integer("--vocab", o.vocab, 2, 1 << 28, "vocabulary size [that of the data]", trajectory);
  t.integer("--seq-len", o.seq_len, 1, 1 << 24, "tokens of one sequence (T)", trajectory);
  t.choice("--tied", o.tied, {"true", "false"}, "whether the head is the token embedding",
           trajectory);
  t.text("--init", o.init,
         "random, or a directory with config.json and model.safetensors or its shards", trajectory);
  t.section("training");
  t.integer("--steps", o.steps, 1, kMany, "optimizer steps of the whole run", run);
  t.integer("--batch-size", o.batch_size, 1, 1 << 24, "sequences of one forward pass (B)",
            trajectory);
  t.integer("--grad-accum", o.grad_accum, 1, 1 << 24, "forward passes of one optimizer step",
            trajectory);
  t.integer("--total-batch", o.total_batch, 1, kMany, "instead: tokens of one optimizer step",
            trajectory);
  t.integer("--seed", o.seed, 0, std::numeric_limits<int64_t>::max(),
            "of initialisation and shuffle", trajectory);
  t.integer("--eval-every", o.eval_every, 0, kMany,
            "steps between evaluations; also at step 0 and the end; 0: never", run);
  t.integer("--eval-tokens", o.eval_tokens, 1, kMany, "tokens of one evaluation, at most", run);
  t.flag("--eval-only", o.eval_only, "evaluate --resume or --init on --val-data and stop", call);
  t.section("optimizer");
  t.real("--lr", o.lr, 0, 1e30, "peak learning rate", trajectory);
  t.choice("--lr-schedule", o.lr_schedule, {"cosine", "linear", "wsd", "constant"}, "after warm-up",
           trajectory);
  t.integer("--warmup", o.warmup, 0, kMany, "steps of linear warm-up [5% of steps]", trajectory);
  t.real("--min-lr", o.min_lr, 0, 1e30, "learning rate at the last step [0.1 x lr]", trajectory);
  t.real("--weight-decay", o.weight_decay, 0, 1e6, "decoupled, on 2-D weights", trajectory);
  t.real("--beta1", o.beta1, 0, 0.999999, "Adam's first moment", trajectory);
  t.real("--beta2", o.beta2, 0, 0.999999, "Adam's second moment", trajectory);
  t.real("--adam-eps", o.adam_eps, 1e-30, 1, "Adam's epsilon", trajectory);
  t.real("--grad-clip", o.grad_clip, 0, 1e30,
         "global gradient norm [1; 0: off, and off with per-layer updates]", trajectory);
  t.choice("--optimizer", o.optimizer, {"adamw", "adamw8bit"},
           "adamw8bit: moments of large tensors in 8 bits", trajectory);
  t.choice("--param-dtype", o.param_dtype, {"fp32", "bf16"},
           "bf16: 2-D parameters without an fp32 copy, rounded stochastically", trajectory);
  t.flag("--per-layer-updates", o.per_layer_updates,
         "update each layer during the backward pass: less memory", trajectory);
  t.choice("--recompute", o.recompute, {"none", "block"},
           "block: keep only block inputs, compute the rest twice", run);
  add_method(t, o.method);
  add_local_sgd(t, o.local);
  t.section("device");
  t.text("--device", o.device,
         "auto, cpu or cuda; cuda:1; with --workers also several: cuda:0,cuda:1", call);
  t.integer("--threads", o.threads, 0, 4096, "CPU threads; 0: all", call);
  t.choice("--precision", o.precision, {"auto", "fp32", "bf16"},
           "auto: bf16 where the hardware has it", trajectory);
  t.section("files");
  t.text("--out", o.out, "directory of log.jsonl and checkpoints", call);
  t.integer("--save-every", o.save_every, 0, kMany,
            "steps between checkpoints; also at the end; 0: never", run);
  t.integer("--keep", o.keep, 0, kMany, "checkpoints that are kept; 0: all", run);
  t.text("--resume", o.resume, "a step directory, a run's --out, or auto: the newest in --out",
         call);
  t.text("--export", o.export_to,
         "write the model for transformers to this new directory; with --train-data or --steps "
         "after training",
         call);
  t.flag("--dry-run", o.dry_run, "print configuration, parameters and memory; needs no data", call);
  t.section("sampling (needs --resume or --init)");
  t.text("--sample", o.sample, "continue this text and stop", call);
  t.integer("--sample-tokens", o.sample_tokens, 1, 1 << 24, "tokens to write", call);
  t.real("--temperature", o.temperature, 0, 1000, "0: always the likeliest token", call);
  t.real("--top-p", o.top_p, 1e-9, 1, "keep the likeliest tokens of this total probability", call);
}

// Where in a TOML file a key stands, and how often: for error messages.
int line_of(const std::string& text, const std::string& key, int occurrence) {
  std::istringstream in(text);
  std::string line;
  for (int number = 1; std::getline(in, line); number++) {
    const size_t begin = line.find_first_not_of(" \t\"");
    if (begin == std::string::npos || line.compare(begin, key.size(), key) != 0) continue;
    const size_t after = line.find_first_not_of(" \t\"", begin + key.size());
    if ((after == std::string::npos || line[after] == '=') && occurrence-- == 0) return number;
  }
  return 0;
}

void read_config(const std::string& path, OptionTable& table, Options& options) {
  if (glob_files(path).empty()) fail_usage(cat("--config ", path, ": there is no such file"));
  const std::string text = read_file(path, 1 << 20);
  Options unused;
  OptionTable checked;
  add_all(checked, unused);
  std::istringstream in(text);
  std::vector<CLI::ConfigItem> items;
  try {
    items = CLI::ConfigTOML().from_config(in);
  } catch (const CLI::Error& e) {
    fail_usage(cat(path, ": ", e.what()));
  }
  for (const CLI::ConfigItem& item : items) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section
    const std::string name = "--" + item.name;
    const std::string where = cat(path, ":", line_of(text, item.name, 0), ": ");
    if (!item.parents.empty())
      fail_usage(cat(where, "sections are not used; write ", item.name, " at the top"));
    if (!table.contains(name))
      fail_usage(cat(where, "unknown key ", item.name),
                 cat("did you mean ", table.closest_to(name).substr(2), "?"));
    if (const int again = line_of(text, item.name, 1))
      fail_usage(cat(path, ":", again, ": key ", item.name, " was already set in line ",
                     line_of(text, item.name, 0)));
    checked.set(name, item.inputs, where);  // also what the command line overrides
    if (options.given.insert(name).second) table.set(name, item.inputs, where);
  }
}

// What the commands that read the model of --resume or --init use. Of a run's --config they take
// what they need; an option that is typed for nothing is a mistake.
void refuse_unused(const Options& o, const std::set<std::string>& typed) {
  const char* command = o.sampling()    ? "--sample"
                        : o.eval_only   ? "--eval-only"
                        : o.exporting() ? "--export"
                                        : nullptr;
  if (!command || (o.resume.empty() && o.init == "random")) return;
  const std::set<std::string> always = {"--resume",    "--init",    "--out",    "--tokenizer",
                                        "--device",    "--threads", "--sample", "--eval-only",
                                        "--precision", "--dry-run", "--export"};
  const std::map<std::string, std::set<std::string>> uses = {
      {"--export", {"--seq-len"}},
      {"--eval-only", {"--val-data", "--eval-tokens", "--batch-size", "--seq-len"}},
      {"--sample", {"--sample-tokens", "--temperature", "--top-p", "--seed", "--seq-len"}}};
  for (const std::string& name : typed)
    if (!always.count(name) && !uses.at(command).count(name))
      fail_usage(cat(name, " is not used by ", command), "leave it out");
}

// "cuda:0,cuda:1" becomes cuda and the numbers.
void complete_device(Options& o) {
  const std::string text = o.device;
  if (text == "auto" || text == "cpu" || text == "cuda") return;
  o.gpus.clear();
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    int gpu = -1;
    const char* last = name.data() + name.size();
    const bool number = name.starts_with("cuda:") &&
                        std::from_chars(name.data() + 5, last, gpu).ptr == last && gpu >= 0;
    if (!number || gpu > 1023)
      fail_usage(cat("--device ", text, ": \"", name, "\" is no device"),
                 "choose auto, cpu, cuda, or GPUs by number: cuda:0,cuda:1");
    if (std::find(o.gpus.begin(), o.gpus.end(), gpu) != o.gpus.end())
      fail_usage(cat("--device ", text, ": ", name, " stands there twice"));
    o.gpus.push_back(gpu);
    begin = end + 1;
  }
  if (int64_t(o.gpus.size()) > o.local.workers)
    fail_usage(cat("--device ", text, ": ", o.gpus.size(), " devices for ", o.local.workers,
                   o.local.workers == 1 ? " worker" : " workers"),
               "several devices are for several workers of Local-SGD: --workers");
  o.device = "cuda";
}

void print_first_steps() {
  std::cout << kVersion
            << ": trains GPT-2- and Llama-type language models.\n\n"
               "First time here?   make quickstart          (everything, in a few minutes)\n"
               "Your own text:     ./tokenize --train-spm --vocab 4096 --out spm TEXT...\n"
               "                   ./tokenize --tokenizer spm.model --out tokens/mine TEXT...\n"
               "                   ./train --model llama-9M --train-data 'tokens/mine_*.bin' "
               "--tokenizer spm.model\n"
               "All options:       ./train --help\n";
}

}  // namespace

bool parse_options(int argc, char** argv, Options& options) {
  OptionTable table;
  add_all(table, options);
  if (argc == 1) {
    print_first_steps();
    return false;
  }
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  std::map<std::string, std::vector<std::string>> values;
  std::string config;
  bool help = false, version = false;
  for (const std::string& name : table.names())
    if (table.is_flag(name)) app.add_flag(name, values[name]);
    else if (table.is_list(name)) app.add_option(name, values[name]);
    else
      app.add_option(name, values[name])
          ->expected(1)
          ->multi_option_policy(CLI::MultiOptionPolicy::Throw);
  app.add_option("--config", config);
  app.add_flag("--help,-h", help);
  app.add_flag("--version", version);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Error& e) {
    fail_usage(e.what(), "./train --help lists the options");
  }
  for (const std::string& extra : app.remaining()) {
    if (!extra.starts_with("-"))
      fail_usage(cat("unexpected word \"", extra, "\""), "quote patterns and texts");
    const std::string name = extra.substr(0, extra.find('='));
    fail_usage(cat("unknown option ", name), cat("did you mean ", table.closest_to(name), "?"));
  }
  if (help)
    std::cout << kVersion << "\n\nusage: ./train --train-data FILES [options]\n"
              << table.help()
              << "\n  --config FILE            TOML with the same names; the command line wins\n"
                 "  --version\n\npresets: "
              << OptionTable::join(preset_names()) << "\n";
  if (version) std::cout << kVersion << "\n";
  if (help || version) return false;
  for (const std::string& name : table.names())
    if (app.count(name) > 0) {
      table.set(name, values[name], "");
      options.given.insert(name);
    }
  const std::set<std::string> typed = options.given;
  if (!config.empty()) read_config(config, table, options);
  refuse_unused(options, typed);
  return true;
}

void complete_options(Options& o) {
  if (o.is_given("--total-batch") && o.is_given("--grad-accum"))
    fail_usage("--total-batch and --grad-accum say the same thing twice; give one of them");
  if (o.per_layer_updates && o.grad_clip > 0)
    fail_usage(cat("--grad-clip ", o.grad_clip, " contradicts --per-layer-updates"),
               "the global norm is known only after the last layer is updated; leave --grad-clip "
               "out or 0");
  if (o.per_layer_updates && (o.grad_accum > 1))
    fail_usage(cat("--grad-accum ", o.grad_accum, " contradicts --per-layer-updates"),
               "a layer's gradient is gone after its update; use a larger --batch-size");
  if (o.grad_clip < 0) o.grad_clip = o.per_layer_updates ? 0 : 1;
  complete_local_sgd(o);
  complete_method(o);
  complete_device(o);
  if (o.warmup < 0) o.warmup = schedule_of(o).steps / 20;
  if (o.min_lr < 0) o.min_lr = 0.1 * o.lr;
  if (o.min_lr > o.lr) fail_usage(cat("--min-lr ", o.min_lr, ": must not be above --lr ", o.lr));
  const char* reading = o.eval_only     ? "--eval-only"
                        : o.sampling()  ? "--sample"
                        : o.exporting() ? "--export"
                                        : nullptr;  // a command that reads a model
  if (o.eval_only && o.sampling())
    fail_usage("--eval-only and --sample are two commands; give one");
  if ((o.eval_only || o.sampling()) && o.is_given("--export"))
    fail_usage(cat(reading, " and --export are two commands; give one"));
  if (o.is_given("--export") && o.export_to.empty())
    fail_usage("--export \"\": expected the name of a new directory");
  if (o.param_dtype == "bf16" && o.precision == "fp32")
    fail_usage("--param-dtype bf16 contradicts --precision fp32: such parameters compute in bf16");
  if (o.exporting() && o.precision == "bf16" && o.is_given("--precision"))
    fail_usage("--precision bf16 contradicts --export, which writes the fp32 weights",
               "transformers converts them: from_pretrained(DIR, torch_dtype=torch.bfloat16)");
  if (o.dry_run && !o.resume.empty())
    fail_usage("--dry-run and --resume: a run that is resumed needs what its first dry run said");
  for (const char* name : {"--sample-tokens", "--temperature", "--top-p"})
    if (o.is_given(name) && !o.sampling()) fail_usage(cat(name, " belongs to --sample"));
  if (reading && !o.resume.empty() && o.is_given("--init"))
    fail_usage("--resume and --init both name a model; give one");
  if (o.is_given("--init") && o.init != "random" && o.is_given("--model"))
    fail_usage(
        cat("--model ", o.model, " contradicts --init ", o.init, ", which says what the model is"));
  if (reading && !o.dry_run && o.resume.empty() && o.init == "random")
    fail_usage(cat(reading, " needs a trained model"),
               cat("give --resume RUN or --init DIRECTORY",
                   o.exporting() ? ", or --train-data to train one first" : ""));
  if (o.train_data.empty() && !o.dry_run && !reading)
    fail_usage("--train-data is missing", "make token shards with ./tokenize, or try --dry-run");
}

Schedule schedule_of(const Options& o) {
  return {.kind = schedule_kind(o.lr_schedule),
          .lr = o.lr,
          .min_lr = o.min_lr,
          .warmup = o.warmup,
          .steps = o.local.on() ? steps_of_shard(o) : o.steps};
}

std::string given_options(const Options& options) {
  Options copy = options;
  OptionTable table;
  add_all(table, copy);
  std::string text;
  for (const std::string& name : table.names())
    if (options.is_given(name)) {
      text += (text.empty() ? "" : " ") + name;
      if (!table.is_flag(name)) text += " " + OptionTable::join(words_of(table.value(name)));
    }
  return text;
}

Json options_to_json(const Options& options, bool with_call) {
  Options copy = options;
  OptionTable table;
  add_all(table, copy);
  Json json;
  for (const std::string& name : table.names())
    if (with_call || table.scope(name) != Scope::call) json[name.substr(2)] = table.value(name);
  return json;
}

void adopt_saved_options(Options& options, const Json& saved, const std::string& where) {
  OptionTable table;
  add_all(table, options);
  for (const auto& [key, value] : saved.items()) {
    const std::string name = "--" + key;
    const bool mine =
        table.contains(name) && table.scope(name) != Scope::call && !options.is_given(name);
    if (mine && table.value(name) != value) table.set(name, words_of(value), where + ": ");
  }
}

void take_saved_options(Options& options, const Json& saved, const std::string& where,
                        std::string& notice) {
  OptionTable table;
  add_all(table, options);
  std::string differences;
  for (const auto& [key, value] : saved.items()) {
    const std::string name = "--" + key;
    if (!table.contains(name) || !options.is_given(name) || table.scope(name) != Scope::trajectory)
      continue;
    if (name == "--precision" && table.value(name) == "auto")
      options.given.erase(name);  // what the run has
    else if (table.value(name) != value)
      differences +=
          cat("\n    ", name, " was ", dump_json(value), ", now ", dump_json(table.value(name)));
  }
  if (!differences.empty())
    fail_usage(cat("these options change the course of the run that is resumed:", differences),
               "leave them out to take the saved values, or start a new run with --init");
  adopt_saved_options(options, saved, where);
  const int64_t before = get<int64_t>(saved, "steps", where);
  if (options.steps < before)
    fail_usage(
        cat("--steps ", options.steps, " is below the ", before, " of the run that is resumed"),
        "it may only grow");
  if (options.steps > before)
    notice = cat("--steps grows from ", before, " to ", options.steps,
                 ": the learning rate follows the longer schedule from here on");
}

}  // namespace loqal
