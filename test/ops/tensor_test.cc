// Memory, transfers, fill, copy, sum_squares; and that every operation refuses what does not fit.
#include <cstring>
#include <limits>

#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(TensorTest);

// reports.md N1: with -ffast-math this is false, and so would be every check of a loss.
TEST(Build, NaNIsNotFinite) {
  volatile float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(nan));
  EXPECT_TRUE(std::isnan(nan));
  EXPECT_FALSE(std::isfinite(1 / (nan - nan)));
}

TEST_P(TensorTest, AllocIsZeroedAlignedAndCounted) {
  const int64_t before =
      ops.memory_table().count("tensor_test") ? ops.memory_table().at("tensor_test") : 0;
  EXPECT_EQ(before, 0);
  {
    Buffer a = ops.alloc(4 * 1001, "tensor_test"), b = ops.alloc(1, "tensor_test");
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 64, 0u);
    EXPECT_EQ(ops.memory_table().at("tensor_test"), 4 * 1001 + 1);
    std::vector<float> host(1001, 7.0f);
    ops.download(host.data(), {a.as<float>(), 1, 1001});
    for (const float x : host) ASSERT_EQ(x, 0.0f);
    Buffer moved = std::move(a);
    EXPECT_EQ(ops.memory_table().at("tensor_test"), 4 * 1001 + 1);
    EXPECT_EQ(moved.bytes(), 4 * 1001);
  }
  EXPECT_EQ(ops.memory_table().at("tensor_test"), 0);
  EXPECT_GE(ops.peak_bytes(), 4 * 1001 + 1);
  EXPECT_EQ(ops.alloc(0, "tensor_test").bytes(), 0);
}

TEST_P(TensorTest, OutOfMemoryShowsTheTable) {
#if defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP() << "ASan aborts on such a request";
#endif
  Buffer held = ops.alloc(3 << 20, "weights");
  try {
    Buffer b = ops.alloc(int64_t(1) << 58, "activations");
    FAIL() << "got 256 PiB";
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_EQ(e.exit_code, Exit::failure);
    EXPECT_NE(message.find("activations"), std::string::npos) << message;
    EXPECT_NE(message.find("weights: 3 MiB"), std::string::npos) << message;
  }
  EXPECT_EQ(ops.memory_table().count("activations") ? ops.memory_table().at("activations") : 0, 0);
}

TEST(DryRun, CountsWithoutMemory) {
  const std::unique_ptr<Ops> ops = make_cpu_ops(1, true);
  ASSERT_TRUE(ops->dry());
  Buffer a = ops->alloc(int64_t(1) << 50, "weights");
  {
    Buffer b = ops->alloc(100, "activations");
    EXPECT_EQ(b.bytes(), 100);
  }
  EXPECT_EQ(a.data(), nullptr);
  EXPECT_EQ(a.bytes(), int64_t(1) << 50);
  EXPECT_EQ(ops->memory_table().at("weights"), int64_t(1) << 50);
  EXPECT_EQ(ops->peak_bytes(), (int64_t(1) << 50) + 100);
}

TEST_P(TensorTest, Description) {
  EXPECT_FALSE(ops.description().empty());
  const double peak = ops.peak_flops(X);
  EXPECT_GT(peak, 1e8);  // any machine of this century
  EXPECT_EQ(ops.peak_flops(X), peak) << "measured once";
}

TEST_P(TensorTest, FillAndCopy) {
  for (const auto& [N, C, pad] :
       {std::array<int64_t, 3>{1, 1, 0}, {3, 5, 2}, {65, 33, 7}, {1, 40001, 0}}) {
    SCOPED_TRACE(cat(N, "x", C, " pad ", pad));
    Array y(ops, X, N, C, pad);
    ops.fill(y.out(), 1.1f);
    expect_equal(y.after(), round_to(X, Mat<double>(N, C, double(1.1f))), "fill");
    for (const DType from : {DType::F32, DType::BF16}) {
      Array x(ops, from, normal(N, C, 1), 3 * pad);
      ops.copy(y.out(), x.in());
      expect_equal(y.after(), round_to(X, round_to(from, normal(N, C, 1))), "copy");
    }
  }
}

// Ties to even, subnormals, overflow to infinity, signed zero, NaN: the converted bits are
// to_bf16's.
TEST_P(TensorTest, ConversionOfSpecialValues) {
  const std::vector<float> host = {0.0f,
                                   -0.0f,
                                   1.00390625f,
                                   1.01171875f,
                                   3.4e38f,
                                   -3.4e38f,
                                   1e-40f,
                                   -1e-45f,
                                   std::numeric_limits<float>::infinity(),
                                   std::numeric_limits<float>::quiet_NaN(),
                                   -std::numeric_limits<float>::quiet_NaN(),
                                   65504.0f,
                                   1.0f};
  const int64_t n = int64_t(host.size());
  Buffer from = ops.alloc(4 * n, "test"), to = ops.alloc(2 * n, "test"),
         back = ops.alloc(4 * n, "test");
  ops.upload({from.as<float>(), 1, n}, host.data());
  ops.copy({to.as<bf16>(), 1, n}, {from.as<float>(), 1, n});
  ops.copy({back.as<float>(), 1, n}, {to.as<bf16>(), 1, n});
  std::vector<bf16> got(host.size());
  std::vector<float> wide(host.size());
  ops.download(got.data(), {to.as<bf16>(), 1, n});
  ops.download(wide.data(), {back.as<float>(), 1, n});
  for (size_t i = 0; i < host.size(); i++) {
    if (std::isnan(host[i])) {
      EXPECT_TRUE(std::isnan(to_float(got[i])));
      EXPECT_TRUE(std::isnan(wide[i]));
      continue;
    }
    EXPECT_EQ(got[i].bits, to_bf16(host[i]).bits) << host[i];
    const float expected = to_float(got[i]);
    EXPECT_EQ(std::memcmp(&wide[i], &expected, 4), 0) << host[i];
  }
}

TEST_P(TensorTest, SumSquares) {
  for (const int64_t n : {1, 3, 1000, 70001}) {
    Array x(ops, DType::F32, normal(1, n, 1));
    double want = 0;
    for (const Err& v : x.before().v) want += v.v * v.v;
    // In double: n roundings of 2^-53 each, whatever the order.
    EXPECT_NEAR(ops.sum_squares(x.in()), want, want * double(n) * 0x1p-53 + want * 1e-15) << n;
    EXPECT_EQ(ops.sum_squares(x.in()), ops.sum_squares(x.in()));
  }
  Array big(ops, DType::F32, Mat<double>(1, 100, 1e30));  // squares overflow fp32
  EXPECT_NEAR(ops.sum_squares(big.in()) / 1e62, 1, 1e-6);
}

TEST_P(TensorTest, SumSquaresShowsNaNAndInfinity) {
  for (const int64_t at : {0, 1, 500, 999}) {
    Mat<double> v = normal(1, 1000, 1);
    v(0, at) = NAN;
    Array x(ops, DType::F32, v);
    EXPECT_TRUE(std::isnan(ops.sum_squares(x.in()))) << at;
    v(0, at) = INFINITY;
    Array y(ops, DType::F32, v);
    EXPECT_FALSE(std::isfinite(ops.sum_squares(y.in()))) << at;
  }
}

/// The call must throw before it computes, and name each operand with its type and shape.
void expect_refused(const std::function<void()>& call, const std::vector<std::string>& parts) {
  try {
    call();
    ADD_FAILURE() << "accepted; expected an error with " << parts[0];
  } catch (const std::exception& e) {
    const std::string message = e.what();
    for (const std::string& part : parts)
      EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
  }
}

TEST_P(TensorTest, ShapesThatDoNotFitAreRefused) {
  Array a(ops, X, normal(4, 6, 1)), b(ops, X, normal(5, 3, 2)), c(ops, X, 4, 3),
      row3(ops, DType::F32, 1, 3);
  Array stats(ops, DType::F32, 2, 4), w6(ops, DType::F32, normal(1, 6, 3)), ids(ops, Ids(4, 0));
  const std::string x = name_of(X);
  expect_refused([&] { ops.matmul(c.in(), a.in(), b.in()); },
                 {"matmul", x + "[4,3]", x + "[4,6]", x + "[5,3]"});
  expect_refused(
      [&] {
        ops.matmul(c.in(), b.in(), a.in(), {true, true, false, {}, {}});
      },
      {"matmul", x + "[4,3]"});
  expect_refused([&] { ops.bias_backward(row3.in(), a.in(), false); },
                 {"bias_backward", "F32[1,3]", x + "[4,6]"});
  expect_refused(
      [&] { ops.layernorm_forward(a.in(), stats.in(), a.in(), row3.in(), w6.in(), 1e-5f); },
      {"layernorm_forward", "F32[2,4]", x + "[4,6]", "F32[1,3]", "F32[1,6]"});
  expect_refused([&] { ops.rmsnorm_forward(a.in(), stats.in(), a.in(), w6.in(), 1e-5f); },
                 {"rmsnorm_forward", "F32[2,4]"});
  expect_refused([&] { ops.gelu_forward(c.in(), a.in()); },
                 {"gelu_forward", x + "[4,3]", x + "[4,6]"});
  expect_refused([&] { ops.swiglu_forward(a.in(), a.in(), c.in()); },
                 {"swiglu_forward", x + "[4,3]"});
  expect_refused([&] { ops.rope(a.in(), w6.in(), 4, 6, false); },
                 {"rope", "F32[1,6]"});  // 4 positions needed
  expect_refused([&] { ops.rope(c.in(), row3.in(), 1, 3, false); }, {"rope"});  // odd head
  expect_refused([&] { ops.embedding_forward(a.in(), ids.in(), b.in(), {}, 2); },
                 {"embedding_forward", "I32[1,4]", x + "[5,3]"});
  expect_refused([&] { ops.copy(a.in(), c.in()); }, {"copy"});
  expect_refused([&] { ops.copy(a.in(), ids.in()); }, {"copy", "I32[1,4]"});
  expect_refused(
      [&] {
        ops.attention_forward(a.in(), stats.in(), a.in(), a.in(), a.in(), {1, 4, 2, 1, 3});
      },
      {"attention_forward", "NH=2", "NKV=1", "HS=3", x + "[4,6]"});
  expect_refused(
      [&] {
        ops.adamw(w6.in(), {}, row3.in(), w6.in(), w6.in(), {1, 0, 0, 1, 0, 1, 1});
      },
      {"adamw", "F32[1,3]"});
  expect_refused(
      [&] {
        ops.adamw(w6.in(), {}, w6.in(), w6.in(), w6.in(), {1, 0, 0, 1, 0, 0, 1});
      },
      {"adamw"});
  expect_refused(
      [&] {
        ops.linear_cross_entropy(row3.in(), {}, {}, a.in(), a.in(), ids.in(), stats.in(), 1, false);
      },
      {"linear_cross_entropy", "F32[1,3]", "I32[1,4]"});
}

// FLOPs and bytes by hand; a matmul inside another operation is that operation's.
TEST_P(TensorTest, ProfileCountsWhatEachOperationNeeds) {
  const int64_t x = int64_t(size_of(X)), B = 1, T = 5, C = 6, V = 7;
  Array a(ops, X, normal(T, C, 1)), w(ops, X, normal(V, C, 2)), logits(ops, DType::F32, T, V);
  Array targets(ops, Ids(size_t(T), 3)), nll(ops, DType::F32, 1, T), scratch(ops, DType::F32, 2, V);
  Array q(ops, X, normal(T, C, 3)), out(ops, X, T, C), lse(ops, DType::F32, B * 2, T);
  std::map<std::string, OpCost> costs;
  ops.profile(&costs);
  ops.matmul(logits.out(), a.in(), w.in(), {.transpose_b = true});
  ops.matmul(logits.out(), a.in(), w.in(), {.transpose_b = true, .accumulate = true});
  ops.linear_cross_entropy(nll.out(), {}, {}, a.in(), w.in(), targets.in(), scratch.out(), 1,
                           false);
  ops.attention_forward(out.out(), lse.out(), q.in(), q.in(), q.in(), {B, T, 2, 2, C / 2});
  ops.profile(nullptr);
  ops.fill(logits.out(), 0);  // no longer counted
  ASSERT_EQ(costs.size(), 3u);
  const OpCost &matmul = costs["matmul"], &head = costs["linear_cross_entropy"],
               &attention = costs["attention_forward"];
  EXPECT_EQ(matmul.calls, 2);
  EXPECT_EQ(matmul.flops, 2 * 2 * T * V * C);
  EXPECT_EQ(matmul.bytes, 2 * (T * C + V * C) * x + 3 * T * V * 4);  // the second reads C as well
  EXPECT_GT(matmul.seconds, 0);
  EXPECT_EQ(head.calls, 1);
  EXPECT_EQ(head.flops, 2 * T * V * C);
  EXPECT_EQ(head.bytes, (T * C + V * C) * x + 2 * T * 4);
  EXPECT_EQ(attention.flops, 2 * 2 * (1 + 2 + 3 + 4 + 5) * C);  // two products of each visible pair
  EXPECT_EQ(attention.bytes, 4 * T * C * x + 2 * T * 4);
}

TEST_P(TensorTest, MixedTypesAreRefused) {
  const DType other = X == DType::F32 ? DType::BF16 : DType::F32;
  Array a(ops, X, normal(4, 4, 1)), b(ops, other, normal(4, 4, 2)), c(ops, DType::BF16, 4, 4);
  expect_refused([&] { ops.matmul(c.in(), a.in(), b.in()); }, {"matmul", "BF16[4,4]", "F32[4,4]"});
  expect_refused([&] { ops.gelu_forward(a.in(), b.in()); },
                 {"gelu_forward", "BF16[4,4]", "F32[4,4]"});
  expect_refused([&] { ops.sum_squares(c.in()); }, {"sum_squares", "BF16[4,4]"});
}

}  // namespace
}  // namespace loqal::test
