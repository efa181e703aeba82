#include "model/weight_files.h"

#include <filesystem>

#include "core/error.h"
#include "core/json.h"

namespace loqal {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_without_weights(const std::string& directory) {
  for (const char* other : {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5"})
    if (fs::exists(fs::path(directory) / other))
      fail(cat(directory, ": expected model.safetensors, found ", other),
           "load it with transformers and save it again: save_pretrained(DIRECTORY)");
  fail(cat(directory,
           ": expected model.safetensors or model.safetensors.index.json, found neither"));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& directory) : path_(directory + "/model.safetensors") {
  const std::string index = path_ + ".index.json";
  if (fs::exists(index)) {
    path_ = index;
    open_shards(directory);
  } else if (fs::exists(path_)) {
    files_["model.safetensors"] = std::make_unique<SafetensorsReader>(path_);
  } else {
    fail_without_weights(directory);
  }
}

void WeightFiles::open_shards(const std::string& directory) {
  const auto index = parse_json<JsonMap>(read_file(path_, 64 << 20), path_);
  const auto map = get<JsonMap>(index, "weight_map", path_);
  if (!map.is_object() || map.empty())
    fail(cat(path_, ": \"weight_map\": expected an object of tensors and files"));
  const bool one = fs::exists(directory + "/model.safetensors");
  for (const auto& [tensor, value] : map.items()) {
    const std::string name = get<std::string>(map, tensor, path_ + ": weight_map");
    if (name.empty() || fs::path(name).filename() != name || name == "." || name == "..")
      fail(cat(path_, ": tensor \"", tensor, "\": expected the name of a file beside the index, ",
               "found \"", name, "\""));
    if (one && name != "model.safetensors")
      fail(cat(directory, ": found both model.safetensors and model.safetensors.index.json, which ",
               "names other files"),
           "remove the one that is not this model's");
    const std::string file = directory + "/" + name;
    if (!files_.count(name)) {
      if (!fs::exists(file))
        fail(
            cat(path_, ": names ", name, " for tensor \"", tensor, "\", but there is no such file"),
            "copy or download all files of the model");
      files_[name] = std::make_unique<SafetensorsReader>(file);
    }
    if (!files_[name]->contains(tensor))
      fail(cat(file, ": tensor \"", tensor, "\" is missing, which ", path_, " says is there"));
  }
  for (const auto& [name, file] : files_)
    for (const TensorInfo& tensor : file->tensors())
      if (!map.contains(tensor.name) || map[tensor.name] != name)
        fail(cat(file->path(), ": tensor \"", tensor.name, "\" ",
                 map.contains(tensor.name) ? "belongs to another file" : "is missing", " in ",
                 path_),
             "index and files must be of one model");
}

const SafetensorsReader* WeightFiles::find(const std::string& tensor) const {
  for (const auto& [name, file] : files_)
    if (file->contains(tensor)) return file.get();
  return nullptr;
}

}  // namespace loqal
