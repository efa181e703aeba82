// Token and position embedding.
#include "test/ops/op_test.h"

namespace loqal::test {
namespace {

LOQAL_OP_TESTS(EmbeddingTest);

struct Case {
  int64_t B, T, C, V;
};
const Case kCases[] = {
    {1, 1, 1, 3}, {2, 2, 5, 3}, {3, 65, 33, 61}, {2, 64, 768, 1000}, {1, 130, 20, 61}};

TEST_P(EmbeddingTest, Forward) {
  for (const auto& [B, T, C, V] : kCases)
    for (const bool positions : {true, false}) {
      SCOPED_TRACE(cat("B=", B, " T=", T, " C=", C, " V=", V, " positions ", positions));
      const Ids ids = random_ids(B * T, V, 1);
      Array tokens(ops, ids), wte(ops, X, normal(V, C, 2)), wpe(ops, X, normal(T + 2, C, 3));
      Array x(ops, X, B * T, C, C % 3);
      ops.embedding_forward(x.out(), tokens.in(), wte.in(), positions ? wpe.in() : Tensor{}, T);
      expect_close(x.after(),
                   ref_embedding(ids, wte.before(), positions ? wpe.before() : none, T, u), "x");
    }
}

TEST_P(EmbeddingTest, Backward) {
  for (const auto& [B, T, C, V] : kCases)
    for (int flags = 0; flags < 8; flags++) {
      const bool positions = flags & 1, acc_wte = flags & 2, acc_wpe = flags & 4;
      SCOPED_TRACE(cat("B=", B, " T=", T, " C=", C, " V=", V, " positions ", positions,
                       " accumulate wte ", acc_wte, " wpe ", acc_wpe));
      const Ids ids = random_ids(B * T, V, 1);
      std::vector<int64_t> token_row(ids.begin(), ids.end()), position_row(ids.size());
      for (size_t n = 0; n < ids.size(); n++) position_row[n] = int64_t(n) % T;
      // Row V and the rows after T are named by nobody: they must become 0, or stay.
      Array tokens(ops, ids), dx(ops, X, normal(B * T, C, 2), C % 3);
      Array dwte(ops, DType::F32, V + 1, C), dwpe(ops, DType::F32, T + 2, C);
      if (acc_wte) dwte.set(normal(V + 1, C, 3));
      if (acc_wpe) dwpe.set(normal(T + 2, C, 4));
      ops.embedding_backward(dwte.out(), positions ? dwpe.out() : Tensor{}, dx.in(), tokens.in(), T,
                             acc_wte, acc_wpe);
      const Mat<Err> wte = ref_embedding_backward(dx.before(), token_row, V + 1);
      const Mat<Err> wpe = ref_embedding_backward(dx.before(), position_row, T + 2);
      expect_close(dwte.after(), acc_wte ? ref_add(wte, dwte.before(), kRoundF32) : wte, "dwte");
      if (positions)
        expect_close(dwpe.after(), acc_wpe ? ref_add(wpe, dwpe.before(), kRoundF32) : wpe, "dwpe");
    }
}

// Every row names the same token: the longest sum, and the worst case for scattered adds.
TEST_P(EmbeddingTest, OneTokenOnly) {
  const Ids ids(300, 1);
  Array tokens(ops, ids), dx(ops, X, normal(300, 17, 2)), dwte(ops, DType::F32, 3, 17);
  ops.embedding_backward(dwte.out(), {}, dx.in(), tokens.in(), 300, false, false);
  expect_close(dwte.after(), ref_embedding_backward(dx.before(), std::vector<int64_t>(300, 1), 3),
               "dwte");
}

}  // namespace
}  // namespace loqal::test
