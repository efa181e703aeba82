// Reference: every operation of ops/ops.h once more, as scalar templates and plain loops over
//   double                  the value that a test expects,
//   std::complex<double>    the derivative: f'(x) = Im f(x + ih) / h, h = 1e-30, exact to rounding
//                           (Squire & Trapp 1998); reference_test.cc checks every backward here
//                           that way,
//   Err                     the value and a bound of the error of evaluating it in fp32 or bf16.
// Nothing here is shared with the implementations, so nothing can be wrong in both.
#pragma once
#include <cmath>
#include <complex>
#include <cstdint>
#include <vector>

#include "test/ops/err.h"

namespace loqal::test {

inline double real_part(double x) { return x; }
inline double real_part(const std::complex<double>& x) { return x.real(); }
inline double real_part(const Err& x) { return x.v; }

/// What rounding to the compute type X adds to the error; u is its unit roundoff.
inline double rounded(double x, double) { return x; }
inline std::complex<double> rounded(std::complex<double> x, double) { return x; }
inline Err rounded(Err x, double u) { return {x.v, x.e + u * std::abs(x.v)}; }

template <class T>
struct Mat {
  int64_t rows = 0, cols = 0;
  std::vector<T> v;

  Mat() = default;
  Mat(int64_t rows_, int64_t cols_, T value = T(0))
      : rows(rows_), cols(cols_), v(size_t(rows_ * cols_), value) {}
  template <class U>
  explicit Mat(const Mat<U>& m) : rows(m.rows), cols(m.cols), v(m.v.begin(), m.v.end()) {}
  T& operator()(int64_t r, int64_t c) { return v[size_t(r * cols + c)]; }
  const T& operator()(int64_t r, int64_t c) const { return v[size_t(r * cols + c)]; }
};

using Ids = std::vector<int32_t>;

// ---- matrix products --------------------------------------------------------------------------

/// c = op(a) op(b) + old c + bias + residual; the last three may be empty.
template <class T>
Mat<T> ref_matmul(const Mat<T>& a, const Mat<T>& b, bool ta, bool tb, const Mat<T>& old,
                  const Mat<T>& bias, const Mat<T>& residual, double u) {
  const int64_t M = ta ? a.cols : a.rows, K = ta ? a.rows : a.cols, N = tb ? b.rows : b.cols;
  Mat<T> c(M, N);
  for (int64_t m = 0; m < M; m++)
    for (int64_t n = 0; n < N; n++) {
      T sum(0);
      for (int64_t k = 0; k < K; k++) sum += (ta ? a(k, m) : a(m, k)) * (tb ? b(n, k) : b(k, n));
      // Bias, residual and old value may each be added by a pass of its own, rounding in between;
      // cuBLASLt adds a bias in C's type only, and to a single row or column not at all.
      if (bias.rows && (M == 1 || N == 1)) sum = rounded(sum, u);
      if (bias.rows) sum = rounded(sum + rounded(bias(0, n), u), u);
      if (residual.rows) sum = rounded(sum + residual(m, n), u);
      if (old.rows) sum = rounded(sum + old(m, n), u);
      c(m, n) = rounded(sum, u);
    }
  return c;
}

template <class T>
Mat<T> ref_column_sums(const Mat<T>& dy) {
  Mat<T> sum(1, dy.cols);
  for (int64_t r = 0; r < dy.rows; r++)
    for (int64_t c = 0; c < dy.cols; c++) sum(0, c) += dy(r, c);
  return sum;
}

/// sum += old, element by element; what every accumulating output does.
template <class T>
Mat<T> ref_add(Mat<T> sum, const Mat<T>& old, double u) {
  for (size_t i = 0; i < sum.v.size(); i++) sum.v[i] = rounded(sum.v[i] + old.v[i], u);
  return sum;
}

// ---- embedding --------------------------------------------------------------------------------

template <class T>
Mat<T> ref_embedding(const Ids& tokens, const Mat<T>& wte, const Mat<T>& wpe, int64_t seq,
                     double u) {
  Mat<T> x(int64_t(tokens.size()), wte.cols);
  for (int64_t n = 0; n < x.rows; n++)
    for (int64_t c = 0; c < x.cols; c++) {
      const T e = wte(tokens[size_t(n)], c);
      x(n, c) = wpe.rows ? rounded(e + wpe(n % seq, c), u) : e;
    }
  return x;
}

template <class T>
Mat<T> ref_embedding_backward(const Mat<T>& dx, const std::vector<int64_t>& row_of, int64_t rows) {
  Mat<T> dw(rows, dx.cols);
  for (int64_t n = 0; n < dx.rows; n++)
    for (int64_t c = 0; c < dx.cols; c++) dw(row_of[size_t(n)], c) += dx(n, c);
  return dw;
}

// ---- norms ------------------------------------------------------------------------------------

template <class T>
struct RefNorm {
  Mat<T> y, stats;
};

template <class T>
RefNorm<T> ref_layernorm(const Mat<T>& x, const Mat<T>& w, const Mat<T>& b, double eps, double u) {
  using std::sqrt;
  RefNorm<T> r{Mat<T>(x.rows, x.cols), Mat<T>(2, x.rows)};
  const T C = T(double(x.cols));
  for (int64_t n = 0; n < x.rows; n++) {
    T mean(0), var(0);
    for (int64_t c = 0; c < x.cols; c++) mean += x(n, c);
    mean = mean / C;
    for (int64_t c = 0; c < x.cols; c++) var += (x(n, c) - mean) * (x(n, c) - mean);
    const T rstd = T(1) / sqrt(var / C + T(eps));
    r.stats(0, n) = mean;
    r.stats(1, n) = rstd;
    for (int64_t c = 0; c < x.cols; c++)
      r.y(n, c) = rounded((x(n, c) - mean) * rstd * w(0, c) + b(0, c), u);
  }
  return r;
}

template <class T>
RefNorm<T> ref_rmsnorm(const Mat<T>& x, const Mat<T>& w, double eps, double u) {
  using std::sqrt;
  RefNorm<T> r{Mat<T>(x.rows, x.cols), Mat<T>(1, x.rows)};
  for (int64_t n = 0; n < x.rows; n++) {
    T sum(0);
    for (int64_t c = 0; c < x.cols; c++) sum += x(n, c) * x(n, c);
    const T rstd = T(1) / sqrt(sum / T(double(x.cols)) + T(eps));
    r.stats(0, n) = rstd;
    for (int64_t c = 0; c < x.cols; c++) r.y(n, c) = rounded(x(n, c) * rstd * w(0, c), u);
  }
  return r;
}

template <class T>
struct RefNormGrad {
  Mat<T> dx, dw, db;
};

/// Both norms: with mean = 0 and no term for it, layernorm's gradient is rmsnorm's.
template <class T>
RefNormGrad<T> ref_norm_backward(const Mat<T>& dy, const Mat<T>& x, const Mat<T>& w,
                                 const Mat<T>& stats, bool centered, double u) {
  RefNormGrad<T> g{Mat<T>(x.rows, x.cols), Mat<T>(1, x.cols), Mat<T>(1, x.cols)};
  const T C = T(double(x.cols));
  for (int64_t n = 0; n < x.rows; n++) {
    const T mean = centered ? stats(0, n) : T(0), rstd = stats(centered ? 1 : 0, n);
    T sum(0), dot(0);
    for (int64_t c = 0; c < x.cols; c++) {
      const T xhat = (x(n, c) - mean) * rstd, dxhat = dy(n, c) * w(0, c);
      sum += dxhat;
      dot += dxhat * xhat;
      g.dw(0, c) += dy(n, c) * xhat;
      g.db(0, c) += dy(n, c);
    }
    for (int64_t c = 0; c < x.cols; c++) {
      const T xhat = (x(n, c) - mean) * rstd;
      const T centre = centered ? sum / C : T(0);
      g.dx(n, c) = rounded(rstd * (dy(n, c) * w(0, c) - centre - xhat * (dot / C)), u);
    }
  }
  return g;
}

// ---- attention --------------------------------------------------------------------------------

template <class T>
Mat<T> ref_rope(Mat<T> x, const Mat<T>& table, int64_t seq, int64_t HS, bool inverse, double u) {
  const int64_t half = HS / 2;
  for (int64_t n = 0; n < x.rows; n++)
    for (int64_t c = 0; c < x.cols; c++) {
      if (c % HS >= half) continue;
      const T a = x(n, c), b = x(n, c + half), cosine = table(n % seq, c % HS);
      const T sine = inverse ? -table(n % seq, half + c % HS) : table(n % seq, half + c % HS);
      x(n, c) = rounded(a * cosine - b * sine, u);
      x(n, c + half) = rounded(b * cosine + a * sine, u);
    }
  return x;
}

struct RefShape {
  int64_t B, T, NH, NKV, HS;
};

template <class T>
struct RefAttention {
  Mat<T> out, lse;
};

template <class T>
T ref_score(const Mat<T>& q, const Mat<T>& k, int64_t nq, int64_t nk, int64_t h, int64_t hk,
            int64_t HS) {
  T s(0);
  for (int64_t i = 0; i < HS; i++) s += q(nq, h * HS + i) * k(nk, hk * HS + i);
  return s * T(1 / std::sqrt(double(HS)));
}

template <class T>
RefAttention<T> ref_attention(const Mat<T>& q, const Mat<T>& k, const Mat<T>& v, const RefShape& s,
                              double u) {
  using std::exp, std::log;
  RefAttention<T> r{Mat<T>(s.B * s.T, s.NH * s.HS), Mat<T>(s.B * s.NH, s.T)};
  std::vector<T> p(static_cast<size_t>(s.T));
  for (int64_t b = 0; b < s.B; b++)
    for (int64_t h = 0; h < s.NH; h++)
      for (int64_t t = 0; t < s.T; t++) {
        const int64_t hk = h / (s.NH / s.NKV), n = b * s.T + t;
        double max = -1e300;  // a constant: softmax does not depend on it
        for (int64_t j = 0; j <= t; j++) {
          p[size_t(j)] = ref_score(q, k, n, b * s.T + j, h, hk, s.HS);
          max = std::max(max, real_part(p[size_t(j)]));
        }
        T sum(0);
        for (int64_t j = 0; j <= t; j++) sum += p[size_t(j)] = exp(p[size_t(j)] - T(max));
        r.lse(b * s.NH + h, t) = log(sum) + T(max);
        for (int64_t i = 0; i < s.HS; i++) {
          T o(0);  // in bf16 the probabilities may be rounded before they meet v
          for (int64_t j = 0; j <= t; j++)
            o += rounded(p[size_t(j)], u) * v(b * s.T + j, hk * s.HS + i);
          r.out(n, h * s.HS + i) = rounded(o / sum, u);
        }
      }
  return r;
}

template <class T>
struct RefAttentionGrad {
  Mat<T> dq, dk, dv;
};

template <class T>
RefAttentionGrad<T> ref_attention_backward(const Mat<T>& dout, const Mat<T>& out, const Mat<T>& lse,
                                           const Mat<T>& q, const Mat<T>& k, const Mat<T>& v,
                                           const RefShape& s, double u) {
  using std::exp;
  RefAttentionGrad<T> g{Mat<T>(q.rows, q.cols), Mat<T>(k.rows, k.cols), Mat<T>(v.rows, v.cols)};
  const T scale = T(1 / std::sqrt(double(s.HS)));
  for (int64_t b = 0; b < s.B; b++)
    for (int64_t h = 0; h < s.NH; h++)
      for (int64_t t = 0; t < s.T; t++) {
        const int64_t n = b * s.T + t, ch = h * s.HS, ck = h / (s.NH / s.NKV) * s.HS;
        T D(0);
        for (int64_t i = 0; i < s.HS; i++) D += dout(n, ch + i) * out(n, ch + i);
        for (int64_t j = 0; j <= t; j++) {
          const int64_t m = b * s.T + j;
          const T p =
              exp(ref_score(q, k, n, m, h, h / (s.NH / s.NKV), s.HS) - lse(b * s.NH + h, t));
          T dp(0);
          for (int64_t i = 0; i < s.HS; i++) dp += dout(n, ch + i) * v(m, ck + i);
          const T ds = rounded(p * (dp - D) * scale, u), px = rounded(p, u);
          for (int64_t i = 0; i < s.HS; i++) {
            g.dq(n, ch + i) += ds * k(m, ck + i);
            g.dk(m, ck + i) += ds * q(n, ch + i);
            g.dv(m, ck + i) += px * dout(n, ch + i);
          }
        }
      }
  for (Mat<T>* m : {&g.dq, &g.dk, &g.dv})
    for (T& x : m->v) x = rounded(x, u);
  return g;
}

// ---- activations ------------------------------------------------------------------------------

constexpr double kGelu = 0.7978845608028654;  // sqrt(2 / pi)

template <class T>
T ref_gelu(T x) {
  using std::tanh;
  return T(0.5) * x * (T(1) + tanh(T(kGelu) * (x + T(0.044715) * x * x * x)));
}

template <class T>
T ref_gelu_derivative(T x) {
  using std::tanh;
  const T t = tanh(T(kGelu) * (x + T(0.044715) * x * x * x));
  const T slope = T(kGelu) * (T(1) + T(3 * 0.044715) * x * x);
  return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * slope;
}

template <class T>
T ref_sigmoid(T x) {
  using std::exp;
  return T(1) / (T(1) + exp(-x));
}

template <class T>
T ref_swiglu(T gate, T up) {
  return gate * ref_sigmoid(gate) * up;
}

template <class T>
T ref_silu_derivative(T x) {
  const T s = ref_sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

// ---- head and loss ----------------------------------------------------------------------------

template <class T>
struct RefLoss {
  Mat<T> nll, dx, dw;
};

template <class T>
RefLoss<T> ref_linear_cross_entropy(const Mat<T>& x, const Mat<T>& w, const Ids& targets,
                                    double scale, bool gradients, double u) {
  using std::exp, std::log;
  const int64_t N = x.rows, C = x.cols, V = w.rows;
  RefLoss<T> r{Mat<T>(1, N), Mat<T>(N, C), Mat<T>(V, C)};
  std::vector<T> l(static_cast<size_t>(V));
  for (int64_t n = 0; n < N; n++) {
    const int64_t target = targets[size_t(n)];
    if (target < 0) continue;
    double max = -1e300;
    for (int64_t j = 0; j < V; j++) {
      T sum(0);
      for (int64_t c = 0; c < C; c++) sum += x(n, c) * w(j, c);
      l[size_t(j)] = sum;
      if (!(real_part(sum) <= max)) max = real_part(sum);
    }
    T sum(0);
    for (int64_t j = 0; j < V; j++) sum += exp(l[size_t(j)] - T(max));
    const T lse = log(sum) + T(max);
    r.nll(0, n) = lse - l[size_t(target)];
    if (!gradients) continue;
    for (int64_t j = 0; j < V; j++) {
      const T d = rounded(T(scale) * (exp(l[size_t(j)] - lse) - T(j == target ? 1 : 0)), u);
      for (int64_t c = 0; c < C; c++) {
        r.dx(n, c) += d * w(j, c);
        r.dw(j, c) += d * x(n, c);
      }
    }
  }
  for (T& d : r.dx.v) d = rounded(d, u);
  return r;
}

// ---- optimizer --------------------------------------------------------------------------------

struct RefAdamW {
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
};

/// One element, one step, PyTorch's order.
template <class T>
void ref_adamw(T& p, T& m, T& v, T g, const RefAdamW& a, int64_t step) {
  using std::sqrt;
  g = g * T(a.grad_scale);
  p = p - T(a.lr * a.weight_decay) * p;
  m = T(a.beta1) * m + T(1 - a.beta1) * g;
  v = T(a.beta2) * v + T(1 - a.beta2) * g * g;
  const T vhat = v / T(1 - std::pow(a.beta2, double(step)));
  p = p - T(a.lr / (1 - std::pow(a.beta1, double(step)))) * m / (sqrt(vhat) + T(a.eps));
}

}  // namespace loqal::test
