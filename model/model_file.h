// A model's weights in files, as Hugging Face names and lays them out.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/file.h"
#include "model/model.h"
#include "model/weight_files.h"

namespace loqal {

/// Writes model.safetensors to `file`, tensor by tensor; matrices with a low-rank part as W_eff.
/// Error if a number is not finite. `stop` is asked between tensors: nothing is returned, and the
/// file is not whole, if it said so.
std::optional<FileSum> write_model(const std::string& file, Model& model,
                                   const std::function<bool()>& stop = {});

/// The weights in a directory (model/weight_files.h), as a model wants them, one tensor at a time.
class StoredWeights {
 public:
  explicit StoredWeights(const std::string& directory) : files_(directory) {}

  /// Values for Model::set_parameter(), the vocabulary's padding included. Error naming tensor,
  /// shape found and shape expected.
  std::vector<float> read(const Model& model, int index) const;
  /// Error if there are tensors that are not part of this model.
  void check_complete(const Model& model) const;

 private:
  WeightFiles files_;
};

/// Parameters alone, from a checkpoint or a Hugging Face directory, of F32, BF16, F16 or F64.
/// Unknown and missing tensors are errors. Matrices that the model holds quantized are quantized,
/// one after the other; factors are left alone.
void load_weights(const std::string& directory, Model& model);

}  // namespace loqal
