// CpuOps: every operation on the CPU. Work is cut into tasks that depend on the shapes alone and
// write disjoint memory; see core/threads.h. One op family per file, the same names as ops/cuda.
#pragma once
#include <vector>

#include "core/threads.h"
#include "ops/ops.h"

namespace loqal {

class CpuOps final : public Ops {
 public:
  CpuOps(int threads, bool dry) : Ops(dry), pool_(dry ? 1 : threads) {}

  std::string description() const override;
  bool has_fast_bf16() const override;
  double peak_flops(DType type) override;

 protected:
  void* do_alloc(int64_t bytes) override;
  void do_free(void* data, int64_t bytes) override;
  void do_upload(const Tensor& dst, const void* host) override;
  void do_download(void* host, const Tensor& src) override;
  void do_fill(const Tensor& y, float value) override;
  void do_copy(const Tensor& y, const Tensor& x) override;
  double do_sum_squares(const Tensor& x) override;
  double do_dot(const Tensor& x, const Tensor& y) override;
  void do_axpby(const Tensor& y, float a, const Tensor& x, float b) override;
  void do_quantize(const QTensor& q, const Tensor& x, Rounding rounding,
                   const PhiloxStream& stream) override;
  void do_dequantize(const Tensor& y, const QTensor& q) override;
  void do_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                 const MatmulArgs& args) override;
  void do_bias_backward(const Tensor& db, const Tensor& dy, bool accumulate) override;
  void do_embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                            const Tensor& wpe, int64_t T) override;
  void do_embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                             const Tensor& tokens, int64_t T, bool accumulate_wte,
                             bool accumulate_wpe) override;
  void do_layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                            const Tensor& b, float eps) override;
  void do_layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy,
                             const Tensor& x, const Tensor& w, const Tensor& stats,
                             bool accumulate_dx, bool accumulate_dw) override;
  void do_rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                          float eps) override;
  void do_rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& stats, bool accumulate_dx,
                           bool accumulate_dw) override;
  void do_rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS, bool inverse) override;
  void do_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                            const Tensor& v, const AttentionShape& s) override;
  void do_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dout, const Tensor& out, const Tensor& lse,
                             const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionShape& s) override;
  void do_attention_cached(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                           int64_t HS) override;
  void do_gelu_forward(const Tensor& y, const Tensor& x) override;
  void do_gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy,
                        const Tensor& x) override;
  void do_swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up) override;
  void do_swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y, const Tensor& dy,
                          const Tensor& gate, const Tensor& up) override;
  void do_linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw,
                               const Tensor& x, const Tensor& w, const Tensor& targets,
                               const Tensor& scratch, float scale, bool accumulate_dw) override;
  void do_adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                const Tensor& v, const AdamWArgs& args) override;
  void do_adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                    const Moment8& v, const AdamWArgs& args) override;

 private:
  template <class P>
  void adamw(P* pp, int64_t count, const Tensor& copy, const Tensor& g, const Tensor& m,
             const Tensor& v, const AdamWArgs& args);
  /// Runs rows(first, last) over [0, n) in tasks of about `bytes_per_row`-sized work.
  template <class Rows>
  void for_rows(int64_t n, int64_t elements_per_row, const Rows& rows) {
    pool_.chunks(n, std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements_per_row)),
                 rows);
  }
  /// Cuts n rows into at most kPartials chunks and adds their fp32 column sums in order:
  /// out[j] (+)= sum over chunks of part(first, last, partial)[j], j < width.
  template <class Part>
  void column_sums(int64_t n, int64_t width, const std::vector<Tensor>& out, bool accumulate,
                   const Part& part);

  static constexpr int64_t kTaskElements = 1 << 14;
  static constexpr int64_t kPartials = 64;

  ThreadPool pool_;
  std::vector<float> partials_;
  double peak_[2] = {0, 0};  // fp32, bf16; measured on first use
};

/// Calls f(T{}) with T = float or bf16 according to the tensor's type.
template <class F>
decltype(auto) dispatch(const Tensor& x, const F& f) {
  if (x.dtype == DType::BF16) return f(bf16{});
  return f(float{});
}

/// See the declaration. `out` lists consecutive slices of the partial row.
template <class Part>
void CpuOps::column_sums(int64_t n, int64_t width, const std::vector<Tensor>& out, bool accumulate,
                         const Part& part) {
  const int64_t grain = std::max<int64_t>(16, (n + kPartials - 1) / kPartials);
  const int64_t count = (n + grain - 1) / grain;
  partials_.assign(size_t(count * width), 0.0f);
  pool_.run(count, [&](int64_t c) {
    part(c * grain, std::min(n, (c + 1) * grain), partials_.data() + c * width);
  });
  int64_t begin = 0;
  for (const Tensor& t : out) {
    float* to = t.as<float>();
    for_rows(t.numel(), count, [&](int64_t first, int64_t last) {
      for (int64_t j = first; j < last; j++) {
        float sum = accumulate ? to[j] : 0.0f;
        for (int64_t c = 0; c < count; c++) sum += partials_[size_t(c * width + begin + j)];
        to[j] = sum;
      }
    });
    begin += t.numel();
  }
}

}  // namespace loqal
