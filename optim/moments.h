// Adam's two moments of a list of matrices, in fp32 or in 8 bits: where they lie, and the step that
// they take. In 8 bits those of fewer than kSmallest elements stay fp32: they cost nothing, and
// norms and biases are sensitive (Dettmers et al. 2022).
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "ops/ops.h"

namespace loqal {

struct NamedState {
  std::string name;
  Tensor tensor;
};

class Moments {
 public:
  static constexpr int64_t kSmallest = 4096;

  /// shapes: rows and columns of each matrix; {0, 0} for one without moments. bits: 32 or 8.
  Moments(Ops& ops, const std::vector<std::pair<int64_t, int64_t>>& shapes, int bits);

  /// One step of matrix i (Ops::adamw or adamw8bit).
  void step(int i, const Tensor& p, const Tensor& copy, const Tensor& g, const AdamWArgs& args);
  /// "adam_m" and "adam_v", F32 or U8 [rows, cols]; in 8 bits also "adam_m_absmax" and
  /// "adam_v_absmax", F32 [1, blocks].
  std::vector<NamedState> states(int i) const;
  /// To and from F32 [rows, cols]; an empty tensor is not wanted.
  void read(const Tensor& m, const Tensor& v, int i) const;
  void write(int i, const Tensor& m, const Tensor& v);
  void reset(int i);
  int count() const { return int(parts_.size()); }

 private:
  struct Part {
    int64_t rows, cols, at;  ///< bytes from the start of either buffer
    bool fp32;               ///< else codes, then absmax
  };
  Tensor values(const Buffer& buffer, int i) const;  ///< F32
  Moment8 codes(const Buffer& buffer, int i) const;

  Ops& ops_;
  std::vector<Part> parts_;
  Buffer m_, v_;
};

}  // namespace loqal
