// Checkpoints: directories that hold a model as Hugging Face's transformers reads it, and beside it
// everything else that an exact resume needs.
//
//     step_00000100/  model.safetensors  config.json  <tokenizer files>    (read by transformers)
//                     state.safetensors  state.json          (optimizer, position, options)
//
// A low-rank run keeps its weights in state.safetensors as it holds them, quantized blocks and
// factors; its last checkpoint has the merged model besides.
//
// A directory is written beside, fsynced and renamed, so a crash or a full disk never harms the
// previous one. state.json is written last and lists size and CRC-32 of the others.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/json_fwd.h"
#include "model/model_file.h"
#include "optim/optimizer.h"

namespace loqal {

/// Tokenizer files that travel with a model, in memory: where they came from may be gone by the
/// time of a save.
struct TokenizerFiles {
  std::map<std::string, std::string> contents;  ///< by Hugging Face's name of the file
  int start = -1;        ///< the id that texts begin with; "bos_token_id" in config.json; -1: none
  std::vector<int> eos;  ///< "eos_token_id": null, the one, or a list
};

/// The contents of such files.
std::map<std::string, std::string> read_tokenizer_files(const std::vector<std::string>& paths);

/// A matrix in state.safetensors.
struct StateTensor {
  std::string name;
  Tensor tensor;
  Ops* ops;  ///< whose memory it is; null: the host's
};

/// Optimizer::states() of all parameters, "PREFIXadam_m.NAME" and so on. Of those that are fp32 and
/// like the parameter, the vocabulary's padding is left out.
std::vector<StateTensor> optimizer_tensors(const Model& model, const Optimizer& optimizer,
                                           const std::string& prefix = "");

/// All tensors of a model with low-rank parts, as they are held; nothing of a dense one.
std::vector<StateTensor> weight_tensors(const Model& model);

/// Writes everything under `path` atomically. `state` becomes state.json, with "files" added.
/// A parameter that is not finite is an error: the last good checkpoint stays the last one.
/// Of a model with low-rank parts the weights lie in state.safetensors, and merged ones in
/// model.safetensors only if that is asked for.
void save_checkpoint(const std::string& path, Model& model, const std::vector<StateTensor>& tensors,
                     Json state, const TokenizerFiles& tokenizer, bool merged = true);

/// Only what transformers reads: model.safetensors (the same bytes as a checkpoint's), config.json
/// and tokenizer, written beside and renamed. `stop` is asked between tensors: false, and nothing
/// is left behind, if it said so.
bool export_model(const std::string& path, Model& model, const TokenizerFiles& tokenizer,
                  const std::function<bool()>& stop = {});

/// The directory that export_model() makes, absolute and with links followed. Error if it, or
/// PATH.tmp where it is written first, would replace something: it may be an empty directory, and
/// otherwise must not exist.
std::string check_export_path(const std::string& path);

/// state.json of a checkpoint, after checking that all files are there, whole, and of this version.
Json read_checkpoint_state(const std::string& path);

/// The weights of a checkpoint of the same plan of matrices.
void load_model(const std::string& path, Model& model);

/// Fills tensors that save_checkpoint() was given. Error naming the tensor if one is missing or has
/// another shape.
void load_state_tensors(const std::string& path, const std::vector<StateTensor>& tensors);

/// "bos_token_id" or "eos_token_id" of such a directory's config.json: none, one or several.
std::vector<int> read_token_ids(const std::string& path, const char* key);

/// The configuration of such a directory.
ModelConfig read_model_config(const std::string& path);

/// Other files of a tokenizer that lie in a Hugging Face directory, for transformers alone.
std::vector<std::string> companion_files(const std::string& path);

/// `path` itself if load_tokenizer() finds a tokenizer's files there, else "".
std::string find_tokenizer(const std::string& path);

/// Complete step directories under `out`, oldest first; what a crash left unfinished is ignored.
std::vector<std::string> list_checkpoints(const std::string& out);
std::string checkpoint_name(const std::string& out, int64_t step);

/// Removes all but the newest `keep` (0: keeps all).
void prune_checkpoints(const std::string& out, int64_t keep);

/// For a resume from `step`: renames the checkpoints of later steps to *.superseded. They belong to
/// a branch that is left, and must not be taken for the newest ones of the branch that begins.
void set_aside_checkpoints_after(const std::string& out, int64_t step);

}  // namespace loqal
