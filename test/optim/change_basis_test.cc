// AdamW's moments: change of basis in double precision, reset, eight bits.
#include "optim/optimizer.h"
#include "test/ops/quantized.h"

namespace loqal::test {
namespace {

// One trainable matrix.
struct One {
  One(int64_t rows, int64_t cols, int bits)
      : ops(shared_ops(0)), p(ops, DType::F32, normal(rows, cols, 1)) {
    table.add("w", {rows, cols}, 0, Role::matrix);
    table.commit();
    optimizer = std::make_unique<AdamW>(
        ops,
        ParamAccess{&table, [this](int) { return p.out(); }, [](int) { return Tensor(); },
                    [this](int) { return rule; }},
        AdamWConfig{.bits = bits});
    gradient = ops.alloc(table.elements() * 4, "test");
  }
  void step(uint32_t seed) {
    const std::vector<double> g = normal(1, p.in().numel(), seed).v;
    const std::vector<float> host(g.begin(), g.end());
    ops.upload({gradient.as<float>(), 1, int64_t(host.size())}, host.data());
    optimizer->begin_step(1e-3);
    optimizer->update(0, gradient.as<float>(), 1);
  }
  Mat<double> state(const std::string& name) {
    const Tensor t = optimizer->state(name, 0);
    std::vector<float> host(size_t(t.numel()));
    ops.download(host.data(), t);
    Mat<double> m(t.rows, t.cols);
    m.v.assign(host.begin(), host.end());
    return m;
  }
  // A moment, decoded if it is held in 8 bits.
  Mat<double> moment(bool second) {
    const std::string name = second ? "adam_v" : "adam_m";
    const Tensor t = optimizer->state(name, 0);
    if (t.dtype == DType::F32) return state(name);
    std::vector<uint8_t> codes(size_t(t.numel()));
    ops.download(codes.data(), t);
    const Mat<double> absmax = state(name + "_absmax");
    const std::vector<double> map = dynamic_map(!second);
    Mat<double> m(t.rows, t.cols);
    for (size_t i = 0; i < codes.size(); i++) m.v[i] = map[codes[i]] * absmax.v[i / 256];
    return m;
  }
  Ops& ops;
  Array p;
  ParamTable table;
  ParamRule rule{.decays = false};
  std::unique_ptr<AdamW> optimizer;
  Buffer gradient;
};

// (r x r) Q, along the low-rank dimension: columns of B on the left side, rows on the right one.
Mat<double> along(Side side, const Mat<double>& x, const Mat<double>& Q) {
  Mat<double> y(x.rows, x.cols);
  for (int64_t i = 0; i < x.rows; i++)
    for (int64_t j = 0; j < x.cols; j++)
      for (int64_t k = 0; k < Q.rows; k++)
        y(i, j) += side == Side::left ? Q(j, k) * x(i, k) : Q(i, k) * x(k, j);
  return y;
}

struct Scratch {
  Scratch(Ops& ops, int64_t rows, int64_t cols, int64_t R)
      : m(ops, DType::F32, rows, cols),
        v(ops, DType::F32, rows, cols),
        turned(ops, DType::F32, rows, cols),
        square(ops, DType::F32, R, R),
        tensors{m.out(), v.out(), turned.out(), square.out()} {}
  Array m, v, turned, square;
  BasisScratch tensors;
};

// Half a step of the 8-bit map (spec/loqt.md, section 2) where it is widest, of the largest value.
double half_step(const Mat<double>& x, bool second) {
  double largest = 0;
  for (const double value : x.v) largest = std::max(largest, std::abs(value));
  return 1.01 * 0.9 / (second ? 128 : 64) / 2 * largest;
}

// LDAdam's formula (spec/loqt.md, section 6), in double; moments of 4,200 elements are in 8 bits.
void rotate_in_double(Side side, int bits) {
  const int64_t R = 6, longer = bits == 8 ? 700 : 40, rows = side == Side::left ? longer : R,
                cols = side == Side::left ? R : longer;
  One one(rows, cols, bits);
  for (uint32_t t = 1; t <= 3; t++) one.step(t);
  const Mat<double> m = one.moment(false), v = one.moment(true),
                    Q = round_to(DType::F32, normal(R, R, 9, 0.4));
  Array rotation(one.ops, DType::F32, Q);
  one.optimizer->begin_step(0);  // a refresh is a step that leaves B and its moments out
  const Scratch scratch(one.ops, rows, cols, R);
  one.optimizer->change_basis(0, side, rotation.in(), RefreshMoments::rotate, scratch.tensors);
  const double d1 = 1 - std::pow(0.9, 3), d2 = 1 - std::pow(0.95, 3);
  Mat<double> variance(rows, cols), mean(rows, cols), QQ = Q;
  for (double& q : QQ.v) q *= q;
  for (size_t i = 0; i < m.v.size(); i++) {
    mean.v[i] = m.v[i] / d1;
    variance.v[i] = v.v[i] / d2 - mean.v[i] * mean.v[i];
  }
  const Mat<double> m1 = along(side, m, Q), mean1 = along(side, mean, Q),
                    variance1 = along(side, variance, QQ), got_m = one.moment(false),
                    got_v = one.moment(true);
  Mat<double> v1 = v;
  for (size_t i = 0; i < v.v.size(); i++)
    v1.v[i] = d2 * std::abs(variance1.v[i] + mean1.v[i] * mean1.v[i]);
  for (size_t i = 0; i < m.v.size(); i++) {
    EXPECT_NEAR(got_m.v[i], m1.v[i], bits == 8 ? half_step(m1, false) : 1e-6);
    EXPECT_NEAR(got_v.v[i], v1.v[i], bits == 8 ? half_step(v1, true) : 2e-6);
  }
  EXPECT_EQ(one.optimizer->step_count(), 4);
}

TEST(ChangeBasis, RotateInDouble) {
  for (const Side side : {Side::left, Side::right})
    for (const int bits : {32, 8}) rotate_in_double(side, bits);
}

TEST(ChangeBasis, IdentityKeepsAndResetClears) {
  for (const int bits : {32, 8}) {
    One one(128, 40, bits);  // 5,120 elements: eight bits
    for (uint32_t t = 1; t <= 2; t++) one.step(t);
    Array before(one.ops, DType::F32, 128, 40), after(one.ops, DType::F32, 128, 40);
    one.optimizer->first_moment(before.out(), 0);
    const Mat<double> v = one.moment(true);
    Mat<double> identity(40, 40);
    for (int64_t i = 0; i < 40; i++) identity(i, i) = 1;
    Array rotation(one.ops, DType::F32, identity);
    const Scratch scratch(one.ops, 128, 40, 40);
    one.optimizer->change_basis(0, Side::left, rotation.in(), RefreshMoments::keep, {});
    one.optimizer->change_basis(0, Side::left, rotation.in(), RefreshMoments::rotate,
                                scratch.tensors);
    one.optimizer->first_moment(after.out(), 0);
    for (size_t i = 0; i < before.after().v.size(); i++)
      ASSERT_NEAR(
          after.after().v[i], before.after().v[i],
          bits == 8 ? 0.0071 : 1e-6);  // half a step of the map, of a block's absmax below 1
    const Mat<double> v1 = one.moment(true);
    for (size_t i = 0; i < v.v.size(); i++)
      ASSERT_NEAR(v1.v[i], v.v[i], bits == 8 ? half_step(v, true) : 1e-6);
    one.optimizer->change_basis(0, Side::left, {}, RefreshMoments::reset, {});
    one.optimizer->first_moment(after.out(), 0);
    for (const double x : after.after().v) ASSERT_EQ(x, 0);
    for (const double x : one.moment(true).v) ASSERT_EQ(x, 0);
    EXPECT_EQ(one.optimizer->step_count(), 2);
    one.optimizer->reset();
    EXPECT_EQ(one.optimizer->step_count(), 0);
  }
}

// After reset() the next steps are those of a new optimizer, whatever was in the codes.
TEST(ChangeBasis, ResetIsANewOptimizer) {
  for (const int bits : {32, 8}) {
    One used(128, 40, bits), fresh(128, 40, bits);
    used.step(1);
    used.optimizer->reset();
    used.p.set(normal(128, 40, 1));
    for (uint32_t t = 2; t <= 3; t++) used.step(t), fresh.step(t);
    expect_equal(used.p.after(), fresh.p.after(), "p");
  }
}

TEST(ChangeBasis, RuleSkipsAndScales) {
  One one(128, 40, 8), other(128, 40, 8);
  one.step(1), other.step(1);
  const Mat<double> before = one.p.after();
  one.rule.skip = true;
  one.step(2);
  expect_equal(one.p.after(), before, "p");
  one.rule.skip = false, one.rule.lr_factor = 0;
  one.step(3);
  expect_equal(one.p.after(), before, "p");
}

TEST(Moments, SmallTensorsStayFp32AndBytesAreCounted) {
  Ops& ops = shared_ops(0);
  const Moments moments(ops, {{1, 4095}, {64, 64}, {0, 0}}, 8);
  ASSERT_EQ(moments.states(0).size(), 2u);
  EXPECT_EQ(moments.states(0)[0].tensor.dtype, DType::F32);
  ASSERT_EQ(moments.states(1).size(), 4u);
  EXPECT_EQ(moments.states(1)[0].tensor.dtype, DType::U8);
  EXPECT_EQ(moments.states(1)[1].tensor.numel(), 16);  // 4096 / 256
  EXPECT_TRUE(moments.states(2).empty());
  const auto dry = make_cpu_ops(1, true);
  const Moments large(*dry, {{4096, 4096}}, 8);
  EXPECT_EQ(dry->memory_table().at("optimizer state"), 2 * (4096 * 4096 + 4096 * 4096 / 64));
}

}  // namespace
}  // namespace loqal::test
