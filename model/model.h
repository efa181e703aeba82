// Model: embedding, blocks, final norm, head and loss; forward and backward. It owns parameters and
// activations; gradients belong to a GradSink, optimizer state to the optimizer.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "model/block.h"
#include "optim/optimizer.h"

namespace loqal {

struct ModelOptions {
  int64_t B = 1;             ///< largest batch of one pass, T up to config.T; 0: weights alone
  DType X = DType::F32;      ///< compute type: F32 or BF16
  DType P = DType::F32;      ///< type of 2-D parameters; BF16: no fp32 master exists, X is BF16
  bool recompute = false;    ///< keep only each block's input; run its forward again in backward
  bool training = true;      ///< false: forward only, activations of one block
  bool cache = false;        ///< keep keys and values: next_logits() goes on from where it was
  int threads = 0;           ///< of init_random, on the host; 0: as many as CPUs
  MatrixPlan matrices = {};  ///< of the linear layers
};

class Model {
 public:
  Model(Ops& ops, const ModelConfig& config, const ModelOptions& options);

  Ops& ops() const { return ops_; }
  const ModelConfig& config() const { return config_; }
  const ParamTable& table() const { return table_; }
  int groups() const { return table_.groups(); }
  DType parameter_type() const { return options_.P; }  ///< of 2-D parameters
  bool low_rank() const { return options_.matrices.kind != MatrixPlan::Kind::dense; }

  /// [rows, cols] of one trainable parameter: F32, or P if it is 2-D. Embeddings and head have Vp
  /// rows, of which V are real.
  Tensor parameter(int index) const;
  /// parameter(index) = values (fp32, all rows), rounded to its type; of a frozen matrix too, which
  /// is quantized if it is held so. The caller then calls refresh_compute_copy().
  void set_parameter(int index, const std::vector<float>& values);
  /// Any tensor but a constant as it is held, without the vocabulary's padding, for files:
  /// quantized ones as U8.
  Tensor held(int index) const;
  /// To and from any tensor but a constant, F32 of its shape. write() quantizes what is held so, W
  /// as the plan says and P to the nearest, and keeps the compute copy.
  void read(int index, const Tensor& to);
  void write(int index, const Tensor& from);
  QTensor quantized(int index) const;  ///< of a frozen tensor that is held so
  /// F32 [1, refresh_elements()] or, for reading only, effective_elements(); for whoever works
  /// between two blocks' passes.
  const Tensor& workspace() const { return workspace_; }
  /// W_eff of a matrix with a low-rank part, F32, into w [out, in]. u [out, R] and d [R, in]: F32,
  /// become its factors.
  void effective(int weight, const Tensor& w, const Tensor& u, const Tensor& d);
  /// What a dense model has in its place, on the host: a parameter, or W_eff.
  std::vector<float> effective(int index);
  /// W = W_eff of every matrix, rounded to what is held, and its low-rank part zero.
  void merge_factors();
  int64_t real_rows(int index) const;  ///< rows without the vocabulary's padding
  int64_t parameter_count() const;     ///< trainable, without padding
  /// BF16 view of the parameter's copy for matrix products; empty if there is none.
  Tensor compute_copy(int index) const;
  void refresh_compute_copy();  ///< after parameters were written by anyone but the optimizer

  /// N(0, 0.02); GPT-2's projections into the residual stream N(0, 0.02 / sqrt(2L)); norms 1,
  /// biases 0. A pure function of the seed, whatever the threads and the matrices' plan.
  void init_random(uint64_t seed);
  /// What init_random() gives one tensor that is no factor, all rows.
  std::vector<float> random_values(int index, uint64_t seed) const;
  /// U D = 0: the frozen factor 0 (projected) or D random, N(0, s^2 / in), and U 0 (LoRA).
  void init_factors(uint64_t seed);
  void init_factors(int weight, uint64_t seed, int64_t step);  ///< of one matrix

  /// Sum over targets of -log p(target). tokens, targets [B,T] on the host; target -1 is ignored.
  double forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T);
  /// The same, and the gradient of scale * sum into the sink, group by group from the head down.
  double forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T,
                          float scale, GradSink& sink);
  /// Logits [V] of the token that follows. `tokens` are those of positions past, past + 1, ...
  /// below config.T. past > 0: the calls before gave those of the positions before, with the same
  /// weights, and the model has a cache.
  std::vector<float> next_logits(const std::vector<int32_t>& tokens, int64_t past = 0);

  /// The next backward passes are those of a refresh step; null: of usual ones.
  void set_probe(GradientProbe* probe) { probe_ = probe; }
  /// How an optimizer treats a parameter: as the table says, but with a probe the trained factors
  /// are left alone, for their gradients are what the probe asked for.
  ParamRule rule(int index) const {
    const Param& p = table_[index];
    // dB = s (G in the subspace), so that B's norm over s is that of the weight's gradient.
    const bool projected =
        p.role == Role::factor && table_.plan().kind == MatrixPlan::Kind::projected;
    return {p.rate, p.decays(), probe_ && p.role == Role::factor,
            projected ? 1 / table_.plan().scale : 1};
  }

  std::string nonfinite_parameter();  ///< the first that holds a NaN or infinity, or ""
  /// For a message: the first parameter, or else the first layer's output of the last forward pass,
  /// that holds a NaN or infinity. "" if there is none.
  std::string first_nonfinite();

 private:
  Run begin(const int32_t* tokens, int64_t B, int64_t T);
  void carve(const Run& run, void* kept, void* scratch);
  void carve_low_rank(int64_t N, Arena& scratch);
  void upload_rotary();
  void forward_layers(const Run& run);
  double loss(const Run& run, const int32_t* targets, const Tensor& dh, const Tensor& dw,
              float scale, bool accumulate);
  void backward_layers(const Run& run, GradSink& sink);
  Grads grads(GradSink& sink, int group) const;
  Tensor& residual(int64_t layer) {
    return residual_[size_t(options_.training ? layer : layer % 2)];
  }
  Tensor head_weight(const Run& run) const;
  bool finite(const Tensor& x);
  Weights weights() const;
  /// Of fp32 parameters, in BF16, for computing.
  bool has_copy() const { return options_.X == DType::BF16 && options_.P == DType::F32; }

  Ops& ops_;
  ModelConfig config_;
  ModelOptions options_;
  ParamTable table_;
  int wte_, wpe_ = -1, head_ = -1, rope_ = -1;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Norm> final_norm_;
  Buffer master_, copy_, frozen_, cache_, kept_, scratch_;
  LowRankScratch low_rank_;
  GradientProbe* probe_ = nullptr;
  int64_t kept_bytes_ = 0, scratch_bytes_ = 0;

  // Carved for the B and T of each call.
  Tensor tokens_, targets_, nll_;  // I32, I32, F32 [1,N]
  std::vector<Tensor> residual_;   // X[N,C]: input of each block, and the last one's output
  Tensor final_stats_, h_;         // F32 [1,2N]; X[N,C]: output of the final norm
  Tensor g_, dh_;                  // X[N,C]: gradient of the residual stream, and of h
  Tensor workspace_;               // F32, in scratch
  int64_t workspace_elements_ = 0;
  Tensor logits_;  // F32 [rows, V]: one chunk, in scratch
  Run last_;       // the last pass, for first_nonfinite()
};

}  // namespace loqal
