#include "quant/merge.h"

#include <cmath>

#include "core/error.h"

namespace loqal {

namespace {

bool left(const Factors& f) { return f.shape.side() == Side::left; }

// w += (x, P) in the order of the side; x is like B.
void add_scaled(Ops& ops, const Tensor& w, const Factors& f, const Tensor& x) {
  if (left(f)) ops.matmul(w, x, f.P, {.accumulate = true});
  else ops.matmul(w, f.P, x, {.accumulate = true});
}

// d = w - dq(q).
void subtract(Ops& ops, const Tensor& d, const Tensor& w, const QTensor& q) {
  ops.dequantize(d, q);
  ops.axpby(d, 1, w, -1);
}

// Rounding what is not finite would destroy the weight, in nf4 all of it.
void expect_finite(double squares, const char* what) {
  if (!std::isfinite(squares))
    fail_nonfinite(cat("refresh: ", what, " is not finite; the quantized weight is left as it is"));
}

// The bytes of q, for a copy that leaves them as they are.
Tensor words(const QTensor& q) { return {static_cast<float*>(q.data), 1, q.bytes() / 4}; }

}  // namespace

void add_product(Ops& ops, const Tensor& w, const Factors& f, const Tensor& b_scratch) {
  ops.axpby(b_scratch, float(f.scale), f.B, 0);
  add_scaled(ops, w, f, b_scratch);
}

UpdateReport requantize(Ops& ops, const QTensor& q, const Tensor& w_ref, const Factors& old,
                        const Rounder& rounder, const MergeScratch& scratch) {
  UpdateReport report;
  if (ops.dry()) return report;
  ops.dequantize(w_ref, q);
  const double b_squares = ops.sum_squares(old.B);
  if (b_squares == 0) return report;
  expect_finite(b_squares, "the low-rank factor B");
  expect_finite(ops.sum_squares(old.P), "the low-rank factor P");
  add_product(ops, w_ref, old, scratch.b);
  ops.dequantize(scratch.w, q);
  ops.axpby(scratch.w, 1, w_ref, -1);  // dW
  const double update = ops.sum_squares(scratch.w), norm = ops.sum_squares(w_ref);
  expect_finite(update, "the weight and its low-rank update");
  if (update == 0) return report;
  report.update_norm = std::sqrt(update / norm);
  ops.quantize(q, w_ref, rounder.rounding, rounder.stream);
  // <dq(q) - W0, dW> = |dW|^2 - <w_ref - dq(q), dW>, and dW = s (P, B).
  subtract(ops, scratch.w, w_ref, q);
  project_onto(ops, old.shape, scratch.b, old.P, scratch.w);
  report.retained = 1 - old.scale * ops.dot(scratch.b, old.B) / update;
  return report;
}

double compensate(Ops& ops, const QTensor& q, const Tensor& w_ref, const Factors& fresh,
                  int iterations, const Rounder& rounder, const MergeScratch& scratch) {
  if (ops.dry()) return 0;
  const Tensor &d = scratch.w, &b = scratch.b, &x = scratch.x, &inverse = scratch.square;
  const double norm = ops.sum_squares(w_ref);
  subtract(ops, d, w_ref, q);
  const double without = ops.sum_squares(d);
  expect_finite(without, "the rounding error of the weight");
  ops.fill(fresh.B, 0);
  if (norm == 0) return 0;
  if (without == 0 || iterations == 0) return std::sqrt(without / norm);
  gram_inverse(ops, fresh.shape, inverse, fresh.P);
  double best = without;
  QTensor trial = scratch.q, kept = q;
  for (int i = 0; i < iterations; i++) {
    // d = w_ref - dq(Q) of the Q at hand, that of `kept` at first, then of `trial`; b = s B, x =
    // -b.
    project_onto(ops, fresh.shape, x, fresh.P, d);
    if (left(fresh)) ops.matmul(b, x, inverse);
    else ops.matmul(b, inverse, x);
    ops.axpby(x, -1, b, 0);
    add_scaled(ops, d, fresh, x);
    const double error = ops.sum_squares(d);
    if (error < best) {
      best = error;
      ops.axpby(fresh.B, float(1 / fresh.scale), b, 0);
      if (i > 0) std::swap(trial, kept);
    }
    if (i + 1 == iterations) break;
    ops.copy(d, w_ref);
    add_scaled(ops, d, fresh, x);
    ops.quantize(trial, d, rounder.rounding, rounder.stream);
    subtract(ops, d, w_ref, trial);
  }
  if (kept.data != q.data) ops.copy(words(q), words(kept));
  return std::sqrt(best / norm);
}

}  // namespace loqal
