#include "model/layers.h"

#include "model/low_rank.h"

namespace loqal {

Tensor Weights::frozen_matrix(Ops& ops, int param, const Tensor& scratch) const {
  const Param& p = (*table)[param];
  const Tensor x(scratch.data, scratch.dtype, p.rows(), p.cols());
  if (p.format) {
    ops.dequantize(x, table->quantized(param, frozen));
    return x;
  }
  const Tensor held = table->frozen(param, frozen);
  if (held.dtype == x.dtype) return held;
  ops.copy(x, held);
  return x;
}

void attention(const Run& run, int layer, const Tensor& out, const Tensor& lse, const Tensor& q,
               const Tensor& k, const Tensor& v, const AttentionShape& s) {
  const KvCache& cache = run.cache;
  if (cache.data) {
    run.ops.copy(cache.keys(layer).row_slice(cache.past, run.T), k);
    run.ops.copy(cache.values(layer).row_slice(cache.past, run.T), v);
  }
  if (cache.past == 0) return run.ops.attention_forward(out, lse, q, k, v, s);
  const int64_t S = cache.past + run.T;
  run.ops.attention_cached(out, q, cache.keys(layer).row_slice(0, S),
                           cache.values(layer).row_slice(0, S), s.HS);
}

Linear::Linear(ParamTable& table, const std::string& name, int64_t out, int64_t in, int group,
               bool bias) {
  const std::string weight = name + ".weight";
  if (table.plan().kind == MatrixPlan::Kind::dense)
    weight_ = table.add(weight, {out, in}, group, Role::matrix);
  else low_rank_ = std::make_shared<LowRank>(table, weight, out, in, group);
  if (bias) bias_ = table.add(name + ".bias", {out}, group, Role::bias);
}

void Linear::forward(const Run& run, const Tensor& y, const Tensor& x,
                     const Tensor& residual) const {
  const Tensor bias = bias_ >= 0 ? run.weights.vector(bias_) : Tensor{};
  if (low_rank_) return low_rank_->forward(run, y, x, bias, residual);
  run.ops.matmul(y, x, run.weights.matrix(weight_),
                 {.transpose_b = true, .bias = bias, .residual = residual});
}

void Linear::backward_input(const Run& run, const Tensor& dx, const Tensor& dy,
                            bool accumulate) const {
  if (low_rank_) return low_rank_->backward_input(run, dx, dy, accumulate);
  run.ops.matmul(dx, dy, run.weights.matrix(weight_), {.accumulate = accumulate});
}

void Linear::backward_weight(const Run& run, const Grads& grads, const Tensor& dy,
                             const Tensor& x) const {
  if (low_rank_) low_rank_->backward_weight(run, grads, dy, x);
  else run.ops.matmul(grads(weight_), dy, x, {.transpose_a = true, .accumulate = grads.accumulate});
  if (bias_ >= 0) run.ops.bias_backward(grads(bias_), dy, grads.accumulate);
}

Norm::Norm(ParamTable& table, const std::string& name, const ModelConfig& config, int group)
    : weight_(table.add(name + ".weight", {config.C}, group, Role::norm)), eps_(config.norm_eps) {
  if (config.arch == Arch::gpt2) bias_ = table.add(name + ".bias", {config.C}, group, Role::bias);
}

Tensor Norm::rows_of(const Tensor& stats, int64_t N) const {
  return {stats.data, DType::F32, bias_ >= 0 ? 2 : 1, N};
}

void Norm::forward(const Run& run, const Tensor& y, const Tensor& stats, const Tensor& x) const {
  const Tensor s = rows_of(stats, x.rows), w = run.weights.vector(weight_);
  if (bias_ >= 0) run.ops.layernorm_forward(y, s, x, w, run.weights.vector(bias_), eps_);
  else run.ops.rmsnorm_forward(y, s, x, w, eps_);
}

void Norm::backward(const Run& run, const Grads& grads, const Tensor& dx, const Tensor& dy,
                    const Tensor& x, const Tensor& stats, bool accumulate_dx) const {
  const Tensor s = rows_of(stats, x.rows), w = run.weights.vector(weight_), dw = grads(weight_);
  if (bias_ >= 0)
    run.ops.layernorm_backward(dx, dw, grads(bias_), dy, x, w, s, accumulate_dx, grads.accumulate);
  else run.ops.rmsnorm_backward(dx, dw, dy, x, w, s, accumulate_dx, grads.accumulate);
}

}  // namespace loqal
