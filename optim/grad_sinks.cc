#include "optim/grad_sinks.h"

#include <algorithm>
#include <cmath>

namespace loqal {

FullGradSink::FullGradSink(Ops& ops, const ParamTable& table, Updater& updater, double clip)
    : table_(table),
      updater_(updater),
      clip_(clip),
      grads_(ops.alloc(table.grad_elements() * 4, "gradients")) {}

StepNorm FullGradSink::finish_step() {
  double squares = 0;
  for (int g = 0; g < table_.groups(); g++) squares += updater_.sum_squares(g, buffer(g));
  StepNorm norm{.grad_norm = std::sqrt(squares)};
  norm.scale = clip_scale(norm.grad_norm, clip_);
  for (int g = 0; g < table_.groups(); g++) updater_.update(g, buffer(g), norm.scale);
  return norm;
}

PerLayerSink::PerLayerSink(Ops& ops, const ParamTable& table, Updater& updater)
    : table_(table), updater_(updater) {
  int64_t largest = 0;
  for (int g = 1; g < table.groups(); g++) largest = std::max(largest, table.grad_group_size(g));
  embedding_ = ops.alloc(table.grad_group_size(0) * 4, "gradients");
  layer_ = ops.alloc(largest * 4, "gradients");
}

void PerLayerSink::complete(int group) {
  sum_squares_ += updater_.sum_squares(group, buffer(group));
  updater_.update(group, buffer(group), 1.0);
}

StepNorm PerLayerSink::finish_step() { return {.grad_norm = std::sqrt(sum_squares_)}; }

}  // namespace loqal
