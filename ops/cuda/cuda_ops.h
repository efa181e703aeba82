// CudaOps: every operation on one NVIDIA GPU. One object owns its device, stream, cuBLASLt handle
// and workspace; nothing is global, so several may live in one process. All work goes onto one
// stream, in the order of the calls; only download(), sum_squares() and peak_flops() wait for it.
//
// Results do not depend on the order in which a GPU runs blocks: no float atomics; every sum is a
// fixed tree over chunks that follow from the shapes. One op family per file, the names of
// ops/cpu/.
#pragma once
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <array>
#include <map>
#include <optional>
#include <string>

#include "ops/ops.h"

namespace loqal {

class CudaOps final : public Ops {
 public:
  CudaOps(int device, bool dry);
  ~CudaOps() override;

  std::string description() const override;
  bool has_fast_bf16() const override { return true; }  // sm_80 is the least that is built for
  double peak_flops(DType type) override;

 protected:
  void do_wait() override;
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
  /// The stream, after making the device this thread's current one.
  cudaStream_t stream();
  /// Scratch of the operation that runs, at least so large; its content is undefined. The stream's
  /// order makes sharing it safe.
  void* workspace(int64_t bytes);
  /// to[j] (+)= sum over the `count` rows of `partials` [count, width] of column first + j.
  void add_partials(const Tensor& to, const float* partials, int64_t count, int64_t width,
                    int64_t first, bool accumulate);
  /// Attention of T queries of each of B sequences, which end S keys; lse may be empty.
  void attend(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
              const Tensor& v, const AttentionShape& s, int64_t S);
  /// LayerNorm (kCentered) or RMSNorm, which has neither mean nor db.
  template <bool kCentered>
  void norm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy,
                     const Tensor& x, const Tensor& w, const float* mean, const float* rstd,
                     bool accumulate_dx, bool accumulate_dw);
  void add(const Tensor& c, const Tensor& x);  ///< c += x, of the same type
  void run_matmul(const Tensor& d, const Tensor& a, const Tensor& b, const Tensor& c,
                  const MatmulArgs& args);

  static constexpr int64_t kGemmBytes = 32 << 20;  // what cuBLASLt wants on Hopper

  int device_;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t handle_ = nullptr;
  /// cuBLASLt's choice for a product, by everything that the choice depends on.
  std::map<std::array<int64_t, 15>, std::optional<cublasLtMatmulAlgo_t>> algorithms_;
  Buffer workspace_;
  double peak_[2] = {0, 0};  // fp32, bf16; measured on first use
};

}  // namespace loqal
