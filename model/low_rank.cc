#include "model/low_rank.h"

#include <algorithm>

namespace loqal {

LowRank::LowRank(ParamTable& table, const std::string& name, int64_t out, int64_t in, int group)
    : out_(out), in_(in) {
  const MatrixPlan& plan = table.plan();
  const bool lora = plan.kind == MatrixPlan::Kind::lora, left = lora || in <= out;
  rank_ = std::min({plan.rank, out, in});
  const auto held = [&](const std::string& suffix, int64_t rows, int64_t cols, Role role) {
    return Param{.name = name + suffix,
                 .shape = {rows, cols},
                 .group = group,
                 .role = role,
                 .segment = Segment::frozen,
                 .format = plan.format};
  };
  Param u = held(left ? ".B" : ".P", out, rank_, Role::factor), d = held(lora   ? ".A"
                                                                         : left ? ".P"
                                                                                : ".B",
                                                                         rank_, in, Role::factor);
  Param& trained = left ? u : d;
  trained.segment = Segment::trainable, trained.format = {};
  if (lora) {
    d.segment = Segment::trainable, d.format = {};
    d.rate = plan.scale;  // Adam's steps are those of LoRA's A, which s then multiplies
  } else {
    const FactorShape shape = {out, in, rank_};
    const int64_t sketch = sketch_columns(shape) * shape.n();
    trained.grad_numel = std::max(trained.numel(), plan.exact_gradient ? out * in : sketch);
  }
  weight_ = table.add(held("", out, in, Role::matrix));
  up_ = table.add(u);
  down_ = table.add(d);
}

Tensor LowRank::factor(const Run& run, int param) const {
  if ((*run.weights.table)[param].trainable()) return run.weights.matrix(param);
  return run.weights.frozen_matrix(run.ops, param, run.low_rank.factor);
}

// Rows of activations after one factor: X[N, columns].
Tensor LowRank::projected(const Run& run, int64_t columns) const {
  return {run.low_rank.projected.data, run.weights.X, run.N(), columns};
}

Tensor LowRank::effective(const Run& run) const {
  const Tensor w(run.low_rank.weight.data, run.weights.X, out_, in_);
  // Rounded once, as a sum: beside a W that is rounded by itself an update below half a bf16 step
  // of its elements would not be seen.
  const bool bf16 = run.weights.X == DType::BF16;
  const Tensor sum = bf16 ? Tensor(run.low_rank.sum.data, DType::F32, out_, in_) : w;
  const Tensor frozen = run.weights.frozen_matrix(run.ops, weight_, sum);
  const bool in_place = frozen.data == sum.data;
  run.ops.matmul(sum, factor(run, up_), factor(run, down_),
                 {.accumulate = in_place, .residual = in_place ? Tensor{} : frozen});
  if (bf16) run.ops.copy(w, sum);
  return w;
}

void LowRank::forward(const Run& run, const Tensor& y, const Tensor& x, const Tensor& bias,
                      const Tensor& residual) const {
  Ops& ops = run.ops;
  if (merges(x.rows)) {
    ops.matmul(y, x, effective(run), {.transpose_b = true, .bias = bias, .residual = residual});
    return;
  }
  ops.matmul(y, x, run.weights.frozen_matrix(ops, weight_, run.low_rank.weight),
             {.transpose_b = true, .bias = bias, .residual = residual});
  const Tensor z = projected(run, rank_);
  ops.matmul(z, x, factor(run, down_), {.transpose_b = true});
  ops.matmul(y, z, factor(run, up_), {.transpose_b = true, .accumulate = true});
}

void LowRank::backward_input(const Run& run, const Tensor& dx, const Tensor& dy,
                             bool accumulate) const {
  Ops& ops = run.ops;
  if (merges(dy.rows)) return ops.matmul(dx, dy, effective(run), {.accumulate = accumulate});
  ops.matmul(dx, dy, run.weights.frozen_matrix(ops, weight_, run.low_rank.weight),
             {.accumulate = accumulate});
  const Tensor z = projected(run, rank_);
  ops.matmul(z, dy, factor(run, up_));
  ops.matmul(dx, z, factor(run, down_), {.accumulate = true});
}

void LowRank::backward_weight(const Run& run, const Grads& grads, const Tensor& dy,
                              const Tensor& x) const {
  if (run.probe) return probe(run, grads, dy, x);
  Ops& ops = run.ops;
  const ParamTable& table = *run.weights.table;
  const MatmulArgs sum_of_rows{.transpose_a = true, .accumulate = grads.accumulate};
  const Tensor z = projected(run, rank_);
  if (table[up_].trainable()) {
    ops.matmul(z, x, factor(run, down_), {.transpose_b = true});
    ops.matmul(grads(up_), dy, z, sum_of_rows);
  }
  if (table[down_].trainable()) {
    ops.matmul(z, dy, factor(run, up_));
    ops.matmul(grads(down_), z, x, sum_of_rows);
  }
}

void LowRank::probe(const Run& run, const Grads& grads, const Tensor& dy, const Tensor& x) const {
  Ops& ops = run.ops;
  const bool left = (*run.weights.table)[up_].trainable();
  float* const room = grads(left ? up_ : down_).as<float>();
  const MatmulArgs sum_of_rows{.transpose_a = true, .accumulate = grads.accumulate};
  const Tensor omega = run.probe->directions(
      {weight_, left ? up_ : down_, left ? down_ : up_, {out_, in_, rank_}}, run.low_rank.weight);
  if (!omega) return ops.matmul(Tensor(room, out_, in_), dy, x, sum_of_rows);
  const Tensor z = projected(run, omega.cols);
  ops.matmul(z, left ? dy : x, omega);
  ops.matmul(Tensor(room, std::min(out_, in_), omega.cols), left ? x : dy, z, sum_of_rows);
}

RefreshSpace::RefreshSpace(const FactorShape& s, const QuantFormat& format, float* base) {
  Arena arena(base);
  for (Tensor* t : {&w_ref, &scratch.w}) *t = arena.take(DType::F32, s.out, s.in);
  for (Tensor* t : {&new_p, &old_p}) *t = arena.take(DType::F32, s.p_rows(), s.p_cols());
  for (Tensor* t : {&b, &scratch.b, &scratch.x})
    *t = arena.take(DType::F32, s.b_rows(), s.b_cols());
  for (Tensor* t : {&rotation, &scratch.square}) *t = arena.take(DType::F32, s.rank, s.rank);
  scratch.q = {arena.take(DType::U8, 1, format.bytes(s.out * s.in)).data, format, s.out, s.in};
  elements = (arena.used() + 3) / 4;
}

namespace {

// Of all matrices with factors, the most that f(shape, format) says.
template <class F>
int64_t most_elements(const ParamTable& table, const F& f) {
  int64_t most = 0;
  for (int i = 0; i < table.size(); i++)
    if (table[i].role == Role::matrix && !table[i].trainable())
      most = std::max(most, f(FactorShape{table[i].rows(), table[i].cols(), table[i + 1].cols()},
                              table[i].format));
  return most;
}

}  // namespace

int64_t refresh_elements(const ParamTable& table) {
  return most_elements(table, [](const FactorShape& s, const QuantFormat& format) {
    return RefreshSpace(s, format, nullptr).elements;
  });
}

int64_t effective_elements(const ParamTable& table) {
  return most_elements(table, [](const FactorShape& s, const QuantFormat&) {
    return s.out * s.in + (s.out + s.in) * s.rank;
  });
}

std::vector<LowRankParams> low_rank_params(const ParamTable& table, int group) {
  std::vector<LowRankParams> all;
  if (table.plan().kind != MatrixPlan::Kind::projected) return all;
  for (int i = 0; i < table.size(); i++) {
    const Param& p = table[i];
    if (p.group != group || p.role != Role::matrix) continue;
    const bool left = table[i + 1].trainable();  // LowRank's order: W, U, D
    all.push_back(
        {i, left ? i + 1 : i + 2, left ? i + 2 : i + 1, {p.rows(), p.cols(), table[i + 1].cols()}});
  }
  return all;
}

}  // namespace loqal
