#include "model/model_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <regex>
#include <set>

namespace loqal {

namespace {

constexpr const char* kHead = "lm_head.weight";

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

/// All but constants and factors: what a dense model consists of.
template <class F>
void for_stored(const ParamTable& table, const F& f) {
  for (int i = 0; i < table.size(); i++)
    if (table[i].role != Role::constant && table[i].role != Role::factor) f(i);
}

// The type of a tensor in the file: that of the parameter, or of the 2-D ones.
DType stored_type(const Model& model, int i) {
  return model.table()[i].trainable() ? model.parameter(i).dtype : model.parameter_type();
}

template <class T>
void write_tensor(SafetensorsWriter& out, Model& model, int i) {
  const Param& p = model.table()[i];
  std::vector<T> host(size_t(model.real_rows(i) * p.cols()));
  if (p.trainable()) {
    model.ops().download(host.data(), model.parameter(i).row_slice(0, model.real_rows(i)));
  } else {
    const std::vector<float> effective = model.effective(i);
    std::transform(effective.begin(), effective.end(), host.begin(), from_float<T>);
  }
  for (const T& x : host)
    if (!std::isfinite(to_float(x)))
      fail_nonfinite(cat("parameter ", p.name, " is not finite; the model is not written"));
  if (stored_transposed(model, p)) host = transposed(host, p.rows(), p.cols());
  out.write(host.data(), int64_t(host.size() * sizeof(T)));
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

}  // namespace

std::optional<FileSum> write_model(const std::string& file, Model& model,
                                   const std::function<bool()>& stop) {
  SafetensorsWriter out(file);
  const auto each = [&](const auto& f) {  // the widest type first, so that all are aligned
    for (const DType type : {DType::F32, DType::BF16})
      for_stored(model.table(), [&](int i) {
        if (stored_type(model, i) == type) f(i);
      });
  };
  each([&](int i) {
    out.declare(model.table()[i].name, stored_type(model, i), stored_shape(model, i));
  });
  bool stopped = false;
  each([&](int i) {
    if (stopped || (stopped = stop && stop())) return;
    if (stored_type(model, i) == DType::F32) write_tensor<float>(out, model, i);
    else write_tensor<bf16>(out, model, i);
  });
  if (stopped) return {};
  return out.finish();
}

std::vector<float> StoredWeights::read(const Model& model, int i) const {
  const Param& p = model.table()[i];
  const std::string name = name_in_files(files_, p.name);
  const SafetensorsReader* file = files_.find(name);
  if (!file)
    fail(cat(files_.path(), ": tensor ", p.name, " is missing"),
         p.name == kHead ? "if the head is the embedding, config.json has to say so: "
                           "\"tie_word_embeddings\": true"
                         : "");
  const std::vector<int64_t> expected = stored_shape(model, i), found = file->info(name).shape;
  if (found != expected)
    fail(cat(file->path(), ": tensor ", name, " has shape ", shape_text(found), ", expected ",
             shape_text(expected)));
  std::vector<float> host(size_t(p.numel()), 0.0f);  // with the vocabulary's padding
  read_floats(*file, name, host.data());
  return stored_transposed(model, p) ? transposed(host, p.cols(), p.rows()) : host;
}

void StoredWeights::check_complete(const Model& model) const {
  std::set<std::string> known;
  for_stored(model.table(),
             [&](int i) { known.insert(name_in_files(files_, model.table()[i].name)); });
  for (const auto& [file_name, file] : files_.files())
    for (const TensorInfo& t : file->tensors()) {
      if (known.count(t.name) || is_buffer(model.config().arch, t.name)) continue;
      if (t.name == kHead && model.config().tied)
        check_stored_head(files_, name_in_files(files_, model.table()[0].name));
      else
        fail(cat(file->path(), ": tensor ", t.name, " ", shape_text(t.shape),
                 " is not part of this model"));
    }
}

void load_weights(const std::string& directory, Model& model) {
  const StoredWeights stored(directory);
  for_stored(model.table(), [&](int i) { model.set_parameter(i, stored.read(model, i)); });
  stored.check_complete(model);
  model.refresh_compute_copy();
}

}  // namespace loqal
