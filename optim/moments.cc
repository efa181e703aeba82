#include "optim/moments.h"

#include <algorithm>

#include "ops/block_codec.h"

namespace loqal {

namespace {
int64_t blocks(int64_t numel) { return (numel + kMomentBlock - 1) / kMomentBlock; }
int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }
}  // namespace

Moments::Moments(Ops& ops, const std::vector<std::pair<int64_t, int64_t>>& shapes, int bits)
    : ops_(ops) {
  LOQAL_ASSERT(bits == 32 || bits == 8, bits, " bits");
  int64_t end = 0;
  for (const auto& [rows, cols] : shapes) {
    const int64_t n = rows * cols;
    const bool fp32 = bits == 32 || n < kSmallest;
    parts_.push_back({rows, cols, end, fp32});
    end += fp32 ? padded(4 * n) : padded(n) + padded(4 * blocks(n));
  }
  m_ = ops.alloc(end, "optimizer state");
  v_ = ops.alloc(end, "optimizer state");
}

Tensor Moments::values(const Buffer& buffer, int i) const {
  const Part& part = parts_[size_t(i)];
  char* base = buffer.as<char>();
  return {base ? base + part.at : nullptr, DType::F32, part.rows, part.cols};
}

Moment8 Moments::codes(const Buffer& buffer, int i) const {
  const Part& part = parts_[size_t(i)];
  char* at = buffer.as<char>() ? buffer.as<char>() + part.at : nullptr;
  const int64_t n = part.rows * part.cols;
  return {{at, DType::U8, part.rows, part.cols},
          {at ? at + padded(n) : nullptr, DType::F32, 1, blocks(n)}};
}

void Moments::step(int i, const Tensor& p, const Tensor& copy, const Tensor& g,
                   const AdamWArgs& args) {
  if (parts_[size_t(i)].fp32) ops_.adamw(p, copy, g, values(m_, i), values(v_, i), args);
  else ops_.adamw8bit(p, copy, g, codes(m_, i), codes(v_, i), args);
}

std::vector<NamedState> Moments::states(int i) const {
  if (parts_[size_t(i)].rows == 0) return {};
  if (parts_[size_t(i)].fp32) return {{"adam_m", values(m_, i)}, {"adam_v", values(v_, i)}};
  const Moment8 m = codes(m_, i), v = codes(v_, i);
  return {{"adam_m", m.codes},
          {"adam_m_absmax", m.absmax},
          {"adam_v", v.codes},
          {"adam_v_absmax", v.absmax}};
}

namespace {

// 8 bits on the host, where refreshes need moments as numbers; other steps never come here.
struct HostMoment {
  std::vector<uint8_t> codes;
  std::vector<float> absmax, values;
};

HostMoment read_codes(Ops& ops, const Moment8& moment, const codec::DynamicMap& map) {
  HostMoment host;
  host.codes.resize(size_t(moment.codes.numel()));
  host.absmax.resize(size_t(moment.absmax.numel()));
  ops.download(host.codes.data(), moment.codes);
  ops.download(host.absmax.data(), moment.absmax);
  host.values.resize(host.codes.size());
  for (size_t i = 0; i < host.codes.size(); i++)
    host.values[i] = map.value[host.codes[i]] * host.absmax[i / kMomentBlock];
  return host;
}

template <class Code>
void write_codes(Ops& ops, const Moment8& moment, const Tensor& from, const Code& code) {
  HostMoment host;
  host.codes.resize(size_t(from.numel()));
  host.absmax.resize(size_t(moment.absmax.numel()));
  host.values.resize(host.codes.size());
  ops.download(host.values.data(), from);
  for (size_t b = 0; b < host.absmax.size(); b++) {
    const size_t first = b * kMomentBlock,
                 last = std::min(host.codes.size(), first + size_t(kMomentBlock));
    uint32_t largest = 0;
    for (size_t i = first; i < last; i++)
      largest = std::max(largest, codec::magnitude(host.values[i]));
    host.absmax[b] = codec::block_absmax(largest);
    const float inverse = codec::inverse(host.absmax[b]);
    for (size_t i = first; i < last; i++) host.codes[i] = uint8_t(code(host.values[i], inverse));
  }
  ops.upload(moment.codes, host.codes.data());
  ops.upload(moment.absmax, host.absmax.data());
}

}  // namespace

void Moments::read(const Tensor& m, const Tensor& v, int i) const {
  const auto one = [&](const Tensor& to, const Buffer& from, bool is_signed) {
    if (!to) return;
    if (parts_[size_t(i)].fp32) return ops_.copy(to, values(from, i));
    const auto map = codec::make_dynamic_map(is_signed);
    ops_.upload(to, read_codes(ops_, codes(from, i), map).values.data());
  };
  one(m, m_, true);
  one(v, v_, false);
}

void Moments::write(int i, const Tensor& m, const Tensor& v) {
  if (parts_[size_t(i)].fp32) {
    ops_.copy(values(m_, i), m);
    ops_.copy(values(v_, i), v);
    return;
  }
  const auto first = codec::make_dynamic_map(true), second = codec::make_dynamic_map(false);
  write_codes(ops_, codes(m_, i), m, [&](float x, float inverse) {
    return codec::first_moment_code(first.value, x, inverse);
  });
  write_codes(ops_, codes(v_, i), v, [&](float x, float inverse) {
    return codec::second_moment_code(second.value, x, inverse);
  });
}

void Moments::reset(int i) {
  // 8-bit: a block whose absmax is zero is zero, whatever its codes.
  for (const NamedState& state : states(i))
    if (state.tensor.dtype == DType::F32) ops_.fill(state.tensor, 0);
}

}  // namespace loqal
