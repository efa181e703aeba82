// A whole run of one LocalTrainer: steps, evaluations, log, checkpoints, signals, resume.
#pragma once
#include "async/options.h"

namespace loqal {

/// --dry-run: configuration, parameters and memory table; needs no data, allocates nothing.
int dry_run(Options options);
/// Trains. Returns the process's exit code; errors are thrown.
int train(Options options);
/// --eval-only: prints loss and perplexity of a checkpoint or directory on --val-data.
int evaluate_only(Options options);
/// --sample: continues a text.
int sample_text(Options options);
/// --export: writes the model of a checkpoint or directory as transformers reads it.
int export_only(Options options);

}  // namespace loqal
