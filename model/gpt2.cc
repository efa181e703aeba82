// A GPT-2 block (Radford et al. 2019): x + attention(ln_1 x), then x + mlp(ln_2 x), with biases.
#include "core/error.h"
#include "model/block.h"

namespace loqal {

namespace {

class Gpt2Block final : public Block {
 public:
  Gpt2Block(ParamTable& table, const ModelConfig& c, const std::string& name, int layer, int group)
      : config_(c),
        layer_(layer),
        ln_1_(table, name + ".ln_1", c, group),
        c_attn_(table, name + ".attn.c_attn", 3 * c.NH * c.HS, c.C, group, true),
        c_proj_(table, name + ".attn.c_proj", c.C, c.NH * c.HS, group, true),
        ln_2_(table, name + ".ln_2", c, group),
        c_fc_(table, name + ".mlp.c_fc", c.F, c.C, group, true),
        mlp_proj_(table, name + ".mlp.c_proj", c.C, c.F, group, true) {}

  void carve(const Run& run, Arena& saved, Arena& scratch) override {
    const int64_t N = run.N(), C = config_.C, A = config_.NH * config_.HS, F = config_.F;
    const DType X = run.weights.X;
    stats_1_ = saved.take(DType::F32, 1, 2 * N);
    qkv_ = saved.take(X, N, 3 * A);
    att_ = saved.take(X, N, A);
    lse_ = saved.take(DType::F32, run.B * config_.NH, run.T);
    mid_ = saved.take(X, N, C);
    stats_2_ = saved.take(DType::F32, 1, 2 * N);
    fc_ = saved.take(X, N, F);
    norm_ = scratch.take(X, N, C);
    gelu_ = scratch.take(X, N, F);
    dnorm_ = scratch.take(X, N, C);
    dhidden_ = scratch.take(X, N, F);
    datt_ = scratch.take(X, N, A);
    dqkv_ = scratch.take(X, N, 3 * A);
  }

  void forward(const Run& run, const Tensor& y, const Tensor& x) override {
    Ops& ops = run.ops;
    ln_1_.forward(run, norm_, stats_1_, x);
    c_attn_.forward(run, qkv_, norm_);
    attention(run, layer_, att_, lse_, part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), shape(run));
    c_proj_.forward(run, mid_, att_, x);
    ln_2_.forward(run, norm_, stats_2_, mid_);
    c_fc_.forward(run, fc_, norm_);
    if (!y) return;
    ops.gelu_forward(gelu_, fc_);
    mlp_proj_.forward(run, y, gelu_, mid_);
  }

  void backward(const Run& run, const Grads& grads, const Tensor& g, const Tensor& x) override {
    Ops& ops = run.ops;
    mlp_proj_.backward_input(run, dhidden_, g);
    ops.gelu_backward(dhidden_, gelu_, dhidden_, fc_);
    mlp_proj_.backward_weight(run, grads, g, gelu_);
    ln_2_.forward(run, norm_, stats_2_, mid_);
    c_fc_.backward_input(run, dnorm_, dhidden_);
    c_fc_.backward_weight(run, grads, dhidden_, norm_);
    ln_2_.backward(run, grads, g, dnorm_, mid_, stats_2_, true);

    c_proj_.backward_input(run, datt_, g);
    c_proj_.backward_weight(run, grads, g, att_);
    ops.attention_backward(part(dqkv_, 0), part(dqkv_, 1), part(dqkv_, 2), datt_, att_, lse_,
                           part(qkv_, 0), part(qkv_, 1), part(qkv_, 2), shape(run));
    ln_1_.forward(run, norm_, stats_1_, x);
    c_attn_.backward_input(run, dnorm_, dqkv_);
    c_attn_.backward_weight(run, grads, dqkv_, norm_);
    ln_1_.backward(run, grads, g, dnorm_, x, stats_1_, true);
  }

 private:
  Tensor part(const Tensor& qkv, int i) const {  // q, k or v: X[N, NH*HS]
    return qkv.col_slice(i * config_.NH * config_.HS, config_.NH * config_.HS);
  }
  AttentionShape shape(const Run& run) const {
    return {run.B, run.T, config_.NH, config_.NH, config_.HS};
  }

  ModelConfig config_;
  int layer_;
  Norm ln_1_;
  Linear c_attn_, c_proj_;
  Norm ln_2_;
  Linear c_fc_, mlp_proj_;
  Tensor stats_1_, qkv_, att_, lse_, mid_, stats_2_, fc_;  // saved
  Tensor norm_, gelu_, dnorm_, dhidden_, datt_, dqkv_;     // scratch
};

}  // namespace

std::unique_ptr<Block> make_gpt2_block(ParamTable& table, const ModelConfig& config, int layer,
                                       int group) {
  return std::make_unique<Gpt2Block>(table, config, cat("transformer.h.", layer), layer, group);
}

}  // namespace loqal
