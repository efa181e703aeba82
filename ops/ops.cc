// The argument checks of every operation, and its entry in the profile, shared by all devices.
#include "ops/ops.h"

#include <chrono>
#include <utility>

namespace loqal {

namespace {

using Named = std::pair<const char*, Tensor>;

// Throws with all operands, so that the message alone is enough to find the mistake.
void require(bool condition, const char* op, const char* what,
             std::initializer_list<Named> operands) {
  if (condition) [[likely]]
    return;
  std::string list;
  for (const auto& [name, t] : operands) list += cat(" ", name, "=", t ? str(t) : "none");
  throw std::logic_error(cat(op, ": ", what, ":", list));
}

bool is_x(const Tensor& t) { return t.dtype == DType::F32 || t.dtype == DType::BF16; }
bool same_shape(const Tensor& a, const Tensor& b) { return a.rows == b.rows && a.cols == b.cols; }
bool same(const Tensor& a, const Tensor& b) { return same_shape(a, b) && a.dtype == b.dtype; }
bool f32(const Tensor& t, int64_t rows, int64_t cols) {
  return t.dtype == DType::F32 && t.rows == rows && t.cols == cols && t.contiguous();
}
bool absent_or(bool ok, const Tensor& t) { return !t || ok; }
bool fits(const QTensor& q, const Tensor& x) {
  const int64_t block = q.format.block;
  return q.rows == x.rows && q.cols == x.cols &&
         (q.format.kind == QuantFormat::Kind::nf4
              ? block == 64
              : q.format.kind == QuantFormat::Kind::int8 &&
                    (block == 64 || block == 128 || block == 256));
}

}  // namespace

/// Adds the call that it stands in to the profile, if there is one. `operands`: one entry for each
/// time that a tensor must cross the memory bus.
class Ops::Timed {
 public:
  Timed(Ops& ops, const char* op, double flops, std::initializer_list<Tensor> operands)
      : ops_(ops), costs_(std::exchange(ops.costs_, nullptr)) {
    if (!costs_) [[likely]]
      return;
    cost_ = &(*costs_)[op];
    cost_->calls++;
    cost_->flops += flops;
    for (const Tensor& t : operands)
      if (t) cost_->bytes += double(t.numel()) * double(size_of(t.dtype));
    start_ = Clock::now();
  }
  Timed(const Timed&) = delete;
  ~Timed() {
    if (!costs_) [[likely]]
      return;
    ops_.do_wait();
    cost_->seconds += std::chrono::duration<double>(Clock::now() - start_).count();
    ops_.costs_ = costs_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  Ops& ops_;
  std::map<std::string, OpCost>* costs_;  // of the outermost call; an inner one finds none
  OpCost* cost_ = nullptr;
  Clock::time_point start_;
};

namespace {
double product(const Tensor& a, const Tensor& b) { return double(a.numel()) * double(b.rows); }
/// Query-key pairs under the causal mask, times the head size.
double pairs(const AttentionShape& s) {
  return double(s.B * s.NH * s.HS) * double(s.T) * double(s.T + 1) / 2;
}
Tensor only_if(bool wanted, const Tensor& t) { return wanted ? t : Tensor{}; }
}  // namespace

void Ops::upload(const Tensor& dst, const void* host) {
  require(dst.contiguous(), "upload", "must be contiguous", {{"dst", dst}});
  do_upload(dst, host);
}

void Ops::download(void* host, const Tensor& src) {
  require(src.contiguous(), "download", "must be contiguous", {{"src", src}});
  do_download(host, src);
}

void Ops::fill(const Tensor& y, float value) {
  require(is_x(y), "fill", "type", {{"y", y}});
  const Timed timed(*this, "fill", 0, {y});
  do_fill(y, value);
}

void Ops::copy(const Tensor& y, const Tensor& x) {
  require(is_x(y) && is_x(x) && same_shape(y, x), "copy", "shapes and types", {{"y", y}, {"x", x}});
  const Timed timed(*this, "copy", 0, {y, x});
  do_copy(y, x);
}

double Ops::sum_squares(const Tensor& x) {
  require(x.dtype == DType::F32 && x.contiguous(), "sum_squares", "F32, contiguous", {{"x", x}});
  const Timed timed(*this, "sum_squares", 0, {x});
  return do_sum_squares(x);
}

double Ops::dot(const Tensor& x, const Tensor& y) {
  require(f32(x, x.rows, x.cols) && f32(y, x.rows, x.cols), "dot", "F32, contiguous, alike",
          {{"x", x}, {"y", y}});
  const Timed timed(*this, "dot", 0, {x, y});
  return do_dot(x, y);
}

void Ops::axpby(const Tensor& y, float a, const Tensor& x, float b) {
  require(f32(x, y.rows, y.cols) && f32(y, y.rows, y.cols), "axpby", "F32, contiguous, alike",
          {{"y", y}, {"x", x}});
  const Timed timed(*this, "axpby", 0, {y, y, x});
  do_axpby(y, a, x, b);
}

void Ops::quantize(const QTensor& q, const Tensor& x, Rounding rounding,
                   const PhiloxStream& stream) {
  require(is_x(x) && x.contiguous() && fits(q, x), "quantize", "shapes, types, format",
          {{"q", q.blob()}, {"x", x}});
  const Timed timed(*this, "quantize", 0, {q.blob(), x});
  do_quantize(q, x, rounding, stream);
}

void Ops::dequantize(const Tensor& y, const QTensor& q) {
  require(is_x(y) && y.contiguous() && fits(q, y), "dequantize", "shapes, types, format",
          {{"y", y}, {"q", q.blob()}});
  const Timed timed(*this, "dequantize", 0, {y, q.blob()});
  do_dequantize(y, q);
}

void Ops::matmul(const Tensor& c, const Tensor& a, const Tensor& b, const MatmulArgs& args) {
  const int64_t m = args.transpose_a ? a.cols : a.rows, k = args.transpose_a ? a.rows : a.cols;
  const int64_t k2 = args.transpose_b ? b.cols : b.rows, n = args.transpose_b ? b.rows : b.cols;
  const bool ok = k == k2 && c.rows == m && c.cols == n && is_x(a) && a.dtype == b.dtype &&
                  (c.dtype == a.dtype || c.dtype == DType::F32) &&
                  absent_or(f32(args.bias, 1, n), args.bias) &&
                  absent_or(same(args.residual, c), args.residual);
  require(ok, "matmul", "shapes or types disagree",
          {{"c", c},
           {"op(a)", {a.data, a.dtype, m, k}},
           {"op(b)", {b.data, b.dtype, k2, n}},
           {"bias", args.bias},
           {"residual", args.residual}});
  const Timed timed(*this, "matmul", 2.0 * double(m) * double(n) * double(k),
                    {c, a, b, args.bias, args.residual, only_if(args.accumulate, c)});
  do_matmul(c, a, b, args);
}

void Ops::bias_backward(const Tensor& db, const Tensor& dy, bool accumulate) {
  require(f32(db, 1, dy.cols) && is_x(dy), "bias_backward", "shapes and types",
          {{"db", db}, {"dy", dy}});
  const Timed timed(*this, "bias_backward", 0, {db, dy});
  do_bias_backward(db, dy, accumulate);
}

void Ops::embedding_forward(const Tensor& x, const Tensor& tokens, const Tensor& wte,
                            const Tensor& wpe, int64_t T) {
  require(is_x(x) && wte.dtype == x.dtype && wte.cols == x.cols && tokens.dtype == DType::I32 &&
              tokens.numel() == x.rows && x.rows % T == 0 &&
              absent_or(wpe.dtype == x.dtype && wpe.cols == x.cols && wpe.rows >= T, wpe),
          "embedding_forward", "shapes and types",
          {{"x", x}, {"tokens", tokens}, {"wte", wte}, {"wpe", wpe}});
  const Timed timed(*this, "embedding_forward", 0, {x, x, tokens});
  do_embedding_forward(x, tokens, wte, wpe, T);
}

void Ops::embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dx,
                             const Tensor& tokens, int64_t T, bool accumulate_wte,
                             bool accumulate_wpe) {
  require(is_x(dx) && f32(dwte, dwte.rows, dx.cols) && tokens.dtype == DType::I32 &&
              tokens.numel() == dx.rows && dx.rows % T == 0 &&
              absent_or(f32(dwpe, dwpe.rows, dx.cols) && dwpe.rows >= T, dwpe),
          "embedding_backward", "shapes and types",
          {{"dwte", dwte}, {"dwpe", dwpe}, {"dx", dx}, {"tokens", tokens}});
  const Timed timed(
      *this, "embedding_backward", 0,
      {dx, dx, tokens, only_if(!accumulate_wte, dwte), only_if(!accumulate_wpe, dwpe)});
  do_embedding_backward(dwte, dwpe, dx, tokens, T, accumulate_wte, accumulate_wpe);
}

void Ops::layernorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                            const Tensor& b, float eps) {
  require(is_x(x) && same(y, x) && f32(stats, 2, x.rows) && f32(w, 1, x.cols) && f32(b, 1, x.cols),
          "layernorm_forward", "shapes and types",
          {{"y", y}, {"stats", stats}, {"x", x}, {"w", w}, {"b", b}});
  const Timed timed(*this, "layernorm_forward", 0, {y, x, stats});
  do_layernorm_forward(y, stats, x, w, b, eps);
}

void Ops::layernorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& db, const Tensor& dy,
                             const Tensor& x, const Tensor& w, const Tensor& stats,
                             bool accumulate_dx, bool accumulate_dw) {
  require(is_x(x) && same(dx, x) && same(dy, x) && f32(stats, 2, x.rows) && f32(w, 1, x.cols) &&
              f32(dw, 1, x.cols) && f32(db, 1, x.cols),
          "layernorm_backward", "shapes and types",
          {{"dx", dx}, {"dw", dw}, {"db", db}, {"dy", dy}, {"x", x}, {"w", w}, {"stats", stats}});
  const Timed timed(*this, "layernorm_backward", 0, {dx, dy, x, stats, only_if(accumulate_dx, dx)});
  do_layernorm_backward(dx, dw, db, dy, x, w, stats, accumulate_dx, accumulate_dw);
}

void Ops::rmsnorm_forward(const Tensor& y, const Tensor& stats, const Tensor& x, const Tensor& w,
                          float eps) {
  require(is_x(x) && same(y, x) && f32(stats, 1, x.rows) && f32(w, 1, x.cols), "rmsnorm_forward",
          "shapes and types", {{"y", y}, {"stats", stats}, {"x", x}, {"w", w}});
  const Timed timed(*this, "rmsnorm_forward", 0, {y, x, stats});
  do_rmsnorm_forward(y, stats, x, w, eps);
}

void Ops::rmsnorm_backward(const Tensor& dx, const Tensor& dw, const Tensor& dy, const Tensor& x,
                           const Tensor& w, const Tensor& stats, bool accumulate_dx,
                           bool accumulate_dw) {
  require(is_x(x) && same(dx, x) && same(dy, x) && f32(stats, 1, x.rows) && f32(w, 1, x.cols) &&
              f32(dw, 1, x.cols),
          "rmsnorm_backward", "shapes and types",
          {{"dx", dx}, {"dw", dw}, {"dy", dy}, {"x", x}, {"w", w}, {"stats", stats}});
  const Timed timed(*this, "rmsnorm_backward", 0, {dx, dy, x, stats, only_if(accumulate_dx, dx)});
  do_rmsnorm_backward(dx, dw, dy, x, w, stats, accumulate_dx, accumulate_dw);
}

void Ops::rope(const Tensor& x, const Tensor& table, int64_t T, int64_t HS, bool inverse) {
  require(is_x(x) && HS % 2 == 0 && x.cols % HS == 0 && f32(table, table.rows, HS) &&
              table.rows >= T && x.rows % T == 0,
          "rope", "shapes and types", {{"x", x}, {"table", table}});
  const Timed timed(*this, "rope", 0, {x, x});
  do_rope(x, table, T, HS, inverse);
}

namespace {
bool attention_ok(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                  const Tensor& v, const AttentionShape& s) {
  const int64_t N = s.B * s.T;
  return is_x(q) && same(out, q) && same(k, v) && k.dtype == q.dtype && q.rows == N &&
         k.rows == N && q.cols == s.NH * s.HS && k.cols == s.NKV * s.HS && s.NH % s.NKV == 0 &&
         f32(lse, s.B * s.NH, s.T);
}
}  // namespace

void Ops::attention_forward(const Tensor& out, const Tensor& lse, const Tensor& q, const Tensor& k,
                            const Tensor& v, const AttentionShape& s) {
  require(
      attention_ok(out, lse, q, k, v, s), "attention_forward",
      cat("shapes and types for B=", s.B, " T=", s.T, " NH=", s.NH, " NKV=", s.NKV, " HS=", s.HS)
          .c_str(),
      {{"out", out}, {"lse", lse}, {"q", q}, {"k", k}, {"v", v}});
  const Timed timed(*this, "attention_forward", 4 * pairs(s), {out, lse, q, k, v});
  do_attention_forward(out, lse, q, k, v, s);
}

void Ops::attention_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dout, const Tensor& out, const Tensor& lse,
                             const Tensor& q, const Tensor& k, const Tensor& v,
                             const AttentionShape& s) {
  require(
      attention_ok(out, lse, q, k, v, s) && same(dq, q) && same(dk, k) && same(dv, v) &&
          same(dout, out),
      "attention_backward",
      cat("shapes and types for B=", s.B, " T=", s.T, " NH=", s.NH, " NKV=", s.NKV, " HS=", s.HS)
          .c_str(),
      {{"dq", dq},
       {"dk", dk},
       {"dv", dv},
       {"dout", dout},
       {"out", out},
       {"lse", lse},
       {"q", q},
       {"k", k},
       {"v", v}});
  const Timed timed(*this, "attention_backward", 10 * pairs(s),
                    {dq, dk, dv, dout, out, lse, q, k, v});
  do_attention_backward(dq, dk, dv, dout, out, lse, q, k, v, s);
}

void Ops::attention_cached(const Tensor& out, const Tensor& q, const Tensor& k, const Tensor& v,
                           int64_t HS) {
  require(is_x(q) && same(out, q) && same(k, v) && k.ld == v.ld && k.dtype == q.dtype &&
              q.rows <= k.rows && HS > 0 && k.cols > 0 && q.cols % HS == 0 && k.cols % HS == 0 &&
              q.cols % k.cols == 0,
          "attention_cached", cat("shapes and types for HS=", HS).c_str(),
          {{"out", out}, {"q", q}, {"k", k}, {"v", v}});
  const double T = double(q.rows), S = double(k.rows);  // query t sees S - T + t + 1 keys
  const Timed timed(*this, "attention_cached", 4 * double(q.cols) * T * (S - T + (T + 1) / 2),
                    {out, q, k, v});
  do_attention_cached(out, q, k, v, HS);
}

void Ops::gelu_forward(const Tensor& y, const Tensor& x) {
  require(is_x(x) && same(y, x), "gelu_forward", "shapes and types", {{"y", y}, {"x", x}});
  const Timed timed(*this, "gelu_forward", 0, {y, x});
  do_gelu_forward(y, x);
}

void Ops::gelu_backward(const Tensor& dx, const Tensor& y, const Tensor& dy, const Tensor& x) {
  require(is_x(x) && same(dx, x) && same(dy, x) && absent_or(same(y, x), y), "gelu_backward",
          "shapes and types", {{"dx", dx}, {"y", y}, {"dy", dy}, {"x", x}});
  const Timed timed(*this, "gelu_backward", 0, {dx, y, dy, x});
  do_gelu_backward(dx, y, dy, x);
}

void Ops::swiglu_forward(const Tensor& y, const Tensor& gate, const Tensor& up) {
  require(is_x(y) && same(gate, y) && same(up, y), "swiglu_forward", "shapes and types",
          {{"y", y}, {"gate", gate}, {"up", up}});
  const Timed timed(*this, "swiglu_forward", 0, {y, gate, up});
  do_swiglu_forward(y, gate, up);
}

void Ops::swiglu_backward(const Tensor& dgate, const Tensor& dup, const Tensor& y, const Tensor& dy,
                          const Tensor& gate, const Tensor& up) {
  require(is_x(dy) && same(dgate, dy) && same(dup, dy) && same(gate, dy) && same(up, dy) &&
              absent_or(same(y, dy), y),
          "swiglu_backward", "shapes and types",
          {{"dgate", dgate}, {"dup", dup}, {"y", y}, {"dy", dy}, {"gate", gate}, {"up", up}});
  const Timed timed(*this, "swiglu_backward", 0, {dgate, dup, y, dy, gate, up});
  do_swiglu_backward(dgate, dup, y, dy, gate, up);
}

void Ops::linear_cross_entropy(const Tensor& nll, const Tensor& dx, const Tensor& dw,
                               const Tensor& x, const Tensor& w, const Tensor& targets,
                               const Tensor& scratch, float scale, bool accumulate_dw) {
  require(is_x(x) && w.dtype == x.dtype && w.cols == x.cols && f32(nll, 1, x.rows) &&
              targets.dtype == DType::I32 && targets.numel() == x.rows && scratch.rows >= 1 &&
              f32(scratch, scratch.rows, w.rows) && bool(dx) == bool(dw) &&
              absent_or(same(dx, x), dx) && absent_or(f32(dw, w.rows, w.cols), dw),
          "linear_cross_entropy", "shapes and types",
          {{"nll", nll},
           {"dx", dx},
           {"dw", dw},
           {"x", x},
           {"w", w},
           {"targets", targets},
           {"scratch", scratch}});
  const Timed timed(*this, "linear_cross_entropy", (dx ? 6 : 2) * product(x, w),
                    {nll, x, w, targets, dx, dw, only_if(accumulate_dw, dw)});
  do_linear_cross_entropy(nll, dx, dw, x, w, targets, scratch, scale, accumulate_dw);
}

void Ops::adamw(const Tensor& p, const Tensor& copy, const Tensor& g, const Tensor& m,
                const Tensor& v, const AdamWArgs& args) {
  const auto flat = [&](const Tensor& t) { return f32(t, p.rows, p.cols); };
  const auto half = [&](const Tensor& t) {
    return t.dtype == DType::BF16 && same_shape(t, p) && t.contiguous();
  };
  require((flat(p) ? absent_or(half(copy), copy) : half(p) && !copy) && flat(g) && flat(m) &&
              flat(v) && args.step >= 1,
          "adamw", "shapes and types", {{"p", p}, {"copy", copy}, {"g", g}, {"m", m}, {"v", v}});
  const Timed timed(*this, "adamw", 0, {p, p, m, m, v, v, g, copy});
  do_adamw(p, copy, g, m, v, args);
}

void Ops::adamw8bit(const Tensor& p, const Tensor& copy, const Tensor& g, const Moment8& m,
                    const Moment8& v, const AdamWArgs& args) {
  const auto like_p = [&](const Tensor& t, DType type) {
    return t.dtype == type && same_shape(t, p) && t.contiguous();
  };
  const auto moment = [&](const Moment8& x) {
    const int64_t blocks = (p.numel() + kMomentBlock - 1) / kMomentBlock;
    return like_p(x.codes, DType::U8) && f32(x.absmax, 1, blocks);
  };
  const bool parameter = like_p(p, DType::F32) ? absent_or(like_p(copy, DType::BF16), copy)
                                               : like_p(p, DType::BF16) && !copy;
  require(parameter && like_p(g, DType::F32) && moment(m) && moment(v) && args.step >= 1,
          "adamw8bit", "shapes and types",
          {{"p", p},
           {"copy", copy},
           {"g", g},
           {"m", m.codes},
           {"v", v.codes},
           {"m's absmax", m.absmax},
           {"v's absmax", v.absmax}});
  const Timed timed(*this, "adamw8bit", 0, {p, p, m.codes, m.codes, v.codes, v.codes, g, copy});
  do_adamw8bit(p, copy, g, m, v, args);
}

}  // namespace loqal
