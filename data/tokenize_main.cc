// ./tokenize: text to token shards, training of a SentencePiece model, a look into a shard.
// Options and exit codes: design.md, section 3.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "core/error.h"
#include "core/suggest.h"
#include "core/threads.h"
#include "data/inspect.h"
#include "data/shard.h"
#include "data/tokenize.h"

namespace loqal {
namespace {

volatile std::sig_atomic_t g_signal = 0;  // the only thing that a handler may safely write

/// 100000000, 1e8 and 1.5e6: whole numbers from `low` to `high`.
int64_t parse_count(const std::string& option, const std::string& text, int64_t low, int64_t high) {
  size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value != std::floor(value) || !(value >= double(low)) ||
      !(value <= double(high)))
    fail_usage(cat(option, " ", text, ": expected a whole number from ", low, " to ", high));
  return int64_t(value);
}

/// All that the command line says, as text.
struct CommandLine {
  TokenizeOptions run;
  std::string split = "file", on_error = "stop", shard_tokens = "1e8", spm_type = "unigram";
  uint64_t max_doc_bytes = uint64_t(16) << 20;
  bool train_spm = false;
  std::string vocab, pad_to, jobs, verify;
  std::vector<std::string> show;
};

void add_options(CLI::App& app, CommandLine* c) {
  app.add_option("INPUT", c->run.inputs, "JSON lines or plain text, gzipped or not");
  auto* tokenizer = app.add_option("--tokenizer", c->run.tokenizer,
                                   "a SentencePiece model, or a folder with GPT-2's two files");
  app.add_option("--out", c->run.out, "writes OUT_000000.bin ... and OUT.json (or OUT.model)");
  auto* bos =
      app.add_option("--bos", c->run.bos, "before|none")->check(CLI::IsMember({"before", "none"}));
  auto* eos =
      app.add_option("--eos", c->run.eos, "before|after|none [before for GPT-2, else after]")
          ->check(CLI::IsMember({"before", "after", "none"}));
  app.add_option("--split", c->split,
                 "where plain-text documents end: file|line|blank|STRING [file]");
  auto* shard = app.add_option("--shard-tokens", c->shard_tokens, "tokens of one shard [1e8]");
  auto* pad = app.add_option("--pad-to", c->pad_to,
                             "one document a row of so many tokens, cut or padded [packed]");
  auto* jobs = app.add_option("--jobs", c->jobs, "threads; the output is the same [all CPUs]");
  app.add_option("--on-error", c->on_error, "stop|skip: what a bad document does [stop]")
      ->check(CLI::IsMember({"stop", "skip"}));
  app.add_option("--text-field", c->run.read.text_field, "the JSON field that holds text [text]");
  app.add_option("--max-doc-bytes", c->max_doc_bytes, "longest document or JSON line [16MiB]")
      ->transform(CLI::AsSizeValue(false));
  auto* train = app.add_flag("--train-spm", c->train_spm, "train a SentencePiece model instead");
  auto* vocab = app.add_option("--vocab", c->vocab, "its vocabulary size");
  auto* type = app.add_option("--spm-type", c->spm_type, "unigram|bpe [unigram]")
                   ->check(CLI::IsMember({"unigram", "bpe"}));
  for (auto* option : {tokenizer, bos, eos, shard, pad, jobs}) train->excludes(option);
  train->needs(vocab);
  for (auto* option : {vocab, type}) option->needs(train);
  app.add_option("--verify", c->verify, "PREFIX.json: are all its shards as they were written?");
  app.add_option("--show", c->show, "FILE N: document N of a shard (from 0), as ids and text")
      ->expected(2);
}

/// CLI11's own message for an unknown option does not say which valid one is closest.
void check_extras(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  for (const std::string& extra : app.remaining())
    if (extra.starts_with("-")) {
      const std::string word = extra.substr(0, extra.find('='));
      fail_usage(cat("unknown option ", word), cat("did you mean ", closest(word, names), "?"));
    }
}

/// --verify stands alone, and so does --show but for the tokenizer to read with.
void check_alone(const CLI::App& app) {
  for (const std::string mode : {"--verify", "--show"}) {
    if (app.count(mode) == 0) continue;
    for (const CLI::Option* option : app.get_options()) {
      const bool fits = mode == "--show" && option->get_name() == "--tokenizer";
      if (option->count() > 0 && option->get_name() != mode && !fits)
        fail_usage(cat(mode, " stands alone, found ", option->get_name(), " too"));
    }
  }
}

/// The texts into values, and what the parser cannot know about combinations.
void complete(CommandLine* c) {
  const auto need = [](bool given, const char* option) {
    if (!given) fail_usage(cat(option, " is missing"), "./tokenize --help lists the options");
  };
  if (!c->show.empty() || !c->verify.empty()) return;
  if (!c->train_spm) need(!c->run.tokenizer.empty(), "--tokenizer");
  need(!c->run.out.empty(), "--out");
  need(!c->run.inputs.empty(), "INPUT");
  ReadOptions& read = c->run.read;
  if (c->split.empty())
    fail_usage("--split: expected file, line, blank or a string, found nothing");
  c->run.split = c->split;
  read.split = c->split == "file"    ? Split::file
               : c->split == "line"  ? Split::line
               : c->split == "blank" ? Split::blank
                                     : Split::separator;
  if (read.split == Split::separator) read.separator = c->split;
  read.skip_bad = c->on_error == "skip";
  constexpr uint64_t kLimit = uint64_t(1) << 30;  // libraries count a document's bytes in an int
  if (c->max_doc_bytes < 1 || c->max_doc_bytes > kLimit)
    fail_usage(cat("--max-doc-bytes ", c->max_doc_bytes, ": expected 1 to ", kLimit));
  read.max_doc_bytes = int64_t(c->max_doc_bytes);
  c->run.shard_tokens = parse_count("--shard-tokens", c->shard_tokens, 1, kMaxShardTokens);
  if (!c->pad_to.empty()) c->run.row_length = int(parse_count("--pad-to", c->pad_to, 4, 1 << 20));
  c->run.jobs = c->jobs.empty() ? usable_cpus() : int(parse_count("--jobs", c->jobs, 1, 256));
}

int run(const CommandLine& c) {
  if (!c.show.empty()) {
    const int64_t number = parse_count("--show FILE N: N is", c.show[1], 0, kMaxShardTokens);
    show_document(c.show[0], number, c.run.tokenizer, std::cout);
    return 0;
  }
  if (!c.verify.empty()) {
    verify_shards(c.verify, std::cout);
    return 0;
  }
  if (c.train_spm) {
    const int vocab = int(parse_count("--vocab", c.vocab, 1, 1'000'000));
    train_spm({c.run.inputs, c.run.out, vocab, c.spm_type, c.run.read}, std::cout);
    return 0;
  }
  TokenizeOptions options = c.run;
  options.terminal = isatty(STDOUT_FILENO);
  options.read.interrupted = [] { return g_signal != 0; };
  for (const int signal : {SIGINT, SIGTERM})
    std::signal(signal, [](int s) {
      g_signal = s;
      std::signal(s, SIG_DFL);  // a second one ends it at once
    });
  if (tokenize(options, std::cout)) return 0;
  std::cerr << "tokenize: stopped by signal " << g_signal << std::endl;
  return 128 + g_signal;
}

int main_checked(int argc, char** argv) {
  CLI::App app("Turns text into token shards for ./train.", "tokenize");
  CommandLine c;
  add_options(app, &c);
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& e) {
    fail_usage(e.what(), "./tokenize --help lists the options");
  }
  check_extras(app);
  check_alone(app);
  complete(&c);
  return run(c);
}

}  // namespace
}  // namespace loqal

int main(int argc, char** argv) {
  try {
    return loqal::main_checked(argc, argv);
  } catch (const loqal::Error& e) {
    std::cerr << "tokenize: error: " << e.what() << "\n";
    if (!e.hint.empty()) std::cerr << "  hint: " << e.hint << "\n";
    return int(e.exit_code);
  } catch (const std::exception& e) {
    std::cerr << "tokenize: error: " << e.what() << "\n";
    return 1;
  }
}
