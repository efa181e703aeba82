// Merging a low-rank update into a quantized weight, in two halves, because the new subspace is
// found between them: requantize() needs the old factors, compensate() the new ones.
//
// What does not survive quantization is lost unless the new factor holds it: compensate()
// alternates between Q = q(W_ref - s B P) and B = P^+ (W_ref - dq(Q)) / s, the form of the released
// code (the paper's own Algorithm 2 oscillates), and keeps the best pair.
#pragma once
#include "core/quant_format.h"
#include "quant/subspace.h"

namespace loqal {

/// Factors of one weight: W_eff = dq(Q) + scale * B P (left) or scale * P B (right). F32,
/// contiguous.
struct Factors {
  FactorShape shape;
  Tensor P, B;
  double scale;  ///< s
};

/// w F32 [out, in] += scale * B P (left) or scale * P B (right). b_scratch: F32, like B.
void add_product(Ops& ops, const Tensor& w, const Factors& f, const Tensor& b_scratch);

struct Rounder {
  Rounding rounding;
  PhiloxStream stream;  ///< of stochastic rounding
};

struct UpdateReport {
  double update_norm = 0;  ///< |s B P|_F / |W_ref|_F
  double retained = 1;     ///< <dq(q(W_ref)) - W0, dW> / |dW|^2: share that rounding leaves; 1: all
};

/// What the two functions work in, F32: matrices like the weight, B, B and [R, R]; and a second
/// quantized matrix.
struct MergeScratch {
  Tensor w, b, x, square;
  QTensor q;
};

/// w_ref (F32 [out, in], overwritten) = W_eff of q and the old factors; q = quantized w_ref. An
/// update that is exactly zero leaves every byte of q as it is; so does one that is not finite: it
/// throws Exit::nonfinite.
UpdateReport requantize(Ops& ops, const QTensor& q, const Tensor& w_ref, const Factors& old,
                        const Rounder& rounder, const MergeScratch& scratch);

/// B (overwritten) and q such that dq(q) + s (P, B) is close to w_ref; q holds quantized w_ref. P
/// need not be orthonormal. The best of `iterations` (0: q stays and B = 0) is taken, so that the
/// result never gets worse with more. Returns |w_ref - dq(q) - s (P, B)|_F / |w_ref|_F. Throws
/// Exit::nonfinite, with q as it was, if w_ref - dq(q) is not finite.
double compensate(Ops& ops, const QTensor& q, const Tensor& w_ref, const Factors& fresh,
                  int iterations, const Rounder& rounder, const MergeScratch& scratch);

}  // namespace loqal
