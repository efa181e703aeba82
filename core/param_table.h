// ParamTable: which tensors a model has and where they lie. Register all, commit once; memory is
// somebody else's (Ops::alloc). Checkpoints, optimizer state, per-layer updates and the dry run are
// all derived from this one table.
//
// Two typed segments: `trainable` (fp32; gradients, optimizer state and a bf16 copy share its
// offsets) and `frozen` (values that no optimizer touches: rotary tables now, quantized blocks
// later). Layout of a segment: group by group (a group is what completes its gradient together: the
// embeddings, one transformer block, the head), each tensor aligned to kAlign elements.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace loqal {

enum class Role { embedding, position, matrix, norm, bias, head, constant };
enum class Segment { trainable, frozen };

struct Param {
  std::string name;            ///< Hugging Face's name: "model.layers.0.mlp.up_proj.weight"
  std::vector<int64_t> shape;  ///< as stored: [out, in] for matrices, [n] for vectors
  int group;
  Role role;
  Segment segment = Segment::trainable;
  // Elements, set by commit():
  int64_t offset = 0;         ///< from the start of the segment
  int64_t vector_offset = 0;  ///< of a trainable vector, in a segment of such alone

  int64_t rows() const { return shape.size() == 2 ? shape[0] : 1; }
  int64_t cols() const { return shape.back(); }
  int64_t numel() const { return rows() * cols(); }
  bool decays() const { return shape.size() == 2; }  ///< decoupled decay is for 2-D weights only
};

class ParamTable {
 public:
  static constexpr int64_t kAlign = 256;

  /// Groups must be registered in order. Returns the tensor's index.
  int add(const std::string& name, std::vector<int64_t> shape, int group, Role role,
          Segment segment = Segment::trainable);
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
  int64_t frozen_elements() const { return frozen_elements_; }
  int64_t vector_elements() const { return vector_elements_; }
  int64_t numel() const;  ///< trainable, without gaps: the model's size

  /// View of one tensor in a segment that starts at `base`.
  Tensor view(int index, void* base, DType dtype) const;
  /// View of one trainable vector, F32, where these are kept apart (ModelOptions::P).
  Tensor vector_view(int index, void* base) const;

 private:
  std::vector<Param> params_;
  int64_t frozen_elements_ = 0, vector_elements_ = 0;
  std::vector<int64_t>
      group_begin_;  // trainable: offset of each group, and the end; filled by commit()
};

/// Where the backward pass puts weight gradients (fp32), one group at a time.
class GradSink {
 public:
  virtual ~GradSink() = default;
  /// Gradient memory of the group, laid out as the group in the table. The pointer is valid until
  /// complete(group).
  virtual float* buffer(int group) = 0;
  /// False: the first write to each tensor overwrites (nobody zeroes buffers). True: everything
  /// adds.
  virtual bool accumulate() const = 0;
  /// The group's gradient of this micro-batch is complete; the buffer may be reused for the next.
  virtual void complete(int group) = 0;
};

}  // namespace loqal
