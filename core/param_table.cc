#include "core/param_table.h"

namespace loqal {

int ParamTable::add(const std::string& name, std::vector<int64_t> shape, int group, Role role,
                    Segment segment) {
  LOQAL_ASSERT(group_begin_.empty(), "the table is committed; cannot add ", name);
  LOQAL_ASSERT(!shape.empty() && shape.size() <= 2, name, " must have 1 or 2 dimensions");
  LOQAL_ASSERT(params_.empty() ? group == 0
                               : group - params_.back().group <= 1 && group >= params_.back().group,
               name, ": groups must be registered in order");
  LOQAL_ASSERT(find(name) < 0, name, " is registered twice");
  params_.push_back({name, std::move(shape), group, role, segment});
  return size() - 1;
}

void ParamTable::commit() {
  LOQAL_ASSERT(group_begin_.empty() && !params_.empty(), "commit once, after registering");
  int64_t offset = 0;
  for (Param& p : params_) {
    while (int(group_begin_.size()) <= p.group) group_begin_.push_back(offset);
    int64_t& end = p.segment == Segment::trainable ? offset : frozen_elements_;
    p.offset = end;
    const int64_t aligned = (p.numel() + kAlign - 1) / kAlign * kAlign;
    end += aligned;
    if (p.segment == Segment::trainable && p.shape.size() == 1) {
      p.vector_offset = vector_elements_;
      vector_elements_ += aligned;
    }
  }
  group_begin_.push_back(offset);
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

Tensor ParamTable::vector_view(int index, void* base) const {
  const Param& p = (*this)[index];
  return {base ? static_cast<float*>(base) + p.vector_offset : nullptr, DType::F32, 1, p.cols()};
}

}  // namespace loqal
