#include "optim/optimizer.h"

#include <cmath>

namespace loqal {

namespace {

template <class F>
void for_group(const ParamTable& table, int group, const F& f) {
  for (int i = 0; i < table.size(); i++)
    if (table[i].group == group && table[i].segment == Segment::trainable) f(i);
}

Tensor in_group(const ParamTable& table, int param, float* grads) {
  return table.view(param, grads - table.group_offset(table[param].group), DType::F32);
}

}  // namespace

AdamW::AdamW(Ops& ops, const ParamAccess& params, const AdamWConfig& config)
    : ops_(ops), params_(params), config_(config) {
  m_ = ops.alloc(params.table->elements() * 4, "optimizer state");
  v_ = ops.alloc(params.table->elements() * 4, "optimizer state");
}

void AdamW::update(int group, float* grads, double scale) {
  const ParamTable& table = *params_.table;
  for_group(table, group, [&](int i) {
    const AdamWArgs args{.lr = float(lr_),
                         .beta1 = float(config_.beta1),
                         .beta2 = float(config_.beta2),
                         .eps = float(config_.eps),
                         .weight_decay = table[i].decays() ? float(config_.weight_decay) : 0.0f,
                         .step = step_,
                         .grad_scale = float(scale),
                         .rounding = {config_.seed, Purpose::rounding, 0, uint32_t(i),
                                      uint64_t(step_)}};
    ops_.adamw(params_.parameter(i), params_.compute_copy(i), in_group(table, i, grads),
               state("adam_m", i), state("adam_v", i), args);
  });
}

Tensor AdamW::state(const std::string& name, int param) const {
  return params_.table->view(param, (name == "adam_m" ? m_ : v_).data(), DType::F32);
}

double group_sum_squares(Ops& ops, const ParamTable& table, int group, float* grads) {
  double sum = 0;
  for_group(table, group, [&](int i) {
    const double squares = ops.sum_squares(in_group(table, i, grads));
    if (!std::isfinite(squares))
      fail_nonfinite("the gradient of " + table[i].name + " is not finite");
    sum += squares;
  });
  return sum;
}

double clip_scale(double norm, double clip) { return clip > 0 && norm > clip ? clip / norm : 1.0; }

}  // namespace loqal
