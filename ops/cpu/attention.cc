// RoPE and causal attention by blocks with online softmax (Milakov & Gimelshein 2018; Dao et al.
// 2022). A task is one (sequence, head): its keys and values are brought into fp32 scratch, padded
// to whole vectors, and T x T scores exist only as one kQ x kK block in L1.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/microkernel.h"
#include "ops/cpu/simd.h"
#include "ops/cpu/transpose.h"

namespace loqal {

using cpu::small_gemm;
using simd::vf;

namespace {

constexpr int64_t kQ = 48, kK = 64;  // rows (queries) and columns (keys) of a block of scores

int64_t padded(int64_t n) { return (n + 15) / 16 * 16; }

// Slices of one thread's scratch, taken in order.
class Scratch {
 public:
  explicit Scratch(int64_t floats) {
    if (int64_t(store().size()) < floats) store().resize(size_t(floats));
    next_ = store().data();
  }
  float* take(int64_t floats) { return std::exchange(next_, next_ + floats); }

 private:
  static std::vector<float>& store() {
    thread_local std::vector<float> memory;
    return memory;
  }
  float* next_;
};

// to[t][d] = scale * x[t][column d of head], zero for d in [HS, HSp).
template <class X>
void load_head(const Tensor& x, int64_t row, int64_t T, int64_t column, int64_t HS, int64_t HSp,
               float scale, float* to) {
  const vf s = simd::splat(scale);
  for (int64_t t = 0; t < T; t++, to += HSp) {
    simd::map(
        HS, [s](vf v) { return v * s; }, to, x.row<X>(row + t) + column);
    std::fill(to + HS, to + HSp, 0.0f);
  }
}

template <class X>
void store_head(const Tensor& x, int64_t row, int64_t T, int64_t column, int64_t HS, int64_t HSp,
                float scale, const float* from) {
  const vf s = simd::splat(scale);
  for (int64_t t = 0; t < T; t++, from += HSp)
    simd::map(
        HS, [s](vf v) { return v * s; }, x.row<X>(row + t) + column, from);
}

// to[d][t] = from[t][d]; columns [T, Tp) are zero.
void transpose(const float* from, int64_t T, int64_t Tp, int64_t HSp, float* to) {
  for (int64_t t = 0; t < Tp; t += simd::kSide)
    for (int64_t d = 0; d < HSp; d += simd::kSide) {
      simd::Row block[simd::kSide];
#pragma GCC unroll 8
      for (int r = 0; r < simd::kSide; r++)
        block[r] = t + r < T ? simd::load_row(from + (t + r) * HSp + d) : simd::Row{};
      simd::transpose(block);
#pragma GCC unroll 8
      for (int r = 0; r < simd::kSide; r++) simd::store_row(to + (d + r) * Tp + t, block[r]);
    }
}

// Scores above the diagonal become `value`. Row r is query q0 + r, column c is key k0 + c.
void mask(float* s, int64_t rows, int64_t cols, int64_t q0, int64_t k0, float value) {
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = std::max<int64_t>(0, q0 + r - k0 + 1); c < cols; c++) s[r * kK + c] = value;
}

struct Head {
  int64_t row;  // first row of the sequence
  int64_t q_col, k_col;
  int64_t index;  // row of lse
};

Head head_of(const AttentionShape& s, int64_t b, int64_t h) {
  return {b * s.T, h * s.HS, h / (s.NH / s.NKV) * s.HS, b * s.NH + h};
}

// The part of the block of queries [q0, q0 + rows) and keys from k0 on that the mask leaves: its
// first query (counted from q0), and columns, in whole vectors.
struct Visible {
  int64_t first, cols;
};

Visible visible(int64_t q0, int64_t rows, int64_t k0, int64_t Tp) {
  return {std::max<int64_t>(0, k0 - q0), std::min({kK, Tp - k0, padded(q0 + rows - k0)})};
}

// Folds one block of scores into the running softmax: s becomes unnormalised probabilities, the
// output so far is rescaled to the new maximum.
void online_softmax(float* s, int64_t rows, int64_t cols, float* top, float* total, float* out,
                    int64_t HSp) {
  for (int64_t r = 0; r < rows; r++) {
    float* row = s + r * kK;
    vf high = simd::load(row);
    for (int64_t c = simd::kWidth; c < cols; c += simd::kWidth)
      high = simd::max(high, simd::load(row + c));
    const float peak = std::max(top[r], simd::max_lane(high));
    const vf shift = simd::splat(peak);
    vf sum = {};
    for (int64_t c = 0; c < cols; c += simd::kWidth) {
      const vf p = simd::exp(simd::load(row + c) - shift);
      simd::store(row + c, p);
      sum += p;
    }
    const float keep = std::exp(top[r] - peak);
    total[r] = total[r] * keep + simd::sum(sum);
    if (keep != 1.0f)
      simd::map(
          HSp, [k = simd::splat(keep)](vf v) { return v * k; }, out + r * HSp, out + r * HSp);
    top[r] = peak;
  }
}

template <class X>
void forward_head(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                  const Tensor& v, const AttentionShape& s, const Head& head) {
  const int64_t T = s.T, Tp = padded(T), HS = s.HS, HSp = padded(HS);
  Scratch scratch(3 * Tp * HSp + 2 * kQ * HSp + kQ * kK + 2 * kQ);
  float *keys = scratch.take(Tp * HSp), *keys_t = scratch.take(Tp * HSp),
        *values = scratch.take(Tp * HSp);
  float *qb = scratch.take(kQ * HSp), *ob = scratch.take(kQ * HSp), *sb = scratch.take(kQ * kK);
  float *top = scratch.take(kQ), *total = scratch.take(kQ);
  load_head<X>(k, head.row, T, head.k_col, HS, HSp, 1.0f, keys);
  load_head<X>(v, head.row, T, head.k_col, HS, HSp, 1.0f, values);
  std::fill(values + T * HSp, values + Tp * HSp, 0.0f);
  transpose(keys, T, Tp, HSp, keys_t);
  const float scale = 1.0f / std::sqrt(float(HS));
  for (int64_t q0 = 0; q0 < T; q0 += kQ) {
    const int64_t rows = std::min(kQ, T - q0);
    load_head<X>(q, head.row + q0, rows, head.q_col, HS, HSp, scale, qb);
    std::fill_n(ob, rows * HSp, 0.0f);
    std::fill_n(top, rows, -INFINITY);
    std::fill_n(total, rows, 0.0f);
    for (int64_t k0 = 0; k0 < q0 + rows; k0 += kK) {
      const auto [first, cols] = visible(q0, rows, k0, Tp);
      const int64_t n = rows - first;
      float *queries = qb + first * HSp, *outputs = ob + first * HSp;
      small_gemm(n, cols, HSp, queries, HSp, 1, keys_t + k0, Tp, sb, kK, false);
      if (k0 + cols > q0 + first + 1) mask(sb, n, cols, q0 + first, k0, -INFINITY);
      online_softmax(sb, n, cols, top + first, total + first, outputs, HSp);
      small_gemm(n, HSp, cols, sb, kK, 1, values + k0 * HSp, HSp, outputs, HSp, true);
    }
    float* log_sum = lse.row<float>(head.index) + q0;
    for (int64_t r = 0; r < rows; r++) {
      store_head<X>(out, head.row + q0 + r, 1, head.q_col, HS, HSp, 1.0f / total[r], ob + r * HSp);
      log_sum[r] = top[r] + std::log(total[r]);
    }
  }
}

// p = exp(s - lse) and s = p * (dp - delta), row by row.
void probabilities_and_dscores(float* s, float* p, const float* dp, int64_t rows, int64_t cols,
                               const float* lse, const float* delta) {
  for (int64_t r = 0; r < rows; r++) {
    const vf shift = simd::splat(lse[r]), d = simd::splat(delta[r]);
    float *srow = s + r * kK, *prow = p + r * kK;
    simd::map(
        cols, [shift](vf x) { return simd::exp(x - shift); }, prow, srow);
    simd::map(
        cols, [d](vf x, vf g) { return x * (g - d); }, srow, prow, dp + r * kK);
  }
}

// All query heads of one key/value head, so that dk and dv have one owner.
template <class X>
void backward_group(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                    const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                    const Tensor& v, const AttentionShape& s, int64_t b, int64_t kv_head) {
  const int64_t T = s.T, Tp = padded(T), HS = s.HS, HSp = padded(HS), group = s.NH / s.NKV;
  Scratch scratch(6 * Tp * HSp + 4 * kQ * HSp + 3 * kQ * kK + kQ);
  float *keys = scratch.take(Tp * HSp), *keys_t = scratch.take(Tp * HSp),
        *values = scratch.take(Tp * HSp);
  float *values_t = scratch.take(Tp * HSp), *dkeys = scratch.take(Tp * HSp),
        *dvalues = scratch.take(Tp * HSp);
  float *qb = scratch.take(kQ * HSp), *gb = scratch.take(kQ * HSp), *ob = scratch.take(kQ * HSp);
  float *dqb = scratch.take(kQ * HSp), *sb = scratch.take(kQ * kK), *pb = scratch.take(kQ * kK);
  float *dpb = scratch.take(kQ * kK), *delta = scratch.take(kQ);
  const int64_t row = b * T, kv_col = kv_head * HS;
  load_head<X>(k, row, T, kv_col, HS, HSp, 1.0f, keys);
  load_head<X>(v, row, T, kv_col, HS, HSp, 1.0f, values);
  std::fill(keys + T * HSp, keys + Tp * HSp, 0.0f);
  transpose(keys, T, Tp, HSp, keys_t);
  transpose(values, T, Tp, HSp, values_t);
  std::fill_n(dkeys, Tp * HSp, 0.0f);
  std::fill_n(dvalues, Tp * HSp, 0.0f);
  const float scale = 1.0f / std::sqrt(float(HS));
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
    const Head head = head_of(s, b, h);
    for (int64_t q0 = 0; q0 < T; q0 += kQ) {
      const int64_t rows = std::min(kQ, T - q0);
      load_head<X>(q, row + q0, rows, head.q_col, HS, HSp, scale, qb);
      load_head<X>(dout, row + q0, rows, head.q_col, HS, HSp, 1.0f, gb);
      load_head<X>(out, row + q0, rows, head.q_col, HS, HSp, 1.0f, ob);
      for (int64_t r = 0; r < rows; r++)
        delta[r] = simd::map_sum(
            HSp, [](vf x, vf g) { return x * g; }, ob + r * HSp, gb + r * HSp);
      std::fill_n(dqb, rows * HSp, 0.0f);
      const float* log_sum = lse.row<float>(head.index) + q0;
      for (int64_t k0 = 0; k0 < q0 + rows; k0 += kK) {
        const auto [first, cols] = visible(q0, rows, k0, Tp);
        const int64_t n = rows - first;
        const float *queries = qb + first * HSp, *grads = gb + first * HSp;
        small_gemm(n, cols, HSp, queries, HSp, 1, keys_t + k0, Tp, sb, kK, false);
        if (k0 + cols > q0 + first + 1) mask(sb, n, cols, q0 + first, k0, -INFINITY);
        small_gemm(n, cols, HSp, grads, HSp, 1, values_t + k0, Tp, dpb, kK, false);
        probabilities_and_dscores(sb, pb, dpb, n, cols, log_sum + first, delta + first);
        small_gemm(cols, HSp, n, pb, 1, kK, grads, HSp, dvalues + k0 * HSp, HSp, true);
        small_gemm(n, HSp, cols, sb, kK, 1, keys + k0 * HSp, HSp, dqb + first * HSp, HSp, true);
        small_gemm(cols, HSp, n, sb, 1, kK, queries, HSp, dkeys + k0 * HSp, HSp, true);
      }
      store_head<X>(dq, row + q0, rows, head.q_col, HS, HSp, scale, dqb);
    }
  }
  store_head<X>(dk, row, T, kv_col, HS, HSp, 1.0f, dkeys);  // qb holds the factor 1/sqrt(HS)
  store_head<X>(dv, row, T, kv_col, HS, HSp, 1.0f, dvalues);
}

}  // namespace

void CpuOps::do_rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS, bool inverse) {
  const int64_t half = HS / 2, heads = x.cols / HS;
  const vf sign = simd::splat(inverse ? -1.0f : 1.0f);
  const auto first_half = [sign](vf a, vf b, vf c, vf s) { return a * c - b * (s * sign); };
  const auto second_half = [sign](vf a, vf b, vf c, vf s) { return b * c + a * (s * sign); };
  dispatch(x, [&](auto type) {
    using X = decltype(type);
    for_rows(x.rows, x.cols, [&](int64_t first, int64_t last) {
      thread_local std::vector<float> old;
      old.resize(size_t(HS));
      float *a = old.data(), *b = a + half;
      for (int64_t n = first; n < last; n++) {
        const float *cosine = table.row<float>(n % T), *sine = cosine + half;
        for (int64_t h = 0; h < heads; h++) {
          X* p = x.row<X>(n) + h * HS;
          simd::map(
              HS, [](vf v) { return v; }, a, p);
          simd::map(half, first_half, p, a, b, cosine, sine);
          simd::map(half, second_half, p + half, a, b, cosine, sine);
        }
      }
    });
  });
}

void CpuOps::do_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                                  const Tensor& k, const Tensor& v, const AttentionShape& s) {
  dispatch(q, [&](auto type) {
    pool_.run(s.B * s.NH, [&](int64_t task) {
      forward_head<decltype(type)>(out, lse, q, k, v, s, head_of(s, task / s.NH, task % s.NH));
    });
  });
}

void CpuOps::do_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                   const Tensor& dout, const Tensor& out, const Tensor& lse,
                                   const Tensor& q, const Tensor& k, const Tensor& v,
                                   const AttentionShape& s) {
  dispatch(q, [&](auto type) {
    pool_.run(s.B * s.NKV, [&](int64_t task) {
      backward_group<decltype(type)>(dq, dk, dv, dout, out, lse, q, k, v, s, task / s.NKV,
                                     task % s.NKV);
    });
  });
}

}  // namespace loqal
