// The pieces that blocks are made of: where weights and their gradients lie, linear layers, norms,
// and the arena that activations are carved from.
#pragma once
#include <memory>
#include <string>

#include "core/param_table.h"
#include "model/config.h"
#include "ops/ops.h"

namespace loqal {

/// Carves aligned tensors from one block of memory. With a null base it only measures: the same
/// code that lays out a run also says how much memory it needs.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  Tensor take(DType type, int64_t rows, int64_t cols) {
    const Tensor t(base_ ? base_ + used_ : nullptr, type, rows, cols);
    used_ += (rows * cols * int64_t(size_of(type)) + 63) / 64 * 64;
    high_ = used_ > high_ ? used_ : high_;
    return t;
  }
  int64_t used() const { return used_; }
  void rewind(int64_t mark) { used_ = mark; }  ///< what was taken after `mark` may be overwritten
  int64_t high() const { return high_; }       ///< bytes needed

 private:
  char* base_;
  int64_t used_ = 0, high_ = 0;
};

/// The model's parameters as the layers see them.
struct Weights {
  const ParamTable* table = nullptr;
  void* master = nullptr;   ///< F32, the trainable segment, or its vectors alone
  void* compute = nullptr;  ///< the segment in type X: master itself, or in BF16
  void* frozen = nullptr;   ///< the frozen segment
  DType X = DType::F32;
  bool vectors_apart = false;  ///< master holds vectors alone

  Tensor matrix(int param) const { return table->view(param, compute, X); }
  Tensor vector(int param) const {
    return vectors_apart ? table->vector_view(param, master)
                         : table->view(param, master, DType::F32);
  }
  Tensor constant(int param) const { return table->frozen(param, frozen); }
  /// A frozen matrix in scratch's type: where it lies, if it is held so, else written to `scratch`.
  Tensor frozen_matrix(Ops& ops, int param, const Tensor& scratch) const;
};

/// The gradient buffer of one group, and whether to add to what is there.
struct Grads {
  const ParamTable* table = nullptr;
  int group = 0;
  float* base = nullptr;
  bool accumulate = false;

  Tensor operator()(int param) const { return table->gradient(param, base); }
};

/// Keys and values of all positions of one sequence so far, layer by layer; sampling keeps them.
struct KvCache {
  void* data = nullptr;  ///< X[L, 2, positions, width]
  DType X = DType::F32;
  int64_t positions = 0, width = 0;  ///< config.T; NKV*HS
  int64_t past = 0;                  ///< positions that the passes before have filled

  Tensor keys(int layer) const { return part(2 * layer); }
  Tensor values(int layer) const { return part(2 * layer + 1); }

 private:
  Tensor part(int64_t i) const {
    return Tensor(data, X, (i + 1) * positions, width).row_slice(i * positions, positions);
  }
};

/// Memory of low-rank layers, shared by all; X, as many elements as the largest of them needs.
struct LowRankScratch {
  Tensor weight;     ///< a matrix
  Tensor sum;        ///< a matrix in F32: where X is BF16
  Tensor factor;     ///< a frozen factor
  Tensor projected;  ///< [N, R], activations after one factor
};

struct LowRankParams;

/// What a refresh step asks of the backward pass, for each projected matrix (model/refresh.h).
class GradientProbe {
 public:
  virtual ~GradientProbe() = default;
  /// X [larger side of the matrix, columns], written to `scratch`: the sketch is G^T or G times it,
  /// [smaller side, columns] (quant/subspace.h). Empty: the whole gradient is wanted instead.
  virtual Tensor directions(const LowRankParams& m, const Tensor& scratch) = 0;
};

/// What every call of one pass shares. N = B*T rows.
struct Run {
  Ops& ops;
  Weights weights;
  int64_t B, T;
  LowRankScratch low_rank = {};
  GradientProbe* probe = nullptr;  ///< of a refresh step
  KvCache cache = {};  ///< no data: none; otherwise B is 1 and the pass's first position is `past`
  int64_t N() const { return B * T; }
};

/// Causal attention of one layer. With a cache, k and v are added to it and all it holds is seen.
void attention(const Run& run, int layer, const Tensor& out, const Tensor& lse, const Tensor& q,
               const Tensor& k, const Tensor& v, const AttentionShape& s);

class LowRank;

/// y = x W^T + b (+ residual). W [out, in], as Hugging Face stores Linear; dense and trained, or
/// frozen with a low-rank part, as the table's plan says.
class Linear {
 public:
  Linear(ParamTable& table, const std::string& name, int64_t out, int64_t in, int group, bool bias);

  void forward(const Run& run, const Tensor& y, const Tensor& x, const Tensor& residual = {}) const;
  /// dx (+)= dy W.
  void backward_input(const Run& run, const Tensor& dx, const Tensor& dy,
                      bool accumulate = false) const;
  /// dW, db (+)= ..., by the accumulate flag of `grads`.
  void backward_weight(const Run& run, const Grads& grads, const Tensor& dy, const Tensor& x) const;

 private:
  int weight_ = -1, bias_ = -1;
  std::shared_ptr<const LowRank> low_rank_;  // null: dense
};

/// LayerNorm (GPT-2) or RMSNorm (Llama). stats F32 [1, 2N]: mean and rstd, or rstd alone.
class Norm {
 public:
  Norm(ParamTable& table, const std::string& name, const ModelConfig& config, int group);

  void forward(const Run& run, const Tensor& y, const Tensor& stats, const Tensor& x) const;
  /// dx (+)= ...; dw, db by the flag of `grads`.
  void backward(const Run& run, const Grads& grads, const Tensor& dx, const Tensor& dy,
                const Tensor& x, const Tensor& stats, bool accumulate_dx) const;

 private:
  Tensor rows_of(const Tensor& stats, int64_t N) const;

  int weight_, bias_ = -1;
  float eps_;
};

}  // namespace loqal
