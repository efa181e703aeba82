// ParamTable: which tensors a model has and where they lie. Register all, commit once; memory is
// somebody else's (Ops::alloc). Checkpoints, optimizer state, per-layer updates and the dry run are
// all derived from this one table.
//
// Two segments: `trainable` (fp32; optimizer state and a bf16 copy share its offsets) and `frozen`
// (typed bytes that no optimizer touches: rotary tables, and under the low-rank methods the weights
// of linear layers, dense or quantized). Layout of a segment: group by group (a group is what
// completes its gradient together: the embeddings, one transformer block, the head), each tensor
// aligned to kAlign elements, or bytes if it is frozen. Gradients are laid out alike, but a tensor
// may ask for more room than it has elements.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/quant_format.h"
#include "core/tensor.h"

namespace loqal {

/// factor: one of the two that multiply to the low-rank part of a matrix.
enum class Role { embedding, position, matrix, norm, bias, head, constant, factor };
enum class Segment { trainable, frozen };

struct Param {
  std::string name;            ///< Hugging Face's name: "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  ///< as stored: [out, in] for matrices, [n] for vectors
  int group;
  Role role;
  Segment segment = Segment::trainable;
  QuantFormat format = {};  ///< of a frozen tensor; none: F32
  double rate = 1;          ///< the learning rate is multiplied by this
  int64_t grad_numel = 0;   ///< room for its gradient, elements; 0: numel()
  // Set by add() and commit():
  int id = 0;  ///< its index in a table without factors: what its random numbers are keyed by
  int64_t offset = 0;         ///< from the start of the segment: elements, or bytes if frozen
  int64_t grad_offset = 0;    ///< from the start of all gradients, elements
  int64_t vector_offset = 0;  ///< of a trainable vector, in a segment of such alone, elements

  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.back(); }
  int64_t numel() const { return rows() * cols(); }
  int64_t frozen_bytes() const;  ///< of a frozen tensor
  bool trainable() const { return segment == Segment::trainable; }
  /// Decoupled decay is for 2-D weights only, and not for factors: that of a factor would pull the
  /// weight towards what it was at the last merge.
  bool decays() const { return shape.size() == 2 && role != Role::factor; }
};

/// How the matrices of a model's linear layers are held: dense and trained, or frozen beside two
/// factors, W_eff = W + U D with U [out, rank] and D [rank, in] (model/low_rank.h).
struct MatrixPlan {
  enum class Kind { dense, projected, lora };  ///< projected: one factor is trained; lora: both
  Kind kind = Kind::dense;
  int64_t rank = 0;
  double scale = 1;                       ///< s; it is part of the frozen factor, or of LoRA's D
  QuantFormat format = {};                ///< of the frozen tensors; none: F32
  Rounding rounding = Rounding::nearest;  ///< of W; P is rounded to nearest
  uint64_t seed = 0;                      ///< of stochastic rounding
  bool exact_gradient = false;  ///< room for a matrix's whole gradient, where its sketch would be
  double dense_rate = 1;        ///< Param::rate of all but matrices and factors
};

class ParamTable {
 public:
  static constexpr int64_t kAlign = 256;

  /// For the matrices of the linear layers to be registered.
  explicit ParamTable(const MatrixPlan& plan = {}) : plan_(plan) {}
  const MatrixPlan& plan() const { return plan_; }

  /// Groups must be registered in order. Returns the tensor's index.
  int add(const std::string& name, std::vector<int64_t> shape, int group, Role role,
          Segment segment = Segment::trainable);
  int add(Param param);
  void commit();

  const std::vector<Param>& params() const { return params_; }
  const Param& operator[](int index) const { return params_[size_t(index)]; }
  int size() const { return int(params_.size()); }
  int find(const std::string& name) const;  ///< -1 if there is none

  int groups() const { return int(group_begin_.size()) - 1; }
  int64_t group_offset(int group) const { return group_begin_[size_t(group)]; }
  int64_t group_size(int group) const {
    return group_begin_[size_t(group) + 1] - group_offset(group);
  }
  int64_t elements() const { return group_begin_.back(); }  ///< trainable, with alignment gaps
  int64_t frozen_bytes() const { return frozen_bytes_; }
  int64_t vector_elements() const { return vector_elements_; }
  // The same of gradients.
  int64_t grad_group_offset(int group) const { return grad_begin_[size_t(group)]; }
  int64_t grad_group_size(int group) const {
    return grad_begin_[size_t(group) + 1] - grad_group_offset(group);
  }
  int64_t grad_elements() const { return grad_begin_.back(); }
  int64_t numel() const;  ///< trainable, without gaps: the model's size

  /// View of one trainable tensor in a segment that starts at `base`.
  Tensor view(int index, void* base, DType dtype) const;
  /// View of the gradient of one tensor of a group whose gradients start at `group_base`, F32.
  Tensor gradient(int index, float* group_base) const;
  /// View of one frozen tensor, in a segment that starts at `base`: F32, or quantized.
  Tensor frozen(int index, void* base) const;
  QTensor quantized(int index, void* base) const;
  /// View of one trainable vector, F32, where these are kept apart (ModelOptions::P).
  Tensor vector_view(int index, void* base) const;

 private:
  MatrixPlan plan_;
  std::vector<Param> params_;
  int64_t frozen_bytes_ = 0, vector_elements_ = 0;
  // Filled by commit(): offset of each group, and the end.
  std::vector<int64_t> group_begin_, grad_begin_;
};

/// Where the backward pass puts weight gradients (fp32), one group at a time.
class GradSink {
 public:
  virtual ~GradSink() = default;
  /// Gradient memory of the group (ParamTable::gradient). The pointer is valid until
  /// complete(group).
  virtual float* buffer(int group) = 0;
  /// False: the first write to each tensor overwrites (nobody zeroes buffers). True: everything
  /// adds.
  virtual bool accumulate() const = 0;
  /// The group's gradient of this micro-batch is complete; the buffer may be reused for the next.
  virtual void complete(int group) = 0;
};

}  // namespace loqal
