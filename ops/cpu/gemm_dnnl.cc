// oneDNN back end of gemm(). Compiled when the library is there (LOQAL_DNNL=1).
//
// Two facts shape it (shared by all oneDNN users): a primitive fixes its thread count when it is
// created and must run on the thread that created it; and creating one costs far more than running
// it. Hence a cache per thread, keyed by everything that defines the product, and one OpenMP thread
// per caller: parallelism is ours, over a fixed grid of panels.
#if LOQAL_DNNL
#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <map>

#include "core/error.h"
#include "ops/cpu/gemm.h"

namespace loqal::cpu {

namespace {

using dnnl::memory;
using Key = std::array<int64_t, 9>;

struct Product {
  dnnl::matmul primitive;
  memory a, b, c;
};

memory::desc matrix(int64_t rows, int64_t cols, int64_t ld, bool transpose, DType type) {
  const memory::dims strides = transpose ? memory::dims{1, ld} : memory::dims{ld, 1};
  return {{rows, cols},
          type == DType::BF16 ? memory::data_type::bf16 : memory::data_type::f32,
          strides};
}

class ThreadCache {
 public:
  ThreadCache() : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) { omp_set_num_threads(1); }

  void run(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b, float* c,
           int64_t ldc, bool accumulate) {
    const int64_t flags = int64_t(a.transpose) | int64_t(b.transpose) << 1 |
                          int64_t(accumulate) << 2 | int64_t(a.dtype == DType::BF16) << 3;
    const Key key = {m, n, k, a.ld, b.ld, ldc, flags};
    auto found = products_.find(key);
    if (found == products_.end())
      found = products_.emplace(key, create(m, n, k, a, b, ldc, accumulate)).first;
    Product& product = found->second;
    product.a.set_data_handle(const_cast<void*>(a.data));
    product.b.set_data_handle(const_cast<void*>(b.data));
    product.c.set_data_handle(c);
    product.primitive.execute(
        stream_,
        {{DNNL_ARG_SRC, product.a}, {DNNL_ARG_WEIGHTS, product.b}, {DNNL_ARG_DST, product.c}});
  }

 private:
  Product create(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
                 int64_t ldc, bool accumulate) {
    const memory::desc ad = matrix(m, k, a.ld, a.transpose, a.dtype);
    const memory::desc bd = matrix(k, n, b.ld, b.transpose, b.dtype);
    const memory::desc cd = matrix(m, n, ldc, false, DType::F32);
    dnnl::primitive_attr attributes;
    if (accumulate) {
      dnnl::post_ops sum;
      sum.append_sum(1.0f);
      attributes.set_post_ops(sum);
    }
    const dnnl::matmul::primitive_desc description({ad, bd, cd}, attributes, engine_);
    return {dnnl::matmul(description), memory(ad, engine_, nullptr), memory(bd, engine_, nullptr),
            memory(cd, engine_, nullptr)};
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  std::map<Key, Product> products_;
};

}  // namespace

bool dnnl_multiplies(DType type) {
  static const int isa = int(dnnl::get_effective_cpu_isa());
  const int needed =
      int(type == DType::BF16 ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx512_core);
  return (isa & needed) == needed;
}

std::string gemm_library() {
  if (!dnnl_multiplies(DType::F32)) return "built-in GEMM";
  const dnnl_version_t* v = dnnl_version();
  return cat("oneDNN ", v->major, ".", v->minor, ".", v->patch);
}

void dnnl_gemm(int64_t m, int64_t n, int64_t k, const GemmOperand& a, const GemmOperand& b,
               float* c, int64_t ldc, bool accumulate) {
  thread_local ThreadCache cache;
  cache.run(m, n, k, a, b, c, ldc, accumulate);
}

}  // namespace loqal::cpu
#endif
