#include "optim/grad_sinks.h"

#include <algorithm>
#include <cmath>

namespace loqal {

FullGradSink::FullGradSink(Ops& ops, const ParamTable& table, Optimizer& optimizer, double clip)
    : ops_(ops),
      table_(table),
      optimizer_(optimizer),
      clip_(clip),
      grads_(ops.alloc(table.elements() * 4, "gradients")) {}

StepNorm FullGradSink::finish_step() {
  double squares = 0;
  for (int g = 0; g < table_.groups(); g++)
    squares += group_sum_squares(ops_, table_, g, buffer(g));
  StepNorm norm{.grad_norm = std::sqrt(squares)};
  norm.scale = clip_scale(norm.grad_norm, clip_);
  for (int g = 0; g < table_.groups(); g++) optimizer_.update(g, buffer(g), norm.scale);
  return norm;
}

PerLayerSink::PerLayerSink(Ops& ops, const ParamTable& table, Optimizer& optimizer)
    : ops_(ops), table_(table), optimizer_(optimizer) {
  int64_t largest = 0;
  for (int g = 1; g < table.groups(); g++) largest = std::max(largest, table.group_size(g));
  embedding_ = ops.alloc(table.group_size(0) * 4, "gradients");
  layer_ = ops.alloc(largest * 4, "gradients");
}

void PerLayerSink::complete(int group) {
  sum_squares_ += group_sum_squares(ops_, table_, group, buffer(group));
  optimizer_.update(group, buffer(group), 1.0);
}

StepNorm PerLayerSink::finish_step() { return {.grad_norm = std::sqrt(sum_squares_)}; }

}  // namespace loqal
