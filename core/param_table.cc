#include "core/param_table.h"

#include <utility>

namespace loqal {

int ParamTable::add(const std::string& name, std::vector<int64_t> shape, int group, Role role,
                    Segment segment) {
  return add(Param{.name = name,
                   .shape = std::move(shape),
                   .group = group,
                   .role = role,
                   .segment = segment,
                   .rate = role == Role::matrix ? 1 : plan_.dense_rate});
}

int ParamTable::add(Param p) {
  LOQAL_ASSERT(group_begin_.empty(), "the table is committed; cannot add ", p.name);
  LOQAL_ASSERT(!p.shape.empty() && p.shape.size() <= 2, p.name, " must have 1 or 2 dimensions");
  LOQAL_ASSERT(params_.empty()
                   ? p.group == 0
                   : p.group - params_.back().group <= 1 && p.group >= params_.back().group,
               p.name, ": groups must be registered in order");
  LOQAL_ASSERT(find(p.name) < 0, p.name, " is registered twice");
  LOQAL_ASSERT(!p.trainable() || !p.format, p.name, " is trained and cannot be quantized");
  const bool factor = p.role == Role::factor;
  p.id = params_.empty() ? 0 : params_.back().id + (factor ? 0 : 1);
  params_.push_back(std::move(p));
  return size() - 1;
}

int64_t Param::frozen_bytes() const {
  return format ? format.bytes(numel()) : numel() * int64_t(sizeof(float));
}

void ParamTable::commit() {
  LOQAL_ASSERT(group_begin_.empty() && !params_.empty(), "commit once, after registering");
  const auto aligned = [](int64_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  int64_t offset = 0, grad_offset = 0;
  for (Param& p : params_) {
    while (int(group_begin_.size()) <= p.group)
      group_begin_.push_back(offset), grad_begin_.push_back(grad_offset);
    if (!p.trainable()) {
      p.offset = std::exchange(frozen_bytes_, frozen_bytes_ + aligned(p.frozen_bytes()));
      continue;
    }
    p.offset = std::exchange(offset, offset + aligned(p.numel()));
    p.grad_offset =
        std::exchange(grad_offset, grad_offset + aligned(p.grad_numel ? p.grad_numel : p.numel()));
    if (p.shape.size() == 1)
      p.vector_offset = std::exchange(vector_elements_, vector_elements_ + aligned(p.numel()));
  }
  group_begin_.push_back(offset), grad_begin_.push_back(grad_offset);
}

int ParamTable::find(const std::string& name) const {
  for (int i = 0; i < size(); i++)
    if (params_[size_t(i)].name == name) return i;
  return -1;
}

int64_t ParamTable::numel() const {
  int64_t n = 0;
  for (const Param& p : params_)
    if (p.segment == Segment::trainable) n += p.numel();
  return n;
}

Tensor ParamTable::view(int index, void* base, DType dtype) const {
  const Param& p = (*this)[index];
  return {base ? static_cast<char*>(base) + p.offset * int64_t(size_of(dtype)) : nullptr, dtype,
          p.rows(), p.cols()};
}

Tensor ParamTable::gradient(int index, float* group_base) const {
  const Param& p = (*this)[index];
  float* const base =
      group_base ? group_base - grad_group_offset(p.group) + p.grad_offset : nullptr;
  return {base, p.rows(), p.cols()};
}

Tensor ParamTable::frozen(int index, void* base) const {
  const Param& p = (*this)[index];
  return {base ? static_cast<char*>(base) + p.offset : nullptr, DType::F32, p.rows(), p.cols()};
}

QTensor ParamTable::quantized(int index, void* base) const {
  const Param& p = (*this)[index];
  return {base ? static_cast<char*>(base) + p.offset : nullptr, p.format, p.rows(), p.cols()};
}

Tensor ParamTable::vector_view(int index, void* base) const {
  const Param& p = (*this)[index];
  return {base ? static_cast<float*>(base) + p.vector_offset : nullptr, DType::F32, 1, p.cols()};
}

}  // namespace loqal
