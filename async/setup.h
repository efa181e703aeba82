// From options to parts: which model, which device, how much memory, which checkpoint. The same
// functions serve training, --dry-run, --eval-only, --sample and --export, so the dry run cannot
// disagree with the run.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "async/options.h"
#include "data/corpus.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/model.h"
#include "model/refresh.h"
#include "optim/grad_sinks.h"

namespace loqal {

/// The checkpoint that --resume means, "" for none (also --resume auto without one yet). Sets --out
/// to the run's directory if the user did not.
std::string resolve_resume(Options& options);

/// Sizes from --init's directory, or from the preset and its overrides. The vocabulary is --vocab,
/// or that of the data (0: unknown), or the preset's. Writes all sizes back into the options.
ModelConfig resolve_model(Options& options, int data_vocab);

/// grad_accum from --total-batch; usage error with the nearest values that divide.
void resolve_batch(Options& options, const ModelConfig& config);

/// Turns --device auto into cuda, where there is a GPU that the program can use and that has memory
/// enough, or cpu. Returns why, "" if there was nothing to choose. Error for --device cuda without
/// a usable GPU, unless it is a dry run.
std::string choose_device(Options& options, const ModelConfig& config, bool training);

/// The device of choose_device(). Sets --precision to fp32 or bf16 if it is auto. dry: nothing is
/// started or allocated.
std::unique_ptr<Ops> make_device(Options& options, bool dry, int gpu);
inline std::unique_ptr<Ops> make_device(Options& options, bool dry) {
  return make_device(options, dry, options.gpus[0]);
}

/// Everything that holds memory, in the order of allocation.
struct Parts {
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;  // these: training only
  std::unique_ptr<Refresh> refresh;      // of loqt and relora
  std::unique_ptr<StepSink> sink;
  std::unique_ptr<std::vector<MergeRecord>> records;  // GaLore's, until they are logged
};
Parts build_parts(Ops& ops, const ModelConfig& config, const Options& options, bool training);

/// Those of all workers, for a count of their memory.
std::vector<Parts> build_all_parts(Ops& dry, const ModelConfig& config, const Options& options,
                                   bool training);
/// Host memory of Local-SGD's server and of the start weights of rounds in flight; 0 for plain
/// training.
int64_t local_sgd_bytes(const Options& options, const ParamTable& table);

/// Parameter counts and the memory table of `ops`, in MiB.
void print_model(std::ostream& out, const ModelConfig& config, const ParamTable& table);
/// Of a low-rank method: rank, refreshes, and what is worth a warning; nothing of the full one.
void print_method(std::ostream& out, const Options& options, const ModelConfig& config);
Json shards_of(const Corpus& corpus);  ///< path and tokens of each, for the log
/// The training data, and how much of it a step and the whole run take. `eval`: or null.
void print_data(std::ostream& out, const Options& options, const ModelConfig& config,
                const Corpus& train, const TrainLoader& loader, const EvalLoader* eval);
/// Which tensors there are, how they are held, and which are trained; of the first layer only.
void print_tensors(std::ostream& out, const Options& options, const ParamTable& table,
                   DType parameter_type);
/// `program`: program_bytes() and staging_bytes(); `server`: local_sgd_bytes().
void print_memory(std::ostream& out, const Ops& ops, int64_t program, int64_t server);

/// What the process holds besides Ops::alloc: code, libraries, packing buffers of the GEMMs. Bytes.
int64_t program_bytes(const ModelConfig& config, const Options& options);

/// The host's copy of one tensor, the largest, which each passes through when it is made, loaded or
/// saved; or what the decompositions of a refresh hold in double, where that is more.
int64_t staging_bytes(const Options& options, const ParamTable& table);

/// Builds the parts on a dry device and compares with the memory that is free: Error with both
/// numbers and the largest --batch-size that fits, before anything is allocated.
void check_memory(const ModelConfig& config, const Options& options, bool training);

/// The tokenizer of --tokenizer, or of the checkpoint at `checkpoint`; null if there is none.
std::unique_ptr<Tokenizer> open_tokenizer(const Options& options, const std::string& checkpoint);

/// What travels with the model besides (TokenizerFiles::contents): the files of `tokenizer` (null:
/// none), with them what belongs to them in the Hugging Face directory that they, or else the
/// model, came from, and generation_config.json of the model's `directory` ("": it came from none).
std::map<std::string, std::string> tokenizer_files(const Tokenizer* tokenizer,
                                                   const std::string& directory);

/// transformers knows this model, and --export's directory is new, outside --out, and can be made:
/// it is once, and removed again, unless this is a dry run. Else Error. Makes its parents.
void check_export(const Options& options, const ModelConfig& config);

/// For the corpus's checks; nothing without a tokenizer.
std::optional<TokenizerInfo> info_of(const Tokenizer* tokenizer);

/// The vocabulary that the data was made with: the tokenizer's, or what the first shard says; 0:
/// unknown.
int data_vocabulary(const std::vector<std::string>& patterns, const Tokenizer* tokenizer);

/// Highest resident memory of this process so far, bytes.
int64_t peak_rss();

}  // namespace loqal
