#include "optim/optimizer.h"

#include <cmath>

namespace loqal {

namespace {

std::vector<std::pair<int64_t, int64_t>> trainable_shapes(const ParamTable& table) {
  std::vector<std::pair<int64_t, int64_t>> shapes;
  for (const Param& p : table.params())
    if (p.segment == Segment::trainable) shapes.push_back({p.rows(), p.cols()});
    else shapes.push_back({0, 0});
  return shapes;
}

}  // namespace

void for_group(const ParamTable& table, int group, const std::function<void(int)>& f) {
  for (int i = 0; i < table.size(); i++)
    if (table[i].group == group && table[i].segment == Segment::trainable) f(i);
}

Tensor Optimizer::state(const std::string& name, int param) const {
  for (const NamedState& s : states(param))
    if (s.name == name) return s.tensor;
  LOQAL_ASSERT(false, "parameter ", param, " has no state ", name);
}

AdamW::AdamW(Ops& ops, const ParamAccess& params, const AdamWConfig& config)
    : Optimizer(ops, params),
      config_(config),
      moments_(ops, trainable_shapes(*params.table), config.bits) {}

AdamWArgs adamw_args(const AdamWConfig& c, const ParamRule& rule, double lr, int64_t step,
                     double scale, int param) {
  return {.lr = float(lr * rule.lr_factor),
          .beta1 = float(c.beta1),
          .beta2 = float(c.beta2),
          .eps = float(c.eps),
          .weight_decay = rule.decays ? float(c.weight_decay) : 0.0f,
          .step = step,
          .grad_scale = float(scale),
          .rounding = {c.seed, Purpose::rounding, 0, uint32_t(param), uint64_t(step)}};
}

void AdamW::update(int group, float* grads, double scale) {
  const ParamTable& table = *params_.table;
  for_group(table, group, [&](int i) {
    const ParamRule rule = params_.rule_of(i);
    if (rule.skip) return;
    moments_.step(i, params_.parameter(i), params_.compute_copy(i), table.gradient(i, grads),
                  adamw_args(config_, rule, lr_, step_, scale, i));
  });
}

void AdamW::reset() {
  for (int i = 0; i < moments_.count(); i++) moments_.reset(i);
  step_ = 0;
}

void AdamW::change_basis(int param, Side side, const Tensor& rotation, RefreshMoments mode,
                         const BasisScratch& scratch) {
  if (mode == RefreshMoments::keep) return;
  if (mode == RefreshMoments::reset) return moments_.reset(param);
  if (step_ <= 1) return;  // no moments yet
  if (ops_.dry()) return;
  const auto& [m, v, turned, QQ] = scratch;
  moments_.read(m, v, param);
  std::vector<float> hm(size_t(m.numel())), hv(hm.size()), hq(size_t(rotation.numel()));
  const double t = double(step_ - 1), debias1 = 1 - std::pow(config_.beta1, t),
               debias2 = 1 - std::pow(config_.beta2, t);
  const auto rotate = [&](const Tensor& to, const Tensor& by, const Tensor& x) {
    if (side == Side::left) ops_.matmul(to, x, by, {.transpose_b = true});
    else ops_.matmul(to, by, x);
  };
  ops_.download(hm.data(), m);
  ops_.download(hv.data(), v);
  ops_.download(hq.data(), rotation);
  for (float& q : hq) q *= q;
  ops_.upload(QQ, hq.data());
  for (size_t i = 0; i < hv.size(); i++)  // the variance about the mean
    hv[i] = float(double(hv[i]) / debias2 - double(hm[i]) * double(hm[i]) / (debias1 * debias1));
  ops_.upload(v, hv.data());
  rotate(turned, QQ, v);
  ops_.download(hv.data(), turned);
  rotate(turned, rotation, m);
  ops_.download(hm.data(), turned);
  for (size_t i = 0; i < hv.size(); i++) {
    const double mean = double(hm[i]) / debias1;
    hv[i] = float(debias2 * std::abs(double(hv[i]) + mean * mean));
  }
  ops_.upload(v, hv.data());
  moments_.write(param, turned, v);
}

double Optimizer::sum_squares(int group, float* grads) {
  const ParamTable& table = *params_.table;
  double sum = 0;
  for_group(table, group, [&](int i) {
    const ParamRule rule = params_.rule_of(i);
    if (rule.skip) return;
    const double squares = rule.in_norm * rule.in_norm * ops_.sum_squares(table.gradient(i, grads));
    if (!std::isfinite(squares))
      fail_nonfinite("the gradient of " + table[i].name + " is not finite");
    sum += squares;
  });
  return sum;
}

double clip_scale(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

}  // namespace loqal
