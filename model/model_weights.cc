// A model's tensors one by one: how they start, are read and written, and what they amount to.
#include <algorithm>
#include <cmath>
#include <span>

#include "core/philox.h"
#include "core/threads.h"
#include "model/model.h"

namespace loqal {

namespace {

void fill_normal(ThreadPool& pool, const PhiloxStream& stream, double deviation,
                 std::span<float> out) {
  pool.chunks(int64_t(out.size()), 1 << 14, [&](int64_t first, int64_t last) {
    for (int64_t k = first; k < last; k++)
      out[size_t(k)] = float(deviation * stream.normal(uint64_t(k)));
  });
}

}  // namespace

int64_t Model::real_rows(int index) const {
  const Role role = table_[index].role;
  return role == Role::embedding || role == Role::head ? config_.V : table_[index].rows();
}

int64_t Model::parameter_count() const {
  int64_t n = 0;
  for (int i = 0; i < table_.size(); i++)
    if (table_[i].segment == Segment::trainable) n += real_rows(i) * table_[i].cols();
  return n;
}

Tensor Model::parameter(int index) const {
  if (options_.P == DType::F32) return table_.view(index, master_.data(), DType::F32);
  return table_[index].shape.size() == 2 ? table_.view(index, copy_.data(), DType::BF16)
                                         : table_.vector_view(index, master_.data());
}

void Model::set_parameter(int index, const std::vector<float>& values) {
  if (table_[index].format) {
    const Tensor x(workspace_.as<float>(), table_[index].rows(), table_[index].cols());
    ops_.upload(x, values.data());
    return write(index, x);
  }
  const Tensor p =
      table_[index].trainable() ? parameter(index) : table_.frozen(index, frozen_.data());
  LOQAL_ASSERT(int64_t(values.size()) == p.numel(), table_[index].name);
  if (p.dtype == DType::F32) return ops_.upload(p, values.data());
  std::vector<bf16> slab;  // the host holds the tensor once already
  for (size_t at = 0; at < values.size(); at += slab.size()) {
    slab.resize(std::min(values.size() - at, size_t(1) << 20));
    std::transform(&values[at], &values[at] + slab.size(), slab.begin(), to_bf16);
    const Tensor flat(p.data, p.dtype, 1, p.numel());
    ops_.upload(flat.col_slice(int64_t(at), int64_t(slab.size())), slab.data());
  }
}

Tensor Model::held(int index) const {
  const Param& p = table_[index];
  if (p.format) return quantized(index).blob();
  if (!p.trainable()) return table_.frozen(index, frozen_.data());
  return parameter(index).row_slice(0, real_rows(index));
}

QTensor Model::quantized(int index) const { return table_.quantized(index, frozen_.data()); }

void Model::read(int index, const Tensor& to) {
  if (table_[index].format) ops_.dequantize(to, quantized(index));
  else if (table_[index].trainable()) ops_.copy(to, parameter(index));
  else ops_.copy(to, table_.frozen(index, frozen_.data()));
}

void Model::write(int index, const Tensor& from) {
  const Param& p = table_[index];
  if (p.format) {
    const bool factor = p.role == Role::factor;
    ops_.quantize(quantized(index), from, factor ? Rounding::nearest : table_.plan().rounding,
                  PhiloxStream(table_.plan().seed, Purpose::merge, 1, uint32_t(p.id)));
  } else if (!p.trainable()) {
    ops_.copy(table_.frozen(index, frozen_.data()), from);
  } else {
    ops_.copy(parameter(index), from);
    if (const Tensor copy = compute_copy(index)) ops_.copy(copy, from);
  }
}

void Model::effective(int weight, const Tensor& w, const Tensor& u, const Tensor& d) {
  read(weight, w);
  read(weight + 1, u);  // LowRank's order
  read(weight + 2, d);
  ops_.matmul(w, u, d, {.accumulate = true});
}

std::vector<float> Model::effective(int index) {
  const Param& p = table_[index];
  std::vector<float> host(size_t(p.numel()));
  if (p.trainable()) {
    const Buffer memory = ops_.alloc(p.numel() * 4, "scratch");
    const Tensor w(memory.as<float>(), p.rows(), p.cols());
    read(index, w);
    ops_.download(host.data(), w);
    return host;
  }
  const int64_t R = table_[index + 1].cols();
  const Tensor w(workspace_.as<float>(), p.rows(), p.cols()),
      u(w.as<float>() + w.numel(), p.rows(), R), d(u.as<float>() + u.numel(), R, p.cols());
  effective(index, w, u, d);
  ops_.download(host.data(), w);
  return host;
}

void Model::merge_factors() {
  for (int i = 0; i < table_.size(); i++) {
    if (table_[i].role != Role::matrix || table_[i].trainable()) continue;
    set_parameter(i, effective(i));
    for (const int factor : {i + 1, i + 2})
      set_parameter(factor, std::vector<float>(size_t(table_[factor].numel()), 0.0f));
  }
  refresh_compute_copy();
}

Tensor Model::compute_copy(int index) const {
  return has_copy() ? table_.view(index, copy_.data(), DType::BF16) : Tensor{};
}

void Model::refresh_compute_copy() {
  if (!has_copy()) return;
  const int64_t n = table_.elements();
  ops_.copy(Tensor(copy_.as<bf16>(), 1, n), Tensor(master_.as<float>(), 1, n));
}

std::vector<float> Model::random_values(int index, uint64_t seed) const {
  const Param& p = table_[index];
  std::vector<float> host(size_t(p.numel()), p.role == Role::norm ? 1.0f : 0.0f);
  if (p.shape.size() == 1) return host;
  ThreadPool pool(options_.threads > 0 ? options_.threads : usable_cpus());
  const bool into_residual =
      config_.arch == Arch::gpt2 && p.name.find("c_proj") != std::string::npos;
  const double deviation = into_residual ? 0.02 / std::sqrt(2.0 * double(config_.L)) : 0.02;
  fill_normal(pool, PhiloxStream(seed, Purpose::init, 0, uint32_t(p.id)), deviation,
              {host.data(), size_t(real_rows(index) * p.cols())});
  return host;
}

void Model::init_random(uint64_t seed) {
  for (int i = 0; i < table_.size(); i++)
    if (table_[i].role != Role::constant && table_[i].role != Role::factor)
      set_parameter(i, random_values(i, seed));
  init_factors(seed);
  refresh_compute_copy();
}

void Model::init_factors(int weight, uint64_t seed, int64_t step) {
  ThreadPool pool(options_.threads > 0 ? options_.threads : usable_cpus());
  for (int i = weight + 1; i <= weight + 2; i++) {
    const Param& p = table_[i];
    std::vector<float> host(size_t(p.numel()), 0.0f);
    if (options_.matrices.kind == MatrixPlan::Kind::lora && i == weight + 2)
      fill_normal(pool, PhiloxStream(seed, Purpose::factor, 0, uint32_t(p.id), uint64_t(step)),
                  options_.matrices.scale / std::sqrt(double(p.cols())), host);
    set_parameter(i, host);
    if (!p.trainable()) continue;
    if (const Tensor copy = compute_copy(i)) ops_.copy(copy, parameter(i));
  }
}

void Model::init_factors(uint64_t seed) {
  for (int i = 0; i < table_.size(); i++)
    if (table_[i].role == Role::matrix && !table_[i].trainable()) init_factors(i, seed, 0);
}

}  // namespace loqal
