#include "model/refresh.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace loqal {

namespace {

// Largest of what directions() needs for one matrix: Omega and Adam's first moment of B.
int64_t direction_elements(const ParamTable& table) {
  int64_t most = 0;
  for (int g = 0; g < table.groups(); g++)
    for (const LowRankParams& m : low_rank_params(table, g))
      most = std::max(most, m.shape.m() * (sketch_columns(m.shape) + m.shape.rank));
  return most;
}

}  // namespace

Refresh::Refresh(Model& model, AdamW& optimizer, const RefreshConfig& config)
    : model_(model), ops_(model.ops()), optimizer_(optimizer), config_(config) {
  if (config.kind == RefreshConfig::Kind::project)
    directions_ = ops_.alloc(direction_elements(model.table()) * 4, "scratch");
}

void Refresh::begin_step(int64_t step) {
  const auto found = std::lower_bound(config_.steps.begin(), config_.steps.end(), step);
  due_ = found != config_.steps.end() && *found == step;
  step_ = step;
  gap_ = due_ ? step - (found == config_.steps.begin() ? 0 : *(found - 1)) : 0;
  if (due_ && config_.kind == RefreshConfig::Kind::project) model_.set_probe(this);
}

void Refresh::cancel_step() {
  due_ = false;
  model_.set_probe(nullptr);
}

void Refresh::end_step() {
  if (due_ && config_.kind == RefreshConfig::Kind::restart)
    for (int i = 0; i < model_.table().size(); i++)
      if (model_.table()[i].role == Role::matrix) restart(i);
  cancel_step();
}

double Refresh::sum_squares(int group, float* grads) {
  return optimizer_.sum_squares(group, grads);  // the probed factors are none of the optimizer's
}

void Refresh::update(int group, float* grads, double scale) {
  optimizer_.update(group, grads, scale);
  if (config_.kind == RefreshConfig::Kind::restart) return;
  for (const LowRankParams& m : low_rank_params(model_.table(), group)) {
    if (due_) renew(m, grads);
    decay(m.weight);
  }
}

// Of a quantized weight the codes stay and the scales decay: exact, and nothing is rounded.
void Refresh::decay(int weight) {
  const auto left = float(optimizer_.decay());
  if (left == 1) return;
  const Tensor w =
      model_.table()[weight].format ? model_.quantized(weight).scales() : model_.held(weight);
  ops_.axpby(w, left, w, 0);
}

PhiloxStream Refresh::stream(Purpose purpose, int weight) const {
  return {config_.seed, purpose, 0, uint32_t(model_.table()[weight].id), uint64_t(step_)};
}

Tensor Refresh::omega(const LowRankParams& m) {
  const FactorShape& s = m.shape;
  const Tensor omega(directions_.as<float>(), s.m(), sketch_columns(s)),
      moment(omega.as<float>() + omega.numel(), s.b_rows(), s.b_cols());
  optimizer_.first_moment(moment, m.trained);
  fill_omega(ops_, s, omega, moment, stream(Purpose::subspace, m.weight));
  return omega;
}

// The same for all micro-batches of the step, and made for each: to keep those of all matrices
// would take the memory of B once more.
Tensor Refresh::directions(const LowRankParams& m, const Tensor& scratch) {
  if (model_.table().plan().exact_gradient) return {};
  const Tensor columns = omega(m), x(scratch.data, scratch.dtype, columns.rows, columns.cols);
  ops_.copy(x, columns);
  return x;
}

double Refresh::sketch_energy(const LowRankParams& m, const Tensor& gradient,
                              const MergeScratch& scratch) {
  const FactorShape& s = m.shape;
  const Tensor Y(scratch.w.as<float>(), s.n(), sketch_columns(s)),
      P(scratch.x.as<float>(), s.p_rows(), s.p_cols()), held = scratch.b;
  sketch_gradient(ops_, s, Y, gradient, omega(m));
  ops_.fill(P, 0);
  sketch_basis(ops_, s, P, Y, stream(Purpose::subspace, m.weight));
  project_onto(ops_, s, held, P, gradient);
  return ops_.sum_squares(held) / ops_.sum_squares(gradient);
}

// w = W_eff and the weight = w rounded.
UpdateReport Refresh::merge(int weight, const RefreshSpace& space, const Factors& old) {
  const Rounder rounder{model_.table().plan().rounding, stream(Purpose::merge, weight)};
  if (model_.table()[weight].format)
    return requantize(ops_, model_.quantized(weight), space.w_ref, old, rounder, space.scratch);
  const Tensor& change = space.scratch.w;
  ops_.fill(change, 0);
  add_product(ops_, change, old, space.scratch.b);
  const double update = std::sqrt(ops_.sum_squares(change));
  if (!std::isfinite(update))
    fail_nonfinite("refresh: the update of " + model_.table()[weight].name + " is not finite");
  model_.read(weight, space.w_ref);
  ops_.axpby(space.w_ref, 1, change, 1);
  const double whole = std::sqrt(ops_.sum_squares(space.w_ref));
  if (update > 0) model_.write(weight, space.w_ref);
  return {.update_norm = whole > 0 ? update / whole : 0, .retained = 1};
}

void Refresh::renew(const LowRankParams& m, float* grads) {
  const ParamTable& table = model_.table();
  const FactorShape& s = m.shape;
  const RefreshSpace space(s, table[m.weight].format, model_.workspace().as<float>());
  const double scale = table.plan().scale;
  const auto both = [&](const Tensor& p) { return Factors{s, p, space.b, 1.0}; };
  MergeRecord record{.layer = table[m.weight].name, .gap = gap_};

  // The old factors go into the weight; at step 0 the weight is what it was before it was rounded.
  model_.read(m.frozen, space.old_p);
  model_.read(m.trained, space.b);
  if (step_ == 0 && original_ && table[m.weight].format) {
    ops_.upload(space.w_ref, original_(m.weight).data());
  } else {
    const UpdateReport report = merge(m.weight, space, both(space.old_p));
    record.update_norm = report.update_norm, record.retained = report.retained;
  }

  // The new basis, s times orthonormal, and as it is held.
  ops_.axpby(space.old_p, float(1 / scale), space.old_p, 0);
  ops_.copy(space.new_p, space.old_p);
  const Tensor sketch(table.gradient(m.trained, grads).as<float>(), s.n(), sketch_columns(s)),
      gradient(sketch.as<float>(), s.out, s.in);  // which of them, the plan says
  const bool exact = table.plan().exact_gradient;
  const PhiloxStream completion = stream(Purpose::subspace, m.weight);
  const BasisReport basis = exact ? svd_basis(ops_, s, space.new_p, gradient, completion)
                                  : sketch_basis(ops_, s, space.new_p, sketch, completion);
  record.energy = basis.energy, record.warning = basis.warning;
  if (exact && basis.warning.empty())
    record.sketch_energy = sketch_energy(m, gradient, space.scratch);
  const bool renewed = gap_ > 0 && basis.warning.empty();  // else the moments are right as they are
  if (renewed && config_.moments != RefreshMoments::keep) {
    basis_change(ops_, s, space.rotation, space.new_p, space.old_p);
    // All but w_ref and the bases is free now; the weight's room is at least that of B.
    const auto like_b = [&](const Tensor& t) {
      return Tensor(t.as<float>(), s.b_rows(), s.b_cols());
    };
    optimizer_.change_basis(
        m.trained, s.side(), space.rotation, config_.moments,
        {like_b(space.scratch.w), space.scratch.b, space.scratch.x, space.scratch.square});
  }
  if (!basis.kept) {  // else what is held stays, without a rounding
    ops_.axpby(space.new_p, float(scale), space.new_p, 0);
    model_.write(m.frozen, space.new_p);
  }
  model_.read(m.frozen, space.new_p);

  // What rounding took and the new factors can hold.
  ops_.fill(space.b, 0);
  if (table[m.weight].format) {
    const Rounder rounder{table.plan().rounding, stream(Purpose::compensate, m.weight)};
    // What lies between its parts is copied with them: the bytes of a checkpoint are a function of
    // the run alone.
    const QTensor& q = space.scratch.q;
    ops_.fill(Tensor(static_cast<float*>(q.data), 1, q.bytes() / 4), 0);
    record.error = compensate(ops_, model_.quantized(m.weight), space.w_ref, both(space.new_p),
                              int(config_.compensate), rounder, space.scratch);
  }
  model_.write(m.trained, space.b);
  records_.push_back(record);
}

void Refresh::restart(int weight) {
  const ParamTable& table = model_.table();
  const int up = weight + 1, down = weight + 2;  // LowRank's order
  const FactorShape s = {table[weight].rows(), table[weight].cols(), table[up].cols()};
  const RefreshSpace space(s, table[weight].format, model_.workspace().as<float>());
  const bool left = s.side() == Side::left;
  model_.read(left ? down : up, space.old_p);
  model_.read(left ? up : down, space.b);
  MergeRecord record{.layer = table[weight].name, .gap = gap_};
  const UpdateReport report = merge(weight, space, {s, space.old_p, space.b, 1.0});
  record.update_norm = report.update_norm, record.retained = report.retained;
  const Tensor& lost = space.scratch.w;
  model_.read(weight, lost);
  const double whole = std::sqrt(ops_.sum_squares(space.w_ref));
  ops_.axpby(lost, -1, space.w_ref, 1);
  if (whole > 0) record.error = std::sqrt(ops_.sum_squares(lost)) / whole;
  model_.init_factors(weight, config_.seed, step_);
  for (const int factor : {up, down})
    optimizer_.change_basis(factor, s.side(), {}, config_.moments, {});
  records_.push_back(record);
}

std::vector<MergeRecord> Refresh::take_records() { return std::exchange(records_, {}); }

}  // namespace loqal
