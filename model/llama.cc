// A Llama block (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query attention, SwiGLU,
// no biases.
#include "core/error.h"
#include "model/block.h"

namespace loqal {

namespace {

class LlamaBlock final : public Block {
 public:
  LlamaBlock(ParamTable& table, const ModelConfig& c, const std::string& name, int layer, int group,
             int rope_table)
      : config_(c),
        layer_(layer),
        rope_table_(rope_table),
        input_norm_(table, name + ".input_layernorm", c, group),
        q_proj_(table, name + ".self_attn.q_proj", c.NH * c.HS, c.C, group, false),
        k_proj_(table, name + ".self_attn.k_proj", c.NKV * c.HS, c.C, group, false),
        v_proj_(table, name + ".self_attn.v_proj", c.NKV * c.HS, c.C, group, false),
        o_proj_(table, name + ".self_attn.o_proj", c.C, c.NH * c.HS, group, false),
        post_norm_(table, name + ".post_attention_layernorm", c, group),
        gate_proj_(table, name + ".mlp.gate_proj", c.F, c.C, group, false),
        up_proj_(table, name + ".mlp.up_proj", c.F, c.C, group, false),
        down_proj_(table, name + ".mlp.down_proj", c.C, c.F, group, false) {}

  void carve(const Run& run, Arena& saved, Arena& scratch) override {
    const int64_t N = run.N(), C = config_.C, F = config_.F;
    const int64_t A = config_.NH * config_.HS, KV = config_.NKV * config_.HS;
    const DType X = run.weights.X;
    stats_1_ = saved.take(DType::F32, 1, N);
    qkv_ = saved.take(X, N, A + 2 * KV);
    att_ = saved.take(X, N, A);
    lse_ = saved.take(DType::F32, run.B * config_.NH, run.T);
    mid_ = saved.take(X, N, C);
    stats_2_ = saved.take(DType::F32, 1, N);
    gate_up_ = saved.take(X, N, 2 * F);
    norm_ = scratch.take(X, N, C);
    hidden_ = scratch.take(X, N, F);
    dnorm_ = scratch.take(X, N, C);
    dhidden_ = scratch.take(X, N, F);
    dgate_up_ = scratch.take(X, N, 2 * F);
    datt_ = scratch.take(X, N, A);
    dqkv_ = scratch.take(X, N, A + 2 * KV);
  }

  void forward(const Run& run, const Tensor& y, const Tensor& x) override {
    Ops& ops = run.ops;
    const Tensor table = run.weights.constant(rope_table_).row_slice(run.cache.past, run.T);
    input_norm_.forward(run, norm_, stats_1_, x);
    q_proj_.forward(run, q(qkv_), norm_);
    k_proj_.forward(run, k(qkv_), norm_);
    v_proj_.forward(run, v(qkv_), norm_);
    ops.rope(q(qkv_), table, run.T, config_.HS, false);
    ops.rope(k(qkv_), table, run.T, config_.HS, false);
    attention(run, layer_, att_, lse_, q(qkv_), k(qkv_), v(qkv_), shape(run));
    o_proj_.forward(run, mid_, att_, x);
    post_norm_.forward(run, norm_, stats_2_, mid_);
    gate_proj_.forward(run, gate(gate_up_), norm_);
    up_proj_.forward(run, up(gate_up_), norm_);
    if (!y) return;
    ops.swiglu_forward(hidden_, gate(gate_up_), up(gate_up_));
    down_proj_.forward(run, y, hidden_, mid_);
  }

  void backward(const Run& run, const Grads& grads, const Tensor& g, const Tensor& x) override {
    Ops& ops = run.ops;
    down_proj_.backward_input(run, dhidden_, g);
    ops.swiglu_backward(gate(dgate_up_), up(dgate_up_), hidden_, dhidden_, gate(gate_up_),
                        up(gate_up_));
    down_proj_.backward_weight(run, grads, g, hidden_);
    post_norm_.forward(run, norm_, stats_2_, mid_);
    gate_proj_.backward_input(run, dnorm_, gate(dgate_up_));
    up_proj_.backward_input(run, dnorm_, up(dgate_up_), true);
    gate_proj_.backward_weight(run, grads, gate(dgate_up_), norm_);
    up_proj_.backward_weight(run, grads, up(dgate_up_), norm_);
    post_norm_.backward(run, grads, g, dnorm_, mid_, stats_2_, true);

    const Tensor table = run.weights.constant(rope_table_);
    o_proj_.backward_input(run, datt_, g);
    o_proj_.backward_weight(run, grads, g, att_);
    ops.attention_backward(q(dqkv_), k(dqkv_), v(dqkv_), datt_, att_, lse_, q(qkv_), k(qkv_),
                           v(qkv_), shape(run));
    ops.rope(q(dqkv_), table, run.T, config_.HS, true);
    ops.rope(k(dqkv_), table, run.T, config_.HS, true);
    input_norm_.forward(run, norm_, stats_1_, x);
    q_proj_.backward_input(run, dnorm_, q(dqkv_));
    k_proj_.backward_input(run, dnorm_, k(dqkv_), true);
    v_proj_.backward_input(run, dnorm_, v(dqkv_), true);
    q_proj_.backward_weight(run, grads, q(dqkv_), norm_);
    k_proj_.backward_weight(run, grads, k(dqkv_), norm_);
    v_proj_.backward_weight(run, grads, v(dqkv_), norm_);
    input_norm_.backward(run, grads, g, dnorm_, x, stats_1_, true);
  }

 private:
  // Columns of a fused buffer: q X[N, NH*HS], k and v X[N, NKV*HS]; gate and up X[N, F].
  Tensor q(const Tensor& t) const { return t.col_slice(0, config_.NH * config_.HS); }
  Tensor k(const Tensor& t) const {
    return t.col_slice(config_.NH * config_.HS, config_.NKV * config_.HS);
  }
  Tensor v(const Tensor& t) const {
    return t.col_slice((config_.NH + config_.NKV) * config_.HS, config_.NKV * config_.HS);
  }
  Tensor gate(const Tensor& t) const { return t.col_slice(0, config_.F); }
  Tensor up(const Tensor& t) const { return t.col_slice(config_.F, config_.F); }
  AttentionShape shape(const Run& run) const {
    return {run.B, run.T, config_.NH, config_.NKV, config_.HS};
  }

  ModelConfig config_;
  int layer_, rope_table_;
  Norm input_norm_;
  Linear q_proj_, k_proj_, v_proj_, o_proj_;
  Norm post_norm_;
  Linear gate_proj_, up_proj_, down_proj_;
  Tensor stats_1_, qkv_, att_, lse_, mid_, stats_2_, gate_up_;       // saved
  Tensor norm_, hidden_, dnorm_, dhidden_, dgate_up_, datt_, dqkv_;  // scratch
};

}  // namespace

std::unique_ptr<Block> make_llama_block(ParamTable& table, const ModelConfig& config, int layer,
                                        int group, int rope_table) {
  return std::make_unique<LlamaBlock>(table, config, cat("model.layers.", layer), layer, group,
                                      rope_table);
}

}  // namespace loqal
