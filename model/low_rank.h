// LowRank: a linear layer's matrix that is frozen beside two factors, of which one is trained
// (LoQT, arXiv 2405.16528) or both (LoRA, arXiv 2106.09685):
//
//     W_eff = W + U D,   W [out, in] dense or quantized, U [out, R], D [R, in]
//
// With one trained factor B the other one, P, is on the smaller side of the matrix: D is P where
// in <= out, else U is. The scale s of the paper is part of P: its rows (of U: columns) are s times
// an orthonormal basis. So nothing here multiplies by s, and dB = s G P^T comes out by itself.
#pragma once
#include "model/layers.h"
#include "quant/merge.h"

namespace loqal {

class LowRank {
 public:
  /// Registers W as NAME, the trained factor as NAME.B, the other one as NAME.P or LoRA's NAME.A.
  /// A rank above min(out, in) is min(out, in).
  LowRank(ParamTable& table, const std::string& name, int64_t out, int64_t in, int group);

  /// W_eff in type X, in the run's scratch memory, until the next call of anything here.
  Tensor effective(const Run& run) const;

  /// y = x W_eff^T + bias + residual. Few rows of x meet the factors one after the other; for more
  /// rows than out * in / (out + in) it takes less arithmetic to form W_eff first.
  void forward(const Run& run, const Tensor& y, const Tensor& x, const Tensor& bias,
               const Tensor& residual) const;
  /// dx (+)= dy W_eff.
  void backward_input(const Run& run, const Tensor& dx, const Tensor& dy, bool accumulate) const;
  /// dU (+)= dy^T (x D^T), dD (+)= (dy U)^T x, of those that are trained; the gradient of W is
  /// never formed. In a refresh step what the run's GradientProbe asks for, instead.
  void backward_weight(const Run& run, const Grads& grads, const Tensor& dy, const Tensor& x) const;

 private:
  void probe(const Run& run, const Grads& grads, const Tensor& dy, const Tensor& x) const;
  Tensor factor(const Run& run, int param) const;
  Tensor projected(const Run& run, int64_t columns) const;
  bool merges(int64_t rows) const { return rows * (out_ + in_) > out_ * in_; }

  int weight_, up_, down_;  // parameters W, U, D
  int64_t out_, in_, rank_;
};

/// The indices of a matrix's tensors in the table; of a projected matrix `trained` is B and
/// `frozen` is P.
struct LowRankParams {
  int weight, trained, frozen;
  FactorShape shape;
};

/// Memory that a refresh of the largest matrix needs (RefreshSpace), in fp32 numbers.
int64_t refresh_elements(const ParamTable& table);
/// The same of W_eff and both factors.
int64_t effective_elements(const ParamTable& table);

/// Scratch of the refresh of one matrix, F32.
struct RefreshSpace {
  RefreshSpace(const FactorShape& shape, const QuantFormat& format, float* base);

  Tensor w_ref;         ///< [out, in]
  Tensor new_p, old_p;  ///< [like P]
  Tensor b;             ///< [like B]
  Tensor rotation;      ///< [R, R]
  MergeScratch scratch;
  int64_t elements;
};

/// All projected matrices of one group (MatrixPlan::Kind::projected).
std::vector<LowRankParams> low_rank_params(const ParamTable& table, int group);

}  // namespace loqal
