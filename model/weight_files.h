// The weights in a model's directory, in either of Hugging Face's two forms:
//
//     model.safetensors
//     model.safetensors.index.json  model-00001-of-00002.safetensors
//     model-00002-of-00002.safetensors
//
// The index is {"metadata": {...}, "weight_map": {"tensor": "file", ...}}. Files are mapped, not
// read: only what a caller looks at is in memory.
#pragma once
#include <map>
#include <memory>
#include <string>

#include "core/safetensors.h"

namespace loqal {

class WeightFiles {
 public:
  /// Error if there is neither form, or model.safetensors beside an index of other files, or if
  /// index and files do not name the same tensors.
  explicit WeightFiles(const std::string& directory);

  /// The file that holds the tensor; null: none does.
  const SafetensorsReader* find(const std::string& tensor) const;
  /// By name. One, or all that the index names.
  const std::map<std::string, std::unique_ptr<SafetensorsReader>>& files() const { return files_; }
  /// model.safetensors or the index: where a missing tensor should have been.
  const std::string& path() const { return path_; }

 private:
  void open_shards(const std::string& directory);

  std::string path_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> files_;
};

}  // namespace loqal
