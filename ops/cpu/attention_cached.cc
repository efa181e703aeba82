// Attention of a few new positions over a cache of keys and values. Each key is used once per head:
// the pass is bound by reading the cache, so keys and values are read in place, row by row.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/simd.h"

namespace loqal {

using simd::vf;

namespace {

// One head of one query over S positions. The rows of k and v are `ld` elements apart.
template <class X>
void attend_row(X* out, const X* q, const X* k, const X* v, int64_t S, int64_t ld, int64_t HS) {
  thread_local std::vector<float> query, scores, sum;
  query.resize(size_t(HS)), scores.resize(size_t(S)), sum.assign(size_t(HS), 0.0f);
  const vf scale = simd::splat(1.0f / std::sqrt(float(HS)));
  simd::map(
      HS, [scale](vf x) { return x * scale; }, query.data(), q);
  for (int64_t s = 0; s < S; s++)
    scores[size_t(s)] = simd::map_sum(
        HS, [](vf a, vf b) { return a * b; }, query.data(), k + s * ld);
  const vf top = simd::splat(*std::max_element(scores.begin(), scores.end()));
  simd::map(
      S, [top](vf x) { return simd::exp(x - top); }, scores.data(), scores.data());
  const float total = simd::map_sum(
      S, [](vf x) { return x; }, scores.data());
  for (int64_t s = 0; s < S; s++)
    simd::map(
        HS, [p = simd::splat(scores[size_t(s)])](vf a, vf b) { return a + p * b; }, sum.data(),
        sum.data(), v + s * ld);
  simd::map(
      HS, [total](vf x) { return x / total; }, out, sum.data());
}

}  // namespace

void CpuOps::do_attention_cached(const Tensor& out, const Tensor& q, const Tensor& k,
                                 const Tensor& v, int64_t HS) {
  const int64_t T = q.rows, past = k.rows - T, NH = q.cols / HS, group = NH / (k.cols / HS);
  dispatch(q, [&](auto type) {
    using X = decltype(type);
    pool_.run(T * NH, [&](int64_t task) {
      const int64_t t = task / NH, h = task % NH, kv = h / group * HS;
      attend_row(out.row<X>(t) + h * HS, q.row<X>(t) + h * HS, k.row<X>(0) + kv, v.row<X>(0) + kv,
                 past + t + 1, k.ld, HS);
    });
  });
}

}  // namespace loqal
