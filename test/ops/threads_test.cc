// Results are the same bytes for any number of threads, and twice: every operation, at sizes that
// are split, on the CPU with 1, 2 and 3 threads. reports.md N4, N7.
#include "test/ops/splits.h"

namespace loqal::test {
namespace {

/// Inputs that the test's own arithmetic has no part in: random statistics serve as well as true
/// ones.
Images matmul_images(Ops& ops, DType X) {
  Images images;
  for (int flags = 0; flags < 8; flags++) {
    const bool ta = flags & 1, tb = flags & 2, wide = flags & 4;
    const int64_t M = 261, N = wide ? 700 : 130, K = wide ? 97 : 513;
    Array a(ops, X, ta ? normal(K, M, 1) : normal(M, K, 1)),
        b(ops, X, tb ? normal(N, K, 2) : normal(K, N, 2));
    Array c(ops, wide ? DType::F32 : X, normal(M, N, 3)), bias(ops, DType::F32, normal(1, N, 4));
    Array residual(ops, wide ? DType::F32 : X, normal(M, N, 5));
    ops.matmul(c.out(), a.in(), b.in(), {ta, tb, wide, bias.in(), residual.in()});
    images.push_back(c.bytes());
  }
  return images;
}

Images norm_images(Ops& ops, DType X) {
  const int64_t N = 515, C = 200;
  Array x(ops, X, normal(N, C, 1)), w(ops, DType::F32, normal(1, C, 2)),
      b(ops, DType::F32, normal(1, C, 3));
  Array dy(ops, X, normal(N, C, 4)), y(ops, X, N, C), y2(ops, X, N, C),
      stats(ops, DType::F32, 2, N), stats2(ops, DType::F32, 1, N), db2(ops, DType::F32, 1, C);
  Array dx(ops, X, N, C), dw(ops, DType::F32, 1, C), db(ops, DType::F32, 1, C), dx2(ops, X, N, C),
      dw2(ops, DType::F32, 1, C);
  ops.layernorm_forward(y.out(), stats.out(), x.in(), w.in(), b.in(), 1e-5f);
  ops.layernorm_backward(dx.out(), dw.out(), db.out(), dy.in(), x.in(), w.in(), stats.in(), false,
                         false);
  ops.rmsnorm_forward(y2.out(), stats2.out(), x.in(), w.in(), 1e-5f);
  ops.rmsnorm_backward(dx2.out(), dw2.out(), dy.in(), x.in(), w.in(), stats2.in(), false, false);
  ops.bias_backward(db2.out(), dy.in(), false);
  return {y.bytes(),  stats.bytes(),  dx.bytes(),  dw.bytes(),  db.bytes(),
          y2.bytes(), stats2.bytes(), dx2.bytes(), dw2.bytes(), db2.bytes()};
}

Images attention_images(Ops& ops, DType X, const AttentionShape& s) {
  const int64_t N = s.B * s.T, Q = s.NH * s.HS, K = s.NKV * s.HS;
  Array q(ops, X, normal(N, Q, 1)), k(ops, X, normal(N, K, 2)), v(ops, X, normal(N, K, 3)),
      dout(ops, X, normal(N, Q, 4));
  Array out(ops, X, N, Q), lse(ops, DType::F32, s.B * s.NH, s.T), dq(ops, X, N, Q),
      dk(ops, X, N, K), dv(ops, X, N, K);
  Array table(ops, DType::F32, normal(s.T, s.HS, 5));
  ops.rope(q.out(), table.in(), s.T, s.HS, false);
  ops.attention_forward(out.out(), lse.out(), q.in(), k.in(), v.in(), s);
  ops.attention_backward(dq.out(), dk.out(), dv.out(), dout.in(), out.in(), lse.in(), q.in(),
                         k.in(), v.in(), s);
  Array last(ops, X, 5, Q);  // the first sequence's
  ops.attention_cached(last.out(), q.in().row_slice(s.T - 5, 5), k.in().row_slice(0, s.T),
                       v.in().row_slice(0, s.T), s.HS);
  return {q.bytes(), out.bytes(), lse.bytes(), dq.bytes(), dk.bytes(), dv.bytes(), last.bytes()};
}

Images activation_images(Ops& ops, DType X) {
  const int64_t N = 131, C = 1000;
  Array x(ops, X, normal(N, C, 1)), up(ops, X, normal(N, C, 2)), dy(ops, X, normal(N, C, 3));
  Array y(ops, X, N, C), dx(ops, X, N, C), again(ops, X, N, C), z(ops, X, N, C),
      dgate(ops, X, N, C), dup(ops, X, N, C);
  ops.gelu_forward(y.out(), x.in());
  ops.gelu_backward(dx.out(), again.out(), dy.in(), x.in());
  ops.swiglu_forward(z.out(), x.in(), up.in());
  ops.swiglu_backward(dgate.out(), dup.out(), {}, dy.in(), x.in(), up.in());
  return {y.bytes(), dx.bytes(), again.bytes(), z.bytes(), dgate.bytes(), dup.bytes()};
}

Images embedding_images(Ops& ops, DType X) {
  const int64_t B = 3, T = 300, C = 100, V = 61;
  Array tokens(ops, random_ids(B * T, V, 1)), wte(ops, X, normal(V, C, 2)),
      wpe(ops, X, normal(T, C, 3));
  Array x(ops, X, B * T, C), dx(ops, X, normal(B * T, C, 4)), dwte(ops, DType::F32, V, C),
      dwpe(ops, DType::F32, T, C);
  ops.embedding_forward(x.out(), tokens.in(), wte.in(), wpe.in(), T);
  ops.embedding_backward(dwte.out(), dwpe.out(), dx.in(), tokens.in(), T, false, false);
  return {x.bytes(), dwte.bytes(), dwpe.bytes()};
}

Images loss_images(Ops& ops, DType X) {
  const int64_t N = 201, C = 48, V = 1000;
  Array x(ops, X, normal(N, C, 1)), w(ops, X, normal(V, C, 2)),
      targets(ops, random_ids(N, V, 3, true));
  Array scratch(ops, DType::F32, 96, V), nll(ops, DType::F32, 1, N), dx(ops, X, N, C),
      dw(ops, DType::F32, V, C);
  ops.linear_cross_entropy(nll.out(), dx.out(), dw.out(), x.in(), w.in(), targets.in(),
                           scratch.out(), 0.1f, false);
  return {nll.bytes(), dx.bytes(), dw.bytes()};
}

Images optimizer_images(Ops& ops, DType) {
  const int64_t n = 100003;
  Array p(ops, DType::F32, normal(1, n, 1)), g(ops, DType::F32, normal(1, n, 2)),
      m(ops, DType::F32, normal(1, n, 3)), v(ops, DType::F32, Mat<double>(1, n, 0.5)),
      copy(ops, DType::BF16, 1, n), y(ops, DType::BF16, 1, n), z(ops, DType::F32, 1, n);
  ops.adamw(p.out(), copy.out(), g.in(), m.out(), v.out(),
            {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 3, 0.7f});
  Array half(ops, DType::BF16, normal(1, n, 4));
  ops.adamw(half.out(), {}, g.in(), m.out(), v.out(), {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 4, 0.7f});
  ops.copy(y.out(), g.in());
  ops.fill(z.out(), 3.25f);
  const double sum = ops.sum_squares(p.in());
  std::vector<char> sum_bytes(reinterpret_cast<const char*>(&sum),
                              reinterpret_cast<const char*>(&sum) + 8);
  return {p.bytes(),    half.bytes(), m.bytes(), v.bytes(),
          copy.bytes(), y.bytes(),    z.bytes(), sum_bytes};
}

}  // namespace

const std::vector<Split> kSplits = {{"matmul", matmul_images},
                                    {"norm", norm_images},
                                    {"attention",
                                     [](Ops& o, DType X) {
                                       return attention_images(o, X, {2, 200, 4, 2, 32});
                                     }},
                                    {"attention, HS=20",
                                     [](Ops& o, DType X) {
                                       return attention_images(o, X, {1, 70, 2, 2, 20});
                                     }},
                                    {"activation", activation_images},
                                    {"embedding", embedding_images},
                                    {"loss", loss_images},
                                    {"optimizer", optimizer_images}};

namespace {

void expect_same_bytes(const Images& a, const Images& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); i++)
    EXPECT_TRUE(a[i] == b[i]) << what << ": output " << i << " differs";
}

TEST(ThreadsTest, SameBytesForAnyNumberOfThreads) {
  const std::unique_ptr<Ops> one = make_cpu_ops(1), two = make_cpu_ops(2), three = make_cpu_ops(3);
  for (const Split& split : kSplits)
    for (const DType X : {DType::F32, DType::BF16}) {
      SCOPED_TRACE(cat(split.name, " ", name_of(X)));
      const Images expected = split.run(*one, X);
      expect_same_bytes(expected, split.run(*two, X), "2 threads");
      expect_same_bytes(expected, split.run(*three, X), "3 threads");
    }
}

LOQAL_OP_TESTS(RepeatTest);

TEST_P(RepeatTest, TheSameCallGivesTheSameBytes) {
  for (const Split& split : kSplits)
    expect_same_bytes(split.run(ops, X), split.run(ops, X), split.name);
}

/// Leaves NaN in every workspace that an operation may keep, in more of it than the tests above
/// use.
void poison(Ops& ops, DType X) {
  const auto nan = [](int64_t rows, int64_t cols) { return Mat<double>(rows, cols, NAN); };
  const AttentionShape s{2, 257, 4, 2, 64};
  const int64_t N = s.B * s.T, Q = s.NH * s.HS, K = s.NKV * s.HS, V = 1100;
  Array q(ops, X, nan(N, Q)), k(ops, X, nan(N, K)), v(ops, X, nan(N, K)),
      lse(ops, DType::F32, nan(s.B * s.NH, s.T));
  Array wide(ops, X, nan(Q, V)), product(ops, X, N, V), w(ops, DType::F32, nan(1, Q)),
      dw(ops, DType::F32, 1, Q);
  Array bias(ops, DType::F32, nan(1, V)), table(ops, DType::F32, nan(s.T, s.HS)),
      stats(ops, DType::F32, nan(2, N));
  ops.attention_forward(q.out(), lse.out(), q.in(), k.in(), v.in(), s);
  Array dq(ops, X, N, Q), dk(ops, X, N, K), dv(ops, X, N, K), db(ops, DType::F32, 1, Q);
  ops.attention_backward(dq.out(), dk.out(), dv.out(), q.in(), q.in(), lse.in(), q.in(), k.in(),
                         v.in(), s);
  ops.rope(q.out(), table.in(), s.T, s.HS, false);
  ops.matmul(product.out(), q.in(), wide.in(), {false, false, false, bias.in(), {}});
  ops.layernorm_backward(dq.out(), dw.out(), db.out(), q.in(), q.in(), w.in(), stats.in(), false,
                         false);
  EXPECT_TRUE(std::isnan(ops.sum_squares(w.in())));
}

TEST_P(RepeatTest, NaNDoesNotLiveOnInAWorkspace) {
  std::vector<Images> clean;  // all before the first NaN, or there would be nothing to compare with
  for (const Split& split : kSplits) clean.push_back(split.run(ops, X));
  for (size_t i = 0; i < kSplits.size(); i++) {
    poison(ops, X);
    expect_same_bytes(clean[i], kSplits[i].run(ops, X), kSplits[i].name);
  }
}

}  // namespace
}  // namespace loqal::test
