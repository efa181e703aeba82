#include "quant/subspace.h"

#include <algorithm>
#include <cmath>
#include <eigen3/Eigen/Cholesky>
#include <eigen3/Eigen/Eigenvalues>
#include <optional>

namespace loqal {

namespace {

using Matrix = Eigen::MatrixXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix download(Ops& ops, const Tensor& x) {
  RowMajor host(x.rows, x.cols);
  ops.download(host.data(), x);
  return host.cast<double>();
}

void upload(Ops& ops, const Tensor& x, const Matrix& value) {
  const RowMajor host = value.cast<float>();
  ops.upload(x, host.data());
}

// Columns first, first + 1, ... of a matrix of N(0, 1).
Matrix gaussian(int64_t rows, int64_t first, int64_t cols, const PhiloxStream& stream) {
  Matrix g(rows, cols);
  for (int64_t j = 0; j < cols; j++)
    for (int64_t i = 0; i < rows; i++) g(i, j) = stream.normal(uint64_t((first + j) * rows + i));
  return g;
}

// Columns j >= known become orthonormal to all before them: Gram-Schmidt, twice, of random ones.
void complete(Matrix& u, int64_t known, const PhiloxStream& stream) {
  if (known == u.cols()) return;
  const Matrix random = gaussian(u.rows(), 0, u.cols() - known, stream);
  for (int64_t j = known; j < u.cols(); j++) {
    Eigen::VectorXd x = random.col(j - known);
    for (int pass = 0; pass < 2; pass++) {
      x -= u.leftCols(j) * (u.leftCols(j).transpose() * x);
      x.normalize();
    }
    u.col(j) = x;
  }
}

// Cholesky-QR: the columns of u, nearly orthonormal already, become so, each within the span of
// itself and those before it. False if they are too far from it.
bool orthonormalize(Matrix& u) {
  Matrix gram = Matrix::Zero(u.cols(), u.cols());
  gram.selfadjointView<Eigen::Lower>().rankUpdate(u.transpose());
  const Eigen::LLT<Matrix> cholesky(gram);
  if (cholesky.info() != Eigen::Success) return false;
  cholesky.matrixL().transpose().solveInPlace<Eigen::OnTheRight>(u);
  return true;
}

struct Directions {
  Matrix u;                 ///< [n, count] leading left singular vectors; orthonormal
  Eigen::VectorXd squares;  ///< all squared singular values, falling
  int64_t rank = 0;         ///< columns of u that the matrix has; the others are arbitrary
};

// fp32 numbers hold no singular value below this share of the largest.
constexpr double kNoise = 3e-7;

// From an eigenproblem of the smaller Gram matrix, in double: twice the digits of the fp32 data, so
// that squaring the condition loses nothing. Empty if Eigen finds no solution.
std::optional<Directions> leading(const Matrix& y, int64_t count, const PhiloxStream& completion) {
  const bool tall = y.rows() >= y.cols();
  const int64_t k = tall ? y.cols() : y.rows();
  Matrix gram = Matrix::Zero(k, k);
  if (tall) gram.selfadjointView<Eigen::Lower>().rankUpdate(y.transpose());
  else gram.selfadjointView<Eigen::Lower>().rankUpdate(y);
  const Eigen::SelfAdjointEigenSolver<Matrix> eigen(gram);
  if (eigen.info() != Eigen::Success) return {};
  Directions d;
  d.squares = eigen.eigenvalues().reverse().cwiseMax(0.0);
  const double least = kNoise * kNoise * d.squares(0);
  while (d.rank < std::min(count, k) && d.squares(d.rank) > least) d.rank++;
  const Matrix vectors = eigen.eigenvectors().rowwise().reverse().leftCols(d.rank);
  d.u = Matrix::Zero(y.rows(), count);
  if (tall)
    d.u.leftCols(d.rank) =
        y * vectors * d.squares.head(d.rank).cwiseSqrt().cwiseInverse().asDiagonal();
  else d.u.leftCols(d.rank) = vectors;
  Matrix known = d.u.leftCols(d.rank);
  if (!orthonormalize(known)) return {};
  d.u.leftCols(d.rank) = known;
  complete(d.u, d.rank, completion);
  for (int64_t j = 0; j < count; j++) {
    Eigen::Index largest;
    d.u.col(j).cwiseAbs().maxCoeff(&largest);
    if (d.u(largest, j) < 0) d.u.col(j) *= -1;
  }
  return d;
}

// P from columns: rows of P on the left side.
void put(Ops& ops, const FactorShape& shape, const Tensor& P, const Matrix& u) {
  if (shape.side() == Side::left) upload(ops, P, u.transpose());
  else upload(ops, P, u);
}

// P keeps the basis that it holds, or else gets an arbitrary one; `why` goes into the warning.
BasisReport keep_basis(Ops& ops, const FactorShape& shape, const Tensor& P,
                       const PhiloxStream& completion, const std::string& why) {
  if (ops.sum_squares(P) > 0) return {.warning = why + ": the old basis is kept", .kept = true};
  Matrix u(shape.n(), shape.rank);
  complete(u, 0, completion);
  put(ops, shape, P, u);
  return {.warning = why + ": the first basis is random"};
}

// Largest entry 1: squares neither overflow nor vanish.
void normalize(Matrix& y) { y /= y.cwiseAbs().maxCoeff(); }

// Share of the last columns of y, D, that the span of the first `rank`, A, holds:
// tr(D^T A (A^T A)^-1 A^T D) / |D|^2. The ridge is what fp32 numbers hold as noise. NaN if there is
// no solution.
double captured_estimate(const Matrix& y, int64_t rank) {
  if (y.cols() <= rank) return 1;
  const auto first = y.leftCols(rank), last = y.rightCols(y.cols() - rank);
  const double total = last.squaredNorm();
  if (total == 0) return 1;
  Matrix gram = Matrix::Zero(rank, rank);
  gram.selfadjointView<Eigen::Lower>().rankUpdate(first.transpose());
  gram.diagonal().array() += kNoise * kNoise * gram.trace();
  const Matrix cross = first.transpose() * last;
  const Eigen::LLT<Matrix> cholesky(gram);
  if (cholesky.info() != Eigen::Success) return NAN;
  return (cross.array() * cholesky.solve(cross).array()).sum() / total;
}

// P = the leading directions of y; energy(directions) is the report's.
template <class Energy>
BasisReport new_basis(Ops& ops, const FactorShape& shape, const Tensor& P, Matrix& y,
                      const PhiloxStream& completion, const Energy& energy) {
  const auto keep = [&](const char* why) { return keep_basis(ops, shape, P, completion, why); };
  if (!y.allFinite()) return keep("the gradient is not finite");
  if (y.cwiseAbs().maxCoeff() == 0) return keep("the gradient is zero");
  normalize(y);
  const std::optional<Directions> d = leading(y, shape.rank, completion);
  if (!d) return keep("the gradient's decomposition did not converge");
  BasisReport report{.energy = energy(*d), .rank = d->rank};
  if (!std::isfinite(report.energy)) return keep("the gradient's energy cannot be estimated");
  put(ops, shape, P, d->u);
  return report;
}

}  // namespace

int64_t sketch_columns(const FactorShape& shape) {
  return std::min(shape.rank + kOversampling, shape.n());
}

// Columns of the matrix, the same in floats, its orthonormal directions twice, and the smaller Gram
// matrix with Eigen's copies of it.
int64_t subspace_host_bytes(const FactorShape& s, bool exact) {
  const int64_t S = sketch_columns(s);
  const auto leading_of = [&](int64_t rows, int64_t cols) {
    const int64_t gram = std::min(rows, cols);
    return rows * cols * 12 + 2 * rows * s.rank * 8 + 3 * gram * gram * 8;
  };
  const int64_t omega = s.m() * S * 12 + leading_of(s.m(), s.rank);
  // The transpose in place of a whole gradient is another copy in double.
  const int64_t whole = leading_of(s.n(), s.m()) + (s.side() == Side::left ? s.n() * s.m() * 4 : 0);
  return std::max(omega, exact ? whole : leading_of(s.n(), S));
}

BasisReport svd_basis(Ops& ops, const FactorShape& shape, const Tensor& P, const Tensor& G,
                      const PhiloxStream& completion) {
  if (ops.dry()) return {};
  Matrix y = download(ops, G);
  if (shape.side() == Side::left) y.transposeInPlace();
  return new_basis(ops, shape, P, y, completion, [&](const Directions& d) {
    return d.squares.head(std::min<int64_t>(shape.rank, d.squares.size())).sum() / d.squares.sum();
  });
}

BasisReport sketch_basis(Ops& ops, const FactorShape& shape, const Tensor& P, const Tensor& Y,
                         const PhiloxStream& completion) {
  if (ops.dry()) return {};
  Matrix y = download(ops, Y);
  return new_basis(ops, shape, P, y, completion,
                   [&](const Directions&) { return captured_estimate(y, shape.rank); });
}

void fill_omega(Ops& ops, const FactorShape& shape, const Tensor& omega, const Tensor& moment,
                const PhiloxStream& stream) {
  if (ops.dry()) return;
  const int64_t m = shape.m(), S = sketch_columns(shape), R = shape.rank;
  LOQAL_ASSERT(omega.rows == m && omega.cols == S, str(omega));
  Matrix columns(m, S);
  int64_t known = 0;
  if (moment) {
    Matrix old = download(ops, moment);
    if (shape.side() == Side::right) old.transposeInPlace();
    if (old.allFinite() && old.cwiseAbs().maxCoeff() > 0) {
      normalize(old);
      if (const std::optional<Directions> d = leading(old, R, stream)) {
        known = d->rank;
        columns.leftCols(known) = d->u.leftCols(known);
      }
    }
  }
  columns.rightCols(S - known) = gaussian(m, known, S - known, stream) / std::sqrt(double(m));
  upload(ops, omega, columns);
}

void sketch_gradient(Ops& ops, const FactorShape& shape, const Tensor& Y, const Tensor& G,
                     const Tensor& omega) {
  ops.matmul(Y, G, omega, {.transpose_a = shape.side() == Side::left});
}

void project_onto(Ops& ops, const FactorShape& shape, const Tensor& x, const Tensor& P,
                  const Tensor& w) {
  if (shape.side() == Side::left) ops.matmul(x, w, P, {.transpose_b = true});
  else ops.matmul(x, P, w, {.transpose_a = true});
}

void basis_change(Ops& ops, const FactorShape& shape, const Tensor& rotation, const Tensor& P_new,
                  const Tensor& P_old) {
  if (shape.side() == Side::left) ops.matmul(rotation, P_new, P_old, {.transpose_b = true});
  else ops.matmul(rotation, P_new, P_old, {.transpose_a = true});
}

void gram_inverse(Ops& ops, const FactorShape& shape, const Tensor& inverse, const Tensor& P) {
  if (shape.side() == Side::left) ops.matmul(inverse, P, P, {.transpose_b = true});
  else ops.matmul(inverse, P, P, {.transpose_a = true});
  if (ops.dry()) return;
  const Matrix gram = download(ops, inverse);
  const Eigen::LDLT<Matrix> factors(gram);
  upload(ops, inverse, factors.solve(Matrix::Identity(gram.rows(), gram.cols())));
}

}  // namespace loqal
