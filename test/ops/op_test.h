// What every op test is made of: the devices present, guarded arrays, deterministic data, and a
// comparison whose tolerance comes from the reference itself (Err in reference.h).
//
// Device memory is reached through ops.alloc/upload/download only, so the same tests run on a GPU.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "ops/ops.h"
#include "test/ops/reference.h"

namespace loqal::test {

struct OpsFactory {
  std::string name;  ///< part of the test's name: letters and digits
  std::function<std::unique_ptr<Ops>()> make;
};

/// Every implementation that the program at hand holds and that can run here. The suite runs over
/// all of them: run_tests (present_ops_test.cc), run_cuda_tests
/// (test/cuda_emulation/present_ops.cc).
std::vector<OpsFactory> present_ops();

/// The object for present_ops()[index]: made at first use, shared by all tests.
Ops& shared_ops(size_t index);

/// Standard normal numbers times `scale`, a function of (seed, index) only.
Mat<double> normal(int64_t rows, int64_t cols, uint32_t seed, double scale = 1);
/// Integers in [0, n); with `ignored`, about a fifth of them are -1.
Ids random_ids(int64_t count, int64_t n, uint32_t seed, bool ignored = false);
/// A normalised comparison is only as good as its data: what the type X makes of these numbers.
Mat<double> round_to(DType type, Mat<double> m);

/// Device matrix between guard zones; `pad` unused columns after each row. Guards, gaps and an
/// uninitialised interior hold a NaN with a payload: whoever reads them gets NaN, whoever writes
/// them is found out. The destructor checks that nothing changed except what out() allowed.
class Array {
 public:
  Array(Ops& ops, DType type, int64_t rows, int64_t cols, int64_t pad = 0);
  Array(Ops& ops, DType type, const Mat<double>& values, int64_t pad = 0);
  Array(Ops& ops, const Ids& ids);
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  Tensor in() const { return view_; }
  Tensor in(int64_t first_col, int64_t cols) const { return view_.col_slice(first_col, cols); }
  Tensor out() { return out(0, view_.cols); }
  Tensor out(int64_t first_col, int64_t cols) { return out(first_col, cols, 0, view_.rows); }
  Tensor out(int64_t first_col, int64_t cols, int64_t first_row, int64_t rows);

  /// Overwrites columns from first_col on, before the call under test.
  void set(const Mat<double>& values, int64_t first_col = 0);
  /// What was uploaded, after rounding to the type.
  Mat<Err> before() const { return before(0, view_.cols); }
  Mat<Err> before(int64_t first_col, int64_t cols) const;
  Mat<double> after() const { return after(0, view_.cols); }
  Mat<double> after(int64_t first_col, int64_t cols) const;
  std::vector<char> bytes() const;  ///< the whole image, guards included

 private:
  Mat<double> values(const std::vector<char>& image, int64_t first_col, int64_t cols) const;
  int64_t index(int64_t r, int64_t c) const;
  void upload();
  Tensor whole() const;

  Ops& ops_;
  Buffer buffer_;
  Tensor view_;
  std::vector<char> image_;       // as uploaded
  std::vector<bool> may_change_;  // by element of the image
};

/// |got - want| <= 2 x the bound that the reference carries: the implementation may use another
/// order of summation or an equivalent formula. NaN only where NaN is expected.
void expect_close(const Mat<double>& got, const Mat<Err>& want, const std::string& what);
void expect_equal(const Mat<double>& got, const Mat<double>& want, const std::string& what);

class OpTest : public testing::TestWithParam<std::tuple<size_t, DType>> {
 protected:
  Ops& ops = shared_ops(std::get<0>(GetParam()));
  DType X = std::get<1>(GetParam());
  double u = X == DType::BF16 ? kRoundBF16 : kRoundF32;  // unit roundoff of X

  Mat<Err> none;  // an operand that is not there
};

std::string op_test_name(const testing::TestParamInfo<std::tuple<size_t, DType>>& info);

#define LOQAL_OP_TESTS(Suite)                                                                \
  using Suite = OpTest;                                                                      \
  INSTANTIATE_TEST_SUITE_P(Ops, Suite,                                                       \
                           testing::Combine(testing::Range(size_t(0), present_ops().size()), \
                                            testing::Values(DType::F32, DType::BF16)),       \
                           op_test_name)

}  // namespace loqal::test
