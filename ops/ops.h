// Ops: the compute contract. Every operation that the program performs on tensors is here, with its
// math; model/, optim/ and async/ call nothing else. One object per worker and device; it owns
// threads (CPU) or stream, handles and workspace (CUDA). Nothing is global.
//
// Conventions
//   Outputs come first. "=" overwrites, "+=" accumulates; where both exist there is a flag.
//   N = B*T rows, row n = b*T + t. X is the compute type of activations and matrices: F32 or BF16,
//   the same for all X operands of a call. Sums, statistics, norm weights, biases, gradients of
//   weights: F32. An empty Tensor ({}) means "not wanted" where the comment allows it. Results are
//   the same bytes for any number of threads.
// The public functions check shapes and types once for all devices (ops.cc) and then call do_*().
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/philox.h"
#include "core/quant_format.h"
#include "core/tensor.h"

namespace loqal {

class Ops;

/// Owned device memory; frees itself. In a dry run it has a size and no memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Ops* ops, void* data, int64_t bytes, std::string category)
      : ops_(ops), data_(data), bytes_(bytes), category_(std::move(category)) {}
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer();
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  Ops* ops_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  std::string category_;
};

struct MatmulArgs {
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;  ///< C += instead of C =
  Tensor bias;              ///< F32 [1, cols of C], added to each row; may be empty. May be rounded
                            ///< to C's type first
  Tensor residual;          ///< X [like C], added; may be empty; may not overlap C
};

/// What the calls of one operation did: the least arithmetic and memory traffic that its definition
/// needs (each operand once), and the time it took. time / max(flops / peak, bytes / bandwidth)
/// says how far it is from the machine's floor.
struct OpCost {
  int64_t calls = 0;
  double seconds = 0, flops = 0, bytes = 0;
};

struct AttentionShape {
  int64_t B, T, NH, NKV, HS;
};

struct AdamWArgs {
  float lr, beta1, beta2, eps, weight_decay;
  int64_t step;      ///< 1 for the first update: bias correction 1 - beta^step
  float grad_scale;  ///< the gradient is multiplied by this first (clipping)
  PhiloxStream rounding{0, Purpose::rounding};  ///< of p in BF16
};

/// A moment of Adam in 8 bits: a code of the dynamic map for each element, and the largest
/// magnitude of each kMomentBlock of them.
constexpr int64_t kMomentBlock = 256;
struct Moment8 {
  Tensor codes;   ///< U8 [like p]
  Tensor absmax;  ///< F32 [1, numel / 256, rounded up]
};

class Ops {
 public:
  virtual ~Ops() = default;

  // ---- device and memory ------------------------------------------------------------------
  virtual std::string description() const = 0;  ///< "CPU, 2 threads, oneDNN 2.6.3 (avx2)"
  virtual bool has_fast_bf16() const = 0;       ///< whether --precision auto takes bf16
  virtual double peak_flops(DType type) = 0;    ///< FLOP/s of a large matmul, measured once

  /// Zeroed memory, 64-byte aligned. Error with the memory table if there is not enough.
  Buffer alloc(int64_t bytes, const std::string& category);
  /// Bytes by category, current and (over the life of this object) peak of the sum.
  const std::map<std::string, int64_t>& memory_table() const { return memory_; }
  int64_t peak_bytes() const { return peak_; }
  bool dry() const { return dry_; }  ///< nothing is allocated or computed, only counted

  /// From now on adds up what each operation costs, by its name; one called by another counts with
  /// its caller. nullptr ends it. Waits for the device after every call: for benchmarks only.
  void profile(std::map<std::string, OpCost>* costs) { costs_ = costs; }

  void upload(const Tensor& dst, const void* host);  ///< dst = contiguous host elements of its type
  void download(void* host, const Tensor& src);      ///< waits until the data is there

  // ---- whole tensors ----------------------------------------------------------------------
  void fill(const Tensor& y, float value);       ///< y = value
  void copy(const Tensor& y, const Tensor& x);   ///< y = x, converting between F32 and BF16
  double sum_squares(const Tensor& x);           ///< sum of x^2 (F32), fixed order, in double
  double dot(const Tensor& x, const Tensor& y);  ///< sum of x y, likewise
  /// y = a x + b y, F32, contiguous. b 0: y is not read. x may be y.
  void axpby(const Tensor& y, float a, const Tensor& x, float b);

  // ---- quantization (core/quant_format.h has the layout) -----------------------------------
  /// q = x F32 or BF16 [like q], contiguous. The bytes depend on x, the format and the stream
  /// alone: they are the same on all devices. Element i takes half(i) of `stream` if rounding is
  /// stochastic: then the mean of an int8 value is the value (nf4 rounds absmax to the nearest,
  /// which shifts the mean of its block), except that one within 2^-12 of a step from the grid goes
  /// to it, so that quantizing what dequantize() gave (in F32) changes no code.
  ///   int8  scale = absmax / 127, down to 17 bits: code * scale and absmax are exact in fp32, and
  ///   so
  ///         requantizing changes no byte; code = x / scale, ties to even, at most 127 in
  ///         magnitude.
  ///   nf4   the nearest code for x / absmax, ties to the lower one.
  /// A block whose scale (nf4: absmax) would be below 2^-126 is zero. One with a value that is not
  /// finite becomes NaN, and with it in nf4, whose scales have a mean in common, the whole matrix:
  /// nothing is hidden.
  void quantize(const QTensor& q, const Tensor& x, Rounding rounding, const PhiloxStream& stream);
  /// y (F32 or BF16 [like q], contiguous) = the values that q stands for.
  void dequantize(const Tensor& y, const QTensor& q);

  // ---- matrix products --------------------------------------------------------------------
  /// C[M,N] (+)= op(A)[M,K] op(B)[K,N] + bias + residual. A, B: X; C: X or F32. fp32 sums.
  void matmul(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulArgs& args = {});
  /// db[1,O] (+)= sum over rows of dy X[N,O].
  void bias_backward(const Tensor& db, const Tensor& dy, bool accumulate);

  // ---- embedding --------------------------------------------------------------------------
  /// x[N,C] = wte[token,C] (+ wpe[t,C], may be empty). tokens I32[1,N]; T rows per sequence.
  void embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                         const Tensor& wpe, int64_t T);
  /// dwte[token] (+)= dx, dwpe[t] (+)= dx; F32. Without accumulate_* rows that no token names
  /// become 0.
  void embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                          const Tensor& tokens, int64_t T, bool accumulate_wte,
                          bool accumulate_wpe);

  // ---- norms ------------------------------------------------------------------------------
  /// y = (x - mean) * rstd * w + b, rstd = 1/sqrt(var + eps). stats F32[2,N]: mean, rstd. w, b:
  /// F32[1,C].
  void layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                         const Tensor& b, float eps);
  /// dx (+)= ..., dw (+)= sum dy*xhat, db (+)= sum dy.
  void layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy,
                          const Tensor& x, const Tensor& w, const Tensor& stats, bool accumulate_dx,
                          bool accumulate_dw);
  /// y = x * rstd * w, rstd = 1/sqrt(mean(x^2) + eps). stats F32[1,N]: rstd (Zhang & Sennrich
  /// 2019).
  void rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                       float eps);
  void rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                        const Tensor& w, const Tensor& stats, bool accumulate_dx,
                        bool accumulate_dw);

  // ---- attention --------------------------------------------------------------------------
  /// In place, per head: (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of the head
  /// (half-split, Su et al. 2021 as in HF Llama). x X[N, heads*HS]; table F32[T', HS]: HS/2
  /// cosines, then HS/2 sines. inverse: rotates back, which is also the backward pass.
  void rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS, bool inverse);
  /// Causal softmax(q k^T / sqrt(HS)) v by online softmax; T x T is never stored (Dao et al. 2022).
  /// out, q X[N, NH*HS]; k, v X[N, NKV*HS]; head h reads k/v head h / (NH/NKV); lse F32[B*NH, T].
  void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                         const Tensor& v, const AttentionShape& s);
  /// dq, dk, dv = gradients (overwritten).
  void attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                          const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                          const Tensor& v, const AttentionShape& s);
  /// The same for the last positions of one sequence, over the kept keys and values of all: query t
  /// of q, out X[T, NH*HS] is position S - T + t and sees those up to itself. k, v X[S, NKV*HS].
  void attention_cached(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                        int64_t HS);

  // ---- activations ------------------------------------------------------------------------
  /// y = 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
  void gelu_forward(const Tensor& y, const Tensor& x);
  /// dx = dy * gelu'(x), and again y = gelu(x), which the caller did not keep (empty: not wanted).
  /// dx may be dy.
  void gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy, const Tensor& x);
  /// y = silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer 2020).
  void swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up);
  /// dgate, dup = gradients, and again y (empty: not wanted). dgate may be gate, dup may be up.
  void swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y, const Tensor& dy,
                       const Tensor& gate, const Tensor& up);

  // ---- head and loss ----------------------------------------------------------------------
  /// Output projection and cross-entropy, fused and chunked over rows: logits = x w^T exist only
  /// for scratch.rows rows at a time. x X[N,C]; w X[V,C]; targets I32[1,N], -1 = ignored; scratch
  /// F32[rows >= 1, V]. nll F32[1,N] = log sum exp(logits) - logits[target], 0 where ignored. With
  /// dx (X[N,C]) and dw (F32[V,C]): gradients of scale * sum(nll); dx overwritten, dw (+)=.
  void linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw, const Tensor& x,
                            const Tensor& w, const Tensor& targets, const Tensor& scratch,
                            float scale, bool accumulate_dw);

  // ---- optimizer --------------------------------------------------------------------------
  /// AdamW (Loshchilov & Hutter 2019), in PyTorch's order: p -= lr*wd*p;
  /// m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2; p -= lr/(1-b1^t) * m / (sqrt(v/(1-b2^t)) + eps).
  /// p, g, m, v F32 alike; copy BF16 alike = bf16(p), may be empty. p may be BF16 itself, without a
  /// copy: then it is rounded stochastically, element i by half(i) of args.rounding; to-nearest
  /// would lose every update below 1/512 of p.
  void adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m, const Tensor& v,
             const AdamWArgs& args);
  /// The same with moments in 8 bits, contiguous (Dettmers et al. 2022): the update comes from the
  /// new moments before they are rounded. m has bitsandbytes' signed dynamic map, v the unsigned
  /// one, the nearest value, ties to the lower; a negative m never becomes 0, nor a positive v: a
  /// step divided by eps alone would be a leap. A block with a moment that is not finite is NaN
  /// from the next step on. p, copy and g as in adamw().
  void adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                 const Moment8& v, const AdamWArgs& args);

 protected:
  explicit Ops(bool dry) : dry_(dry) {}

  virtual void do_wait() {}  ///< until the device has done all that was asked of it
  virtual void* do_alloc(int64_t bytes) = 0;  ///< nullptr if there is not enough
  virtual void do_free(void* data, int64_t bytes) = 0;
  virtual void do_upload(const Tensor& dst, const void* host) = 0;
  virtual void do_download(void* host, const Tensor& src) = 0;
  virtual void do_fill(const Tensor& y, float value) = 0;
  virtual void do_copy(const Tensor& y, const Tensor& x) = 0;
  virtual double do_sum_squares(const Tensor& x) = 0;
  virtual double do_dot(const Tensor& x, const Tensor& y) = 0;
  virtual void do_axpby(const Tensor& y, float a, const Tensor& x, float b) = 0;
  virtual void do_quantize(const QTensor& q, const Tensor& x, Rounding rounding,
                           const PhiloxStream& stream) = 0;
  virtual void do_dequantize(const Tensor& y, const QTensor& q) = 0;
  virtual void do_matmul(const Tensor& c, const Tensor& a, const Tensor& b,
                         const MatmulArgs& args) = 0;
  virtual void do_bias_backward(const Tensor& db, const Tensor& dy, bool accumulate) = 0;
  virtual void do_embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                                    const Tensor& wpe, int64_t T) = 0;
  virtual void do_embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                                     const Tensor& tokens, int64_t T, bool accumulate_wte,
                                     bool accumulate_wpe) = 0;
  virtual void do_layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                    const Tensor& w, const Tensor& b, float eps) = 0;
  virtual void do_layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db,
                                     const Tensor& dy, const Tensor& x, const Tensor& w,
                                     const Tensor& stats, bool accumulate_dx,
                                     bool accumulate_dw) = 0;
  virtual void do_rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x,
                                  const Tensor& w, float eps) = 0;
  virtual void do_rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy,
                                   const Tensor& x, const Tensor& w, const Tensor& stats,
                                   bool accumulate_dx, bool accumulate_dw) = 0;
  virtual void do_rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS,
                       bool inverse) = 0;
  virtual void do_attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q,
                                    const Tensor& k, const Tensor& v, const AttentionShape& s) = 0;
  virtual void do_attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                                     const Tensor& dout, const Tensor& out, const Tensor& lse,
                                     const Tensor& q, const Tensor& k, const Tensor& v,
                                     const AttentionShape& s) = 0;
  virtual void do_attention_cached(const Tensor& out, const Tensor& q, const Tensor& k,
                                   const Tensor& v, int64_t HS) = 0;
  virtual void do_gelu_forward(const Tensor& y, const Tensor& x) = 0;
  virtual void do_gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy,
                                const Tensor& x) = 0;
  virtual void do_swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up) = 0;
  virtual void do_swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y,
                                  const Tensor& dy, const Tensor& gate, const Tensor& up) = 0;
  virtual void do_linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw,
                                       const Tensor& x, const Tensor& w, const Tensor& targets,
                                       const Tensor& scratch, float scale, bool accumulate_dw) = 0;
  virtual void do_adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                        const Tensor& v, const AdamWArgs& args) = 0;
  virtual void do_adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                            const Moment8& v, const AdamWArgs& args) = 0;

 private:
  friend class Buffer;
  class Timed;
  void release(void* data, int64_t bytes, const std::string& category);

  bool dry_;
  std::map<std::string, int64_t> memory_;
  int64_t current_ = 0, peak_ = 0;
  std::map<std::string, OpCost>* costs_ = nullptr;
};

/// threads 0: all usable CPUs. dry: counts memory, starts nothing.
std::unique_ptr<Ops> make_cpu_ops(int threads = 0, bool dry = false);

/// On a GPU that is usable(). dry: counts memory, needs no GPU. Error where the program was built
/// without CUDA, unless dry.
std::unique_ptr<Ops> make_cuda_ops(int device = 0, bool dry = false);

/// Whether the program can use a GPU of this machine.
struct CudaStatus {
  bool usable;
  std::string text;  ///< what it is, or else why it cannot: "there is no NVIDIA driver"
};
CudaStatus cuda_status(int device = 0);
int64_t cuda_free_bytes(int device = 0);  ///< of a usable GPU's memory

}  // namespace loqal
