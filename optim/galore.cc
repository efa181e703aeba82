#include "optim/galore.h"

#include <algorithm>

namespace loqal {

namespace {

bool left(const FactorShape& s) { return s.side() == Side::left; }

std::vector<FactorShape> factor_shapes(const ParamTable& table, const GaLoreConfig& config) {
  std::vector<FactorShape> shapes;
  for (int i = 0; i < table.size(); i++) {
    const Param& p = table[i];
    const bool projected = p.segment == Segment::trainable && config.projected(i);
    shapes.push_back(
        {p.rows(), p.cols(), projected ? std::min({config.rank, p.rows(), p.cols()}) : int64_t(0)});
  }
  return shapes;
}

std::vector<std::pair<int64_t, int64_t>> moment_shapes(const ParamTable& table,
                                                       const std::vector<FactorShape>& factors) {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (int i = 0; i < table.size(); i++) {
    const FactorShape& f = factors[size_t(i)];
    if (table[i].segment != Segment::trainable) shapes.push_back({0, 0});
    else if (f.rank) shapes.push_back({f.b_rows(), f.b_cols()});
    else shapes.push_back({f.out, f.in});
  }
  return shapes;
}

}  // namespace

GaLore::GaLore(Ops& ops, const ParamAccess& params, const GaLoreConfig& config)
    : Optimizer(ops, params),
      config_(config),
      shapes_(factor_shapes(*params.table, config)),
      refresh_steps_(config.schedule.all()),
      moments_(ops, moment_shapes(*params.table, shapes_), config.adam.bits) {
  int64_t bases = 0, largest = 0;
  for (const FactorShape& s : shapes_) {
    basis_at_.push_back(bases);
    bases += (s.rank * s.n() + 15) / 16 * 16;
    if (s.rank) largest = std::max(largest, s.m() * (config.sketch ? sketch_columns(s) : s.rank));
  }
  bases_ = ops.alloc(4 * bases, "optimizer state");
  projected_ = ops.alloc(4 * largest, "optimizer scratch");
  direction_ = ops.alloc(4 * largest, "optimizer scratch");
}

Tensor GaLore::basis(int param) const {
  const FactorShape& s = shapes_[size_t(param)];
  float* base = bases_.as<float>();
  return {base ? base + basis_at_[size_t(param)] : nullptr, s.p_rows(), s.p_cols()};
}

void GaLore::update(int group, float* grads, double scale) {
  const ParamTable& table = *params_.table;
  for_group(table, group, [&](int i) {
    const ParamRule rule = params_.rule_of(i);
    if (rule.skip) return;
    const Tensor grad = table.gradient(i, grads);
    if (shapes_[size_t(i)].rank) return project(i, grad, rule, scale);
    moments_.step(i, params_.parameter(i), params_.compute_copy(i), grad,
                  adamw_args(config_.adam, rule, lr_, step_, scale, i));
  });
}

// W = (1 - lr wd) W + D P, where D = -lr alpha N is what Adam makes of zeros.
void GaLore::project(int param, const Tensor& grad, const ParamRule& rule, double scale) {
  const FactorShape& s = shapes_[size_t(param)];
  const Tensor P = basis(param), W = params_.parameter(param),
               R(projected_.as<float>(), s.b_rows(), s.b_cols()),
               D(direction_.as<float>(), s.b_rows(), s.b_cols());
  const auto due = std::lower_bound(refresh_steps_.begin(), refresh_steps_.end(), step_ - 1);
  if (due != refresh_steps_.end() && *due == step_ - 1)
    refresh(param, grad, due == refresh_steps_.begin() ? 0 : *due - due[-1]);
  project_onto(ops_, s, R, P, grad);
  ParamRule of_direction = rule;
  of_direction.decays = false;
  of_direction.lr_factor *= config_.scale;
  ops_.fill(D, 0);
  moments_.step(param, D, {}, R, adamw_args(config_.adam, of_direction, lr_, step_, scale, param));
  if (rule.decays && config_.adam.weight_decay > 0)
    ops_.axpby(W, float(1 - lr_ * rule.lr_factor * config_.adam.weight_decay), W, 0);
  if (left(s)) ops_.matmul(W, D, P, {.accumulate = true});
  else ops_.matmul(W, P, D, {.accumulate = true});
  if (const Tensor copy = params_.compute_copy(param)) ops_.copy(copy, W);
}

void GaLore::refresh(int param, const Tensor& grad, int64_t gap) {
  const FactorShape& s = shapes_[size_t(param)];
  const PhiloxStream stream(config_.adam.seed, Purpose::subspace, 0, uint32_t(param),
                            uint64_t(step_));
  BasisReport report;
  if (config_.sketch) {
    const int64_t S = sketch_columns(s);
    const Tensor omega(direction_.as<float>(), s.m(), S), Y(projected_.as<float>(), s.n(), S),
        moment(projected_.as<float>(), s.b_rows(), s.b_cols());  // is done with before Y is made
    moments_.read(moment, {}, param);
    fill_omega(ops_, s, omega, moment, stream);
    sketch_gradient(ops_, s, Y, grad, omega);
    report = sketch_basis(ops_, s, basis(param), Y, stream);
  } else {
    report = svd_basis(ops_, s, basis(param), grad, stream);
  }
  if (config_.on_refresh) config_.on_refresh(param, gap, report);
}

std::vector<NamedState> GaLore::states(int param) const {
  std::vector<NamedState> all = moments_.states(param);
  if (shapes_[size_t(param)].rank) all.push_back({"galore_p", basis(param)});
  return all;
}

void GaLore::reset() {
  for (int i = 0; i < moments_.count(); i++) {
    moments_.reset(i);
    if (shapes_[size_t(i)].rank) ops_.fill(basis(i), 0);
  }
  step_ = 0;
}

}  // namespace loqal
