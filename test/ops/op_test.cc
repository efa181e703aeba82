#include "test/ops/op_test.h"

#include <cstring>

#include "core/philox.h"

namespace loqal::test {

Ops& shared_ops(size_t index) {
  static std::vector<std::unique_ptr<Ops>> made(present_ops().size());
  if (!made[index]) made[index] = present_ops()[index].make();
  return *made[index];
}

Mat<double> normal(int64_t rows, int64_t cols, uint32_t seed, double scale) {
  const PhiloxStream stream(seed, Purpose::test);
  Mat<double> m(rows, cols);
  for (size_t i = 0; i < m.v.size(); i++) m.v[i] = scale * stream.normal(i);
  return m;
}

Ids random_ids(int64_t count, int64_t n, uint32_t seed, bool ignored) {
  const PhiloxStream stream(seed, Purpose::test);
  Ids ids(static_cast<size_t>(count));
  for (size_t i = 0; i < ids.size(); i++)
    ids[i] =
        ignored && stream.bits(2 * i + 1) % 5 == 0 ? -1 : int32_t(stream.bits(2 * i) % uint32_t(n));
  return ids;
}

namespace {

// Quiet NaNs with a payload that no computation produces.
constexpr uint32_t kSentinel32 = 0x7fc5a5a5u;
constexpr uint16_t kSentinel16 = 0x7fa5u | 0x40u;
constexpr int64_t kGuard = 64;  // elements; keeps the interior as aligned as the buffer

void put(std::vector<char>& image, DType type, int64_t i, double value) {
  const auto store = [&](auto x) { std::memcpy(&image[size_t(i) * sizeof(x)], &x, sizeof(x)); };
  if (type == DType::F32) store(float(value));
  else if (type == DType::BF16) store(to_bf16(float(value)));
  else store(int32_t(value));
}

double get(const std::vector<char>& image, DType type, int64_t i) {
  const auto load = [&](auto x) {
    std::memcpy(&x, &image[size_t(i) * sizeof(x)], sizeof(x));
    return x;
  };
  if (type == DType::F32) return double(load(float()));
  if (type == DType::BF16) return double(to_float(load(bf16{})));
  return load(int32_t());
}

}  // namespace

Mat<double> round_to(DType type, Mat<double> m) {
  for (double& x : m.v) x = type == DType::BF16 ? to_float(to_bf16(float(x))) : float(x);
  return m;
}

Array::Array(Ops& ops, DType type, int64_t rows, int64_t cols, int64_t pad) : ops_(ops) {
  const int64_t elements = 2 * kGuard + rows * (cols + pad), size = int64_t(size_of(type));
  buffer_ = ops.alloc(elements * size, "test");
  view_ = {buffer_.as<char>() + kGuard * size, type, rows, cols, cols + pad};
  image_.resize(size_t(elements * size));
  may_change_.resize(size_t(elements));
  for (int64_t i = 0; i < elements; i++) {
    if (size == 4) std::memcpy(&image_[size_t(4 * i)], &kSentinel32, 4);
    else std::memcpy(&image_[size_t(2 * i)], &kSentinel16, 2);
  }
  upload();
}

Array::Array(Ops& ops, DType type, const Mat<double>& values, int64_t pad)
    : Array(ops, type, values.rows, values.cols, pad) {
  set(values);
}

Array::Array(Ops& ops, const Ids& ids) : Array(ops, DType::I32, 1, int64_t(ids.size())) {
  Mat<double> m(1, int64_t(ids.size()));
  for (size_t i = 0; i < ids.size(); i++) m.v[i] = ids[i];
  set(m);
}

Array::~Array() {
  const std::vector<char> now = bytes();
  const size_t size = size_of(view_.dtype);
  for (size_t i = 0; i < may_change_.size(); i++)
    if (!may_change_[i] && std::memcmp(&now[i * size], &image_[i * size], size) != 0) {
      const int64_t at = int64_t(i) - kGuard;
      const int64_t row = at < 0 ? -1 : at / view_.ld;
      ADD_FAILURE() << "wrote outside of an output: element " << at << " of " << str(view_)
                    << " (row " << row << ", column " << at - row * view_.ld << ") is now "
                    << get(now, view_.dtype, int64_t(i));
      return;
    }
}

Tensor Array::out(int64_t first_col, int64_t cols, int64_t first_row, int64_t rows) {
  for (int64_t r = first_row; r < first_row + rows; r++)
    for (int64_t c = first_col; c < first_col + cols; c++) may_change_[size_t(index(r, c))] = true;
  return view_.row_slice(first_row, rows).col_slice(first_col, cols);
}

void Array::set(const Mat<double>& values, int64_t first_col) {
  for (int64_t r = 0; r < values.rows; r++)
    for (int64_t c = 0; c < values.cols; c++)
      put(image_, view_.dtype, index(r, first_col + c), values(r, c));
  upload();
}

Mat<Err> Array::before(int64_t first_col, int64_t cols) const {
  return Mat<Err>(values(image_, first_col, cols));
}
Mat<double> Array::after(int64_t first_col, int64_t cols) const {
  return values(bytes(), first_col, cols);
}

std::vector<char> Array::bytes() const {
  std::vector<char> now(image_.size());
  ops_.download(now.data(), whole());
  return now;
}

Mat<double> Array::values(const std::vector<char>& image, int64_t first_col, int64_t cols) const {
  Mat<double> m(view_.rows, cols);
  for (int64_t r = 0; r < m.rows; r++)
    for (int64_t c = 0; c < cols; c++) m(r, c) = get(image, view_.dtype, index(r, first_col + c));
  return m;
}

int64_t Array::index(int64_t r, int64_t c) const { return kGuard + r * view_.ld + c; }
void Array::upload() { ops_.upload(whole(), image_.data()); }
Tensor Array::whole() const {
  return {buffer_.data(), view_.dtype, 1, int64_t(may_change_.size())};
}

void expect_close(const Mat<double>& got, const Mat<Err>& want, const std::string& what) {
  ASSERT_EQ(got.rows, want.rows) << what;
  ASSERT_EQ(got.cols, want.cols) << what;
  double worst = 1;
  size_t at = 0, count = 0;
  for (size_t i = 0; i < got.v.size(); i++) {
    const double error = std::abs(got.v[i] - want.v[i].v), bound = 2 * want.v[i].e + 1e-30;
    const bool nan = std::isnan(want.v[i].v);
    double ratio = error / bound;
    if (nan || std::isnan(got.v[i])) ratio = nan && std::isnan(got.v[i]) ? 0 : 1e300;
    if (got.v[i] == want.v[i].v) ratio = 0;
    if (ratio > 1) count++;
    if (ratio > worst) worst = ratio, at = i;
  }
  if (count)
    ADD_FAILURE() << what << ": " << count << " of " << got.v.size() << " wrong; worst at ["
                  << at / size_t(got.cols) << "," << at % size_t(got.cols) << "]: got " << got.v[at]
                  << ", want " << want.v[at].v << " +- " << 2 * want.v[at].e;
}

void expect_equal(const Mat<double>& got, const Mat<double>& want, const std::string& what) {
  Mat<Err> exact(want);
  for (Err& x : exact.v) x.e = 0;
  expect_close(got, exact, what);
}

std::string op_test_name(const testing::TestParamInfo<std::tuple<size_t, DType>>& info) {
  return present_ops()[std::get<0>(info.param)].name + "_" + name_of(std::get<1>(info.param));
}

}  // namespace loqal::test
