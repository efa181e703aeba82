#include "model/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "core/file.h"
#include "core/json.h"
#include "core/safetensors.h"
#include "model/weight_files.h"

namespace loqal {

namespace {

constexpr int kStateVersion = 1;
constexpr const char* kHead = "lm_head.weight";
// Files that make a tokenizer together; "" for none.
constexpr std::pair<const char*, const char*> kTokenizerFiles[] = {{"tokenizer.model", ""},
                                                                   {"spiece.model", ""},
                                                                   {"encoder.json", "vocab.bpe"},
                                                                   {"vocab.json", "merges.txt"}};

// GPT-2's published layout keeps the weights of its linear layers as [in, out] (Conv1D).
bool stored_transposed(const Model& model, const Param& p) {
  return model.config().arch == Arch::gpt2 && p.role == Role::matrix;
}

std::vector<int64_t> stored_shape(const Model& model, int i) {
  const Param& p = model.table()[i];
  if (p.shape.size() == 1) return p.shape;
  if (stored_transposed(model, p)) return {p.cols(), p.rows()};
  return {model.real_rows(i), p.cols()};
}

template <class T>
std::vector<T> transposed(const std::vector<T>& x, int64_t rows, int64_t cols) {
  std::vector<T> y(x.size());
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < cols; c++) y[size_t(c * rows + r)] = x[size_t(r * cols + c)];
  return y;
}

template <class F>
void for_trainable(const ParamTable& table, const F& f) {
  for (int i = 0; i < table.size(); i++)
    if (table[i].segment == Segment::trainable) f(i);
}

using Stop = std::function<bool()>;

template <class T>
void write_parameter(SafetensorsWriter& out, Model& model, int i) {
  const Param& p = model.table()[i];
  std::vector<T> host(size_t(model.real_rows(i) * p.cols()));
  model.ops().download(host.data(), model.parameter(i).row_slice(0, model.real_rows(i)));
  for (const T& x : host)
    if (!std::isfinite(to_float(x)))
      fail_nonfinite(cat("parameter ", p.name, " is not finite; the model is not written"));
  if (stored_transposed(model, p)) host = transposed(host, p.rows(), p.cols());
  out.write(host.data(), int64_t(host.size() * sizeof(T)));
}

// Nothing if `stop` said so.
std::optional<FileSum> write_model(const std::string& file, Model& model, const Stop& stop) {
  SafetensorsWriter out(file);
  const auto each = [&](const auto& f) {  // the widest type first, so that all are aligned
    for (const DType type : {DType::F32, DType::BF16})
      for_trainable(model.table(), [&](int i) {
        if (model.parameter(i).dtype == type) f(i);
      });
  };
  each([&](int i) {
    out.declare(model.table()[i].name, model.parameter(i).dtype, stored_shape(model, i));
  });
  bool stopped = false;
  each([&](int i) {
    if (stopped || (stopped = stop && stop())) return;
    if (model.parameter(i).dtype == DType::F32) write_parameter<float>(out, model, i);
    else write_parameter<bf16>(out, model, i);
  });
  if (stopped) return {};
  return out.finish();
}

int64_t bytes_of(const Tensor& t) { return t.numel() * int64_t(size_of(t.dtype)); }

FileSum write_state(const std::string& file, std::vector<StateTensor> tensors) {
  // The widest type first, so that all are aligned.
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return size_of(a.tensor.dtype) > size_of(b.tensor.dtype);
  });
  SafetensorsWriter out(file);
  for (const StateTensor& s : tensors)
    out.declare(s.name, s.tensor.dtype, {s.tensor.rows, s.tensor.cols});
  std::vector<char> host;
  for (const StateTensor& s : tensors) {
    if (s.ops) {
      host.resize(size_t(bytes_of(s.tensor)));
      s.ops->download(host.data(), s.tensor);
    }
    out.write(s.ops ? host.data() : s.tensor.data, bytes_of(s.tensor));
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

// The files written, or null if `stop` said so.
Json write_for_transformers(const AtomicDirectory& dir, Model& model,
                            const TokenizerFiles& tokenizer, const Stop& stop = {}) {
  Json files;
  const std::optional<FileSum> weights = write_model(dir.file("model.safetensors"), model, stop);
  if (!weights) return files;
  record(files, dir, "model.safetensors", *weights);
  const int eos = tokenizer.eos.empty() ? -1 : tokenizer.eos.front();
  Json config = to_hf_config(model.config(), tokenizer.start, eos);
  if (tokenizer.eos.size() > 1) config["eos_token_id"] = tokenizer.eos;
  if (model.parameter(0).dtype == DType::BF16) config["torch_dtype"] = "bfloat16";
  record(files, dir, "config.json", write_text(dir.file("config.json"), dump_json(config, 2)));
  for (const auto& [name, content] : tokenizer.contents)
    record(files, dir, name, write_text(dir.file(name), content));
  return files;
}

// The name of the same tensor in these files: base models (GPT2Model, LlamaModel) are saved without
// the "transformer." or "model." of the language model around them.
std::string name_in_files(const WeightFiles& files, const std::string& name) {
  if (!files.find(name))
    for (const char* prefix : {"transformer.", "model."})
      if (name.starts_with(prefix)) return name.substr(strlen(prefix));
  return name;
}

// No weights: masks and angles that older versions of transformers saved, and computed anew.
bool is_buffer(Arch arch, const std::string& name) {
  static const std::regex gpt2(R"((transformer\.)?h\.\d+\.attn\.(masked_)?bias)"),
      llama(R"((model\.)?layers\.\d+\.self_attn\.rotary_emb\.inv_freq)");
  return std::regex_match(name, arch == Arch::gpt2 ? gpt2 : llama);
}

// A tied head may be stored once more. Then it must be the embedding, or the two say different
// things.
void check_stored_head(const WeightFiles& files, const std::string& embedding) {
  const SafetensorsReader &head = *files.find(kHead), &other = *files.find(embedding);
  const TensorInfo &h = head.info(kHead), &e = other.info(embedding);
  bool same = h.shape == e.shape;
  constexpr int64_t slab = 4096;  // rows at a time
  std::vector<float> a, b;
  for (int64_t row = 0; same && row < h.shape[0]; row += slab) {
    const int64_t rows = std::min(slab, h.shape[0] - row);
    a.resize(size_t(rows * (h.numel() / h.shape[0]))), b.resize(a.size());
    read_floats(head, kHead, a.data(), row, rows);
    read_floats(other, embedding, b.data(), row, rows);
    same = a == b;
  }
  if (same) return;
  fail(cat(head.path(), ": tensor ", kHead, " ", shape_text(h.shape), " is not the same as ",
           embedding, " ", shape_text(e.shape), ", but the model's head is its embedding"),
       "is \"tie_word_embeddings\" right in config.json?");
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

void save_checkpoint(const std::string& path, Model& model, const std::vector<StateTensor>& tensors,
                     Json state, const TokenizerFiles& tokenizer) {
  AtomicDirectory dir(path);
  Json files = write_for_transformers(dir, model, tokenizer);
  record(files, dir, "state.safetensors", write_state(dir.file("state.safetensors"), tensors));
  state["version"] = kStateVersion;
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
                  const Stop& stop) {
  AtomicDirectory dir(check_export_path(path));
  if (write_for_transformers(dir, model, tokenizer, stop).is_null()) return false;
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
  for (const char* name : {"model.safetensors", "state.safetensors", "config.json"})
    get<Json>(files, name, where + ": files");
  for (const auto& [name, entry] : files.items())
    verify_file(path + "/" + name,
                {get<int64_t>(entry, "bytes", where), get<uint32_t>(entry, "crc32", where)});
  return state;
}

void load_weights(const std::string& path, Model& model) {
  const WeightFiles files(path);
  std::set<std::string> known;
  for_trainable(model.table(), [&](int i) {
    const Param& p = model.table()[i];
    const std::string name = name_in_files(files, p.name);
    const SafetensorsReader* file = files.find(name);
    if (!file)
      fail(cat(files.path(), ": tensor ", p.name, " is missing"),
           p.name == kHead ? "if the head is the embedding, config.json has to say so: "
                             "\"tie_word_embeddings\": true"
                           : "");
    const std::vector<int64_t> expected = stored_shape(model, i), found = file->info(name).shape;
    if (found != expected)
      fail(cat(file->path(), ": tensor ", name, " has shape ", shape_text(found), ", expected ",
               shape_text(expected)));
    known.insert(name);
    std::vector<float> host(size_t(p.numel()), 0.0f);  // with the vocabulary's padding
    read_floats(*file, name, host.data());
    if (stored_transposed(model, p)) host = transposed(host, p.cols(), p.rows());
    model.set_parameter(i, host);
  });
  for (const auto& [file_name, file] : files.files())
    for (const TensorInfo& t : file->tensors()) {
      if (known.count(t.name) || is_buffer(model.config().arch, t.name)) continue;
      if (t.name == kHead && model.config().tied)
        check_stored_head(files, name_in_files(files, model.table()[0].name));
      else
        fail(cat(file->path(), ": tensor ", t.name, " ", shape_text(t.shape),
                 " is not part of this model"));
    }
  model.refresh_compute_copy();
}

void load_state_tensors(const std::string& path, const std::vector<StateTensor>& tensors) {
  const SafetensorsReader file(path + "/state.safetensors");
  for (const StateTensor& s : tensors) {
    const TensorInfo& found = file.info(s.name);
    const std::vector<int64_t> shape = {s.tensor.rows, s.tensor.cols};
    if (found.shape != shape || found.dtype != s.tensor.dtype)
      fail(cat(file.path(), ": tensor ", s.name, " is ", name_of(found.dtype), " ",
               shape_text(found.shape), ", expected ", name_of(s.tensor.dtype), " ",
               shape_text(shape)));
    if (s.ops) s.ops->upload(s.tensor, file.data(s.name));
    else std::memcpy(s.tensor.data, file.data(s.name), size_t(bytes_of(s.tensor)));
    file.release(static_cast<const std::byte*>(file.data(s.name)), bytes_of(s.tensor));
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
