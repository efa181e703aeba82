#include "model/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"

namespace loqal {

namespace {

constexpr int kStateVersion = 1;
constexpr const char *kWeights = "model.safetensors", *kState = "state.safetensors";
// Files that make a tokenizer together; "" for none.
constexpr std::pair<const char*, const char*> kTokenizerFiles[] = {{"tokenizer.model", ""},
                                                                   {"spiece.model", ""},
                                                                   {"encoder.json", "vocab.bpe"},
                                                                   {"vocab.json", "merges.txt"}};

template <class F>
void for_trainable(const ParamTable& table, const F& f) {
  for (int i = 0; i < table.size(); i++)
    if (table[i].segment == Segment::trainable) f(i);
}

// Widest types first, so that all are aligned.
FileSum write_state(const std::string& file, std::vector<StateTensor> tensors) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return size_of(a.tensor.dtype) > size_of(b.tensor.dtype);
  });
  SafetensorsWriter out(file);
  for (const StateTensor& s : tensors)
    out.declare(s.name, s.tensor.dtype, {s.tensor.rows, s.tensor.cols});
  std::vector<char> host;
  for (const StateTensor& s : tensors) {
    const int64_t bytes = s.tensor.numel() * int64_t(size_of(s.tensor.dtype));
    if (s.ops) {
      host.resize(size_t(bytes));
      s.ops->download(host.data(), s.tensor);
    }
    out.write(s.ops ? host.data() : s.tensor.data, bytes);
  }
  return out.finish();
}

FileSum write_text(const std::string& file, const std::string& text) {
  FileWriter out(file);
  out.write(text);
  return out.finish();
}

// Adds a file that was written to `files`, once it reads back the same.
void record(Json& files, const AtomicDirectory& dir, const std::string& name, const FileSum& sum) {
  verify_file(dir.file(name), sum);
  files[name] = {{"bytes", sum.bytes}, {"crc32", sum.crc32}};
}

std::string hugging_face_name(const std::string& file) {
  if (file.ends_with(".model")) return "tokenizer.model";
  if (file == "encoder.json") return "vocab.json";
  return file == "vocab.bpe" ? "merges.txt" : file;
}

// config.json and the tokenizer, added to `files`.
void write_configuration(const AtomicDirectory& dir, const Model& model,
                         const TokenizerFiles& tokenizer, Json& files) {
  const int eos = tokenizer.eos.empty() ? -1 : tokenizer.eos.front();
  Json config = to_hf_config(model.config(), tokenizer.start, eos);
  if (tokenizer.eos.size() > 1) config["eos_token_id"] = tokenizer.eos;
  if (model.parameter_type() == DType::BF16) config["torch_dtype"] = "bfloat16";
  record(files, dir, "config.json", write_text(dir.file("config.json"), dump_json(config, 2)));
  for (const auto& [name, content] : tokenizer.contents)
    record(files, dir, name, write_text(dir.file(name), content));
}

// The number in step_00000100; -1 for any other name.
int64_t step_of(const std::string& name) {
  constexpr std::string_view prefix = "step_";
  if (!name.starts_with(prefix) || name.size() < prefix.size() + 8) return -1;
  int64_t step = -1;
  const auto [end, error] =
      std::from_chars(name.data() + prefix.size(), name.data() + name.size(), step);
  return error == std::errc() && end == name.data() + name.size() ? step : -1;
}

}  // namespace

std::map<std::string, std::string> read_tokenizer_files(const std::vector<std::string>& paths) {
  std::map<std::string, std::string> contents;
  for (const std::string& path : paths)
    contents[hugging_face_name(std::filesystem::path(path).filename())] = read_file(path);
  return contents;
}

std::vector<StateTensor> optimizer_tensors(const Model& model, const Optimizer& optimizer,
                                           const std::string& prefix) {
  std::vector<StateTensor> tensors;
  for_trainable(model.table(), [&](int i) {
    const Param& p = model.table()[i];
    for (const auto& [name, state] : optimizer.states(i)) {
      const bool alike = state.dtype == DType::F32 && state.rows == p.rows();
      tensors.push_back({cat(prefix, name, ".", p.name),
                         alike ? state.row_slice(0, model.real_rows(i)) : state, &model.ops()});
    }
  });
  return tensors;
}

std::vector<StateTensor> weight_tensors(const Model& model) {
  std::vector<StateTensor> tensors;
  for (int i = 0; i < model.table().size() && model.low_rank(); i++)
    if (model.table()[i].role != Role::constant)
      tensors.push_back({model.table()[i].name, model.held(i), &model.ops()});
  return tensors;
}

void load_model(const std::string& path, Model& model) {
  if (!model.low_rank()) return load_weights(path, model);
  load_state_tensors(path, weight_tensors(model));
  model.refresh_compute_copy();
}

void save_checkpoint(const std::string& path, Model& model, const std::vector<StateTensor>& tensors,
                     Json state, const TokenizerFiles& tokenizer, bool merged) {
  AtomicDirectory dir(path);
  Json files;
  if (merged || !model.low_rank())
    record(files, dir, kWeights, *write_model(dir.file(kWeights), model));
  else if (const std::string name = model.nonfinite_parameter(); !name.empty())
    fail_nonfinite(name + " is not finite; the model is not written");
  write_configuration(dir, model, tokenizer, files);
  std::vector<StateTensor> all = weight_tensors(model);
  all.insert(all.end(), tensors.begin(), tensors.end());
  record(files, dir, kState, write_state(dir.file(kState), all));
  state["version"] = kStateVersion;
  if (model.low_rank()) state["weights"] = kState;
  state["files"] = files;
  write_text(dir.file("state.json"), dump_json(state, 2));
  dir.commit();
}

std::string check_export_path(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code none;
  const std::string target = real_path(path), tmp = target + ".tmp";
  for (fs::path here = fs::current_path(); here.has_relative_path(); here = here.parent_path())
    if (here == target)
      fail(cat(path, ": ", target, " is the current directory or above it"),
           "give the name of a new directory to --export");
  const fs::file_status status = fs::symlink_status(target, none);
  if (fs::exists(status) && !fs::is_directory(status))
    fail(cat(path, ": expected a directory, found ",
             fs::is_symlink(status) ? "a link to nothing" : "a file"));
  if (fs::exists(status) && !fs::is_empty(target))
    fail(cat(path, ": this directory is not empty; nothing in it is touched"),
         "give a new directory to --export, or remove this one first");
  if (fs::exists(fs::symlink_status(tmp, none)))
    fail(cat(tmp, " exists; it would be replaced, since an export is written there first"),
         "give another directory to --export; if it is what a killed export left, remove it");
  return target;
}

bool export_model(const std::string& path, Model& model, const TokenizerFiles& tokenizer,
                  const std::function<bool()>& stop) {
  AtomicDirectory dir(check_export_path(path));
  const std::optional<FileSum> weights = write_model(dir.file(kWeights), model, stop);
  if (!weights) return false;
  Json files;
  record(files, dir, kWeights, *weights);
  write_configuration(dir, model, tokenizer, files);
  dir.commit();
  return true;
}

Json read_checkpoint_state(const std::string& path) {
  const std::string where = path + "/state.json";
  if (!std::filesystem::exists(where))
    fail(cat(path, ": not a checkpoint: state.json is missing"),
         "give a step_NNNNNNNN directory, or a run's --out directory");
  Json state = read_json(where);
  const int version = get<int>(state, "version", where);
  if (version != kStateVersion)
    fail(cat(where, ": checkpoint version ", version, ", expected ", kStateVersion));
  const Json files = get<Json>(state, "files", where);
  const bool low_rank = get_or<std::string>(state, "weights", where, kWeights) == kState;
  for (const char* name : {low_rank ? kState : kWeights, kState, "config.json"})
    get<Json>(files, name, where + ": files");
  for (const auto& [name, entry] : files.items())
    verify_file(path + "/" + name,
                {get<int64_t>(entry, "bytes", where), get<uint32_t>(entry, "crc32", where)});
  return state;
}

void load_state_tensors(const std::string& path, const std::vector<StateTensor>& tensors) {
  const SafetensorsReader file(path + "/" + kState);
  for (const StateTensor& s : tensors) {
    const std::vector<int64_t> expected = {s.tensor.rows, s.tensor.cols};
    const TensorInfo& found = file.info(s.name);
    if (found.shape != expected || found.dtype != s.tensor.dtype)
      fail(cat(file.path(), ": tensor ", s.name, " has shape ", shape_text(found.shape), " of ",
               name_of(found.dtype), ", expected ", shape_text(expected), " of ",
               name_of(s.tensor.dtype)));
    const void* data = file.data(s.name);
    if (s.ops) s.ops->upload(s.tensor, data);
    else std::memcpy(s.tensor.data, data, size_t(found.bytes));
    file.release(static_cast<const std::byte*>(data), found.bytes);
  }
}

std::vector<int> read_token_ids(const std::string& path, const char* key) {
  const std::string where = path + "/config.json";
  const Json config = read_json(where);
  if (config.contains(key) && config[key].is_array())
    return get<std::vector<int>>(config, key, where);
  const int id = get_or<int>(config, key, where, -1);
  return id < 0 ? std::vector<int>() : std::vector<int>{id};
}

ModelConfig read_model_config(const std::string& path) {
  const std::string where = path + "/config.json";
  if (!std::filesystem::exists(where))
    fail(cat(path, ": config.json is missing"),
         "give a step_NNNNNNNN directory or a Hugging Face model's");
  ModelConfig config = from_hf_config(read_json(where), where);
  config.preset = path;
  return config;
}

std::vector<std::string> companion_files(const std::string& path) {
  std::vector<std::string> found;
  for (const char* name :
       {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    if (std::filesystem::exists(path + "/" + name)) found.push_back(path + "/" + name);
  return found;
}

std::string find_tokenizer(const std::string& path) {
  const auto exists = [&](const char* name) { return std::filesystem::exists(path + "/" + name); };
  for (const auto& [one, other] : kTokenizerFiles)
    if (exists(one) && exists(other)) return path;  // "" is the directory
  return "";
}

std::string checkpoint_name(const std::string& out, int64_t step) {
  char name[32];
  std::snprintf(name, sizeof name, "/step_%08lld", static_cast<long long>(step));
  return out + name;
}

std::vector<std::string> list_checkpoints(const std::string& out) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code none;  // no such directory: no checkpoints
  for (const auto& entry : std::filesystem::directory_iterator(out, none)) {
    const std::string name = entry.path().filename();
    const int64_t step = step_of(name);
    if (step >= 0 && std::filesystem::exists(entry.path() / "state.json"))
      found.push_back({step, out + "/" + name});
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (const auto& [step, path] : found) paths.push_back(path);
  return paths;
}

void prune_checkpoints(const std::string& out, int64_t keep) {
  const std::vector<std::string> all = list_checkpoints(out);
  for (size_t i = 0; keep > 0 && i + size_t(keep) < all.size(); i++) remove_tree(all[i]);
}

void set_aside_checkpoints_after(const std::string& out, int64_t step) {
  for (const std::string& path : list_checkpoints(out)) {
    if (step_of(std::filesystem::path(path).filename()) <= step) continue;
    remove_tree(path + ".superseded");
    rename_path(path, path + ".superseded");
  }
}

}  // namespace loqal
