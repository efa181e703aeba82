// The subspace that a low-rank factor trains in: the leading singular directions of the weight
// gradient G [out, in] on its smaller side (GaLore, Zhao et al. 2024; LoQT, Loeschcke et al. 2024).
//
//   side    holds when    P          B          W_eff          sketch Y = range of G    Omega
//   left    out >= in     [R, in]    [out, R]   W + s B P      G^T Omega  [in, S]       [out, S]
//   right   out < in      [out, R]   [R, in]    W + s P B      G Omega    [out, S]      [in, S]
//
// The directions stand in the order of their singular values, each with its largest entry positive.
// Order matters: Adam normalises each coordinate of B on its own. The matrices of this file are
// small beside the weights; what is left of the linear algebra runs on the host, in double, with
// Eigen.
#pragma once
#include <cstdint>
#include <string>

#include "core/philox.h"
#include "ops/ops.h"

namespace loqal {

enum class Side { left, right };
inline Side side_of(int64_t out, int64_t in) { return out >= in ? Side::left : Side::right; }

/// Shapes of the factors of one weight.
struct FactorShape {
  int64_t out, in, rank;  ///< rank <= min(out, in)

  Side side() const { return side_of(out, in); }
  int64_t n() const { return out < in ? out : in; }  ///< length of a direction: rows of Y
  int64_t m() const { return out < in ? in : out; }  ///< the other one: rows of Omega
  int64_t p_rows() const { return side() == Side::left ? rank : out; }
  int64_t p_cols() const { return side() == Side::left ? in : rank; }
  int64_t b_rows() const { return side() == Side::left ? out : rank; }
  int64_t b_cols() const { return side() == Side::left ? rank : in; }
};

/// Columns that a sketch has beyond the rank; the last ones, always random.
constexpr int64_t kOversampling = 8;
/// Host memory of the functions below, of whichever takes most. exact: svd_basis() is one of them.
int64_t subspace_host_bytes(const FactorShape& shape, bool exact);
/// Columns S of a sketch: rank + kOversampling, at most n.
int64_t sketch_columns(const FactorShape& shape);

/// What became of a basis, for the log.
struct BasisReport {
  double energy = 0;    ///< share of |G|_F^2 in the span of P: exact (SVD) or an estimate (sketch)
  int64_t rank = 0;     ///< directions that G has; the others complete P orthonormally
  std::string warning;  ///< "" or why the old basis was kept: the gradient is zero, not finite or
                        ///< has no decomposition that converges
  bool kept = false;    ///< P is as it was
};

/// P (F32, contiguous) = the leading singular directions of G F32 [out, in], by an exact
/// decomposition. A zero or non-finite G, or a failure of Eigen's, leaves P as it is, if it holds
/// anything, or else takes an arbitrary basis from `completion`, which also completes one of lower
/// rank than R.
BasisReport svd_basis(Ops& ops, const FactorShape& shape, const Tensor& P, const Tensor& G,
                      const PhiloxStream& completion);

/// The same from a sketch Y F32 [n, S], S = sketch_columns(): the leading left singular directions
/// of Y (Halko, Martinsson & Tropp 2011). The estimate of the energy is the share of the last,
/// random columns that the span of the others holds: unbiased for that span, which holds a little
/// less than P. 1 where S <= rank.
BasisReport sketch_basis(Ops& ops, const FactorShape& shape, const Tensor& P, const Tensor& Y,
                         const PhiloxStream& completion);

/// Omega F32 [m, S]: the first `rank` columns are an orthonormal basis of the span of `moment`
/// (F32, like B: Adam's first moment of it; empty or zero: random), the others N(0, 1/m) from
/// `stream`. With such columns Y is one step of a subspace iteration that began where the last ones
/// ended.
void fill_omega(Ops& ops, const FactorShape& shape, const Tensor& omega, const Tensor& moment,
                const PhiloxStream& stream);

/// Y F32 [n, S] = G^T Omega (left), G Omega (right): the sketch of a G F32 [out, in] that is at
/// hand.
void sketch_gradient(Ops& ops, const FactorShape& shape, const Tensor& Y, const Tensor& G,
                     const Tensor& omega);

/// x (F32, like B) = w P^T (left), P^T w (right), of w F32 [out, in]: its coordinates in the basis.
void project_onto(Ops& ops, const FactorShape& shape, const Tensor& x, const Tensor& P,
                  const Tensor& w);

/// rotation F32 [R, R] = P_new P_old^T (left), P_new^T P_old (right): coordinates in the old basis
/// to those in the new one. For AdamW::change_basis.
void basis_change(Ops& ops, const FactorShape& shape, const Tensor& rotation, const Tensor& P_new,
                  const Tensor& P_old);

/// inverse F32 [R, R] of the Gram matrix of a basis that need not be orthonormal: P P^T (left),
/// P^T P (right).
void gram_inverse(Ops& ops, const FactorShape& shape, const Tensor& inverse, const Tensor& P);

}  // namespace loqal
