#include "model/model.h"

#include <algorithm>
#include <cmath>

#include "model/low_rank.h"

namespace loqal {

namespace {

// Rows of logits that exist at a time: about 64 MiB, in equal chunks.
int64_t logit_rows(int64_t N, int64_t V) {
  const int64_t most = std::max<int64_t>(64, (int64_t(1) << 24) / V);
  const int64_t chunks = std::max<int64_t>(1, (N + most - 1) / most);
  return (N + chunks - 1) / chunks;
}

}  // namespace

Model::Model(Ops& ops, const ModelConfig& config, const ModelOptions& options)
    : ops_(ops),
      config_(config),
      options_(options),
      table_(options.matrices),
      last_{ops, {}, 0, 0} {
  const bool gpt2 = config.arch == Arch::gpt2;
  const int last_group = int(config.L) + 1;
  wte_ = table_.add(gpt2 ? "transformer.wte.weight" : "model.embed_tokens.weight",
                    {config.Vp(), config.C}, 0, Role::embedding);
  if (gpt2) wpe_ = table_.add("transformer.wpe.weight", {config.T, config.C}, 0, Role::position);
  else rope_ = table_.add("rope.table", {config.T, config.HS}, 0, Role::constant, Segment::frozen);
  for (int l = 0; l < config.L; l++)
    blocks_.push_back(gpt2 ? make_gpt2_block(table_, config, l, l + 1)
                           : make_llama_block(table_, config, l, l + 1, rope_));
  final_norm_ =
      std::make_unique<Norm>(table_, gpt2 ? "transformer.ln_f" : "model.norm", config, last_group);
  if (!config.tied)
    head_ = table_.add("lm_head.weight", {config.Vp(), config.C}, last_group, Role::head);
  table_.commit();

  const bool fp32 = options.P == DType::F32;
  LOQAL_ASSERT(fp32 || options.X == DType::BF16, "bf16 parameters are computed with in bf16");
  master_ = ops.alloc((fp32 ? table_.elements() : table_.vector_elements()) * 4, "weights");
  if (options.X == DType::BF16)
    copy_ = ops.alloc(table_.elements() * 2, fp32 ? "weights (bf16 copy)" : "weights");
  frozen_ = ops.alloc(table_.frozen_bytes(), low_rank() ? "weights (frozen)" : "constants");
  if (options.cache)
    cache_ =
        ops.alloc(2 * config.L * config.T * config.NKV * config.HS * int64_t(size_of(options.X)),
                  "keys and values");
  Run largest{ops, {}, options.B, config.T};
  largest.weights.X = options.X;
  workspace_elements_ = options.training ? refresh_elements(table_) : effective_elements(table_);
  carve(largest, nullptr, nullptr);
  kept_ = ops.alloc(kept_bytes_, "activations");
  scratch_ = ops.alloc(scratch_bytes_, "scratch");
  carve(largest, kept_.data(), scratch_.data());  // the workspace is needed before the first batch
  if (rope_ >= 0 && !ops.dry()) upload_rotary();
}

void Model::upload_rotary() {
  std::vector<float> rotary(size_t(config_.T * config_.HS));
  const int64_t half = config_.HS / 2;
  for (int64_t t = 0; t < config_.T; t++)
    for (int64_t i = 0; i < half; i++) {
      const double angle =
          double(t) * std::pow(double(config_.rope_theta), -2.0 * double(i) / double(config_.HS));
      rotary[size_t(t * config_.HS + i)] = float(std::cos(angle));
      rotary[size_t(t * config_.HS + half + i)] = float(std::sin(angle));
    }
  ops_.upload(table_.frozen(rope_, frozen_.data()), rotary.data());
}

void Model::carve(const Run& run, void* kept_base, void* scratch_base) {
  const int64_t N = run.N(), C = config_.C;
  const DType X = options_.X;
  Arena kept(kept_base), scratch(scratch_base);
  tokens_ = kept.take(DType::I32, 1, N);
  targets_ = kept.take(DType::I32, 1, N);
  nll_ = kept.take(DType::F32, 1, N);
  residual_.clear();
  for (int64_t l = 0; l < (options_.training ? config_.L + 1 : 2); l++)
    residual_.push_back(kept.take(X, N, C));
  final_stats_ = kept.take(DType::F32, 1, 2 * N);
  h_ = kept.take(X, N, C);
  if (options_.training) {
    g_ = kept.take(X, N, C);
    dh_ = kept.take(X, N, C);
  }
  carve_low_rank(N, scratch);
  const int64_t mark = kept.used(), blocks = scratch.used();
  for (const auto& block : blocks_) {
    if (options_.recompute || !options_.training) kept.rewind(mark);
    scratch.rewind(blocks);
    block->carve(run, kept, scratch);
  }
  if (low_rank()) {
    scratch.rewind(0);
    workspace_ = scratch.take(DType::F32, 1, workspace_elements_);
  }
  scratch.rewind(0);
  logits_ = scratch.take(DType::F32, logit_rows(N, config_.V), config_.V);
  kept_bytes_ = kept.high();
  scratch_bytes_ = scratch.high();
}

void Model::carve_low_rank(int64_t N, Arena& scratch) {
  if (!low_rank()) return;
  int64_t weight = 0, factor = 0, rank = 0;
  for (const Param& p : table_.params()) {
    if (p.role == Role::matrix) weight = std::max(weight, p.numel());
    if (p.role == Role::factor && !p.trainable()) factor = std::max(factor, p.numel());
    if (p.role == Role::factor) rank = std::max(rank, std::min(p.rows(), p.cols()));
  }
  if (options_.training && table_.plan().kind == MatrixPlan::Kind::projected)
    rank += kOversampling;  // of a sketch
  low_rank_.weight = scratch.take(options_.X, 1, weight);
  low_rank_.sum = scratch.take(DType::F32, 1, options_.X == DType::BF16 ? weight : 0);
  low_rank_.factor = scratch.take(options_.X, 1, factor);
  low_rank_.projected = scratch.take(options_.X, N, rank);
}

Weights Model::weights() const {
  return {&table_,        master_.data(), copy_.bytes() ? copy_.data() : master_.data(),
          frozen_.data(), options_.X,     options_.P != DType::F32};
}

Run Model::begin(const int32_t* tokens, int64_t B, int64_t T) {
  LOQAL_ASSERT(T >= 1 && T <= config_.T && B * T <= options_.B * config_.T, "batch of ", B, " x ",
               T);
  Run run{ops_, weights(), B, T};
  carve(run, kept_.data(), scratch_.data());
  run.low_rank = low_rank_;
  run.probe = probe_;
  ops_.upload(tokens_, tokens);
  last_.weights = run.weights, last_.B = B, last_.T = T;
  return run;
}

Tensor Model::head_weight(const Run& run) const {
  return run.weights.matrix(config_.tied ? wte_ : head_).row_slice(0, config_.V);
}

void Model::forward_layers(const Run& run) {
  const Tensor wpe =
      wpe_ >= 0 ? run.weights.matrix(wpe_).row_slice(run.cache.past, run.T) : Tensor{};
  ops_.embedding_forward(residual(0), tokens_, run.weights.matrix(wte_), wpe, run.T);
  for (int64_t l = 0; l < config_.L; l++)
    blocks_[size_t(l)]->forward(run, residual(l + 1), residual(l));
  final_norm_->forward(run, h_, final_stats_, residual(config_.L));
}

double Model::loss(const Run& run, const int32_t* targets, const Tensor& dh, const Tensor& dw,
                   float scale, bool accumulate) {
  ops_.upload(targets_, targets);
  ops_.linear_cross_entropy(nll_, dh, dw, h_, head_weight(run), targets_, logits_, scale,
                            accumulate);
  std::vector<float> nll(size_t(run.N()));
  ops_.download(nll.data(), nll_);
  double sum = 0;
  for (float v : nll) sum += double(v);
  return sum;
}

double Model::forward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T) {
  const Run run = begin(tokens, B, T);
  forward_layers(run);
  return loss(run, targets, {}, {}, 0, false);
}

Grads Model::grads(GradSink& sink, int group) const {
  return {&table_, group, sink.buffer(group), sink.accumulate()};
}

double Model::forward_backward(const int32_t* tokens, const int32_t* targets, int64_t B, int64_t T,
                               float scale, GradSink& sink) {
  LOQAL_ASSERT(options_.training, "the model was built for forward only");
  const Run run = begin(tokens, B, T);
  forward_layers(run);
  const Grads head = grads(sink, config_.tied ? 0 : int(config_.L) + 1);
  const Tensor dhead = head(config_.tied ? wte_ : head_);
  const double sum = loss(run, targets, dh_, dhead.row_slice(0, config_.V), scale, head.accumulate);
  if (!head.accumulate) ops_.fill(dhead.row_slice(config_.V, config_.Vp() - config_.V), 0);
  backward_layers(run, sink);
  return sum;
}

void Model::backward_layers(const Run& run, GradSink& sink) {
  const int last = int(config_.L) + 1;
  final_norm_->backward(run, grads(sink, last), g_, dh_, residual(config_.L), final_stats_, false);
  sink.complete(last);
  for (int64_t l = config_.L - 1; l >= 0; l--) {
    Block& block = *blocks_[size_t(l)];
    if (options_.recompute) block.forward(run, {}, residual(l));
    block.backward(run, grads(sink, int(l) + 1), g_, residual(l));
    sink.complete(int(l) + 1);
  }
  // A tied embedding already holds the head's gradient: add to it.
  const Grads first = grads(sink, 0);
  const Tensor dwpe = wpe_ >= 0 ? first(wpe_) : Tensor{};
  ops_.embedding_backward(first(wte_), dwpe, g_, tokens_, run.T, first.accumulate || config_.tied,
                          first.accumulate);
  sink.complete(0);
}

std::vector<float> Model::next_logits(const std::vector<int32_t>& tokens, int64_t past) {
  const int64_t T = int64_t(tokens.size());
  LOQAL_ASSERT(past == 0 || (past > 0 && past + T <= config_.T && cache_.bytes()), T,
               " tokens from position ", past);
  Run run = begin(tokens.data(), 1, T);
  if (cache_.bytes())
    run.cache = {cache_.data(), options_.X, config_.T, config_.NKV * config_.HS, past};
  forward_layers(run);
  const Tensor row = logits_.row_slice(0, 1);
  ops_.matmul(row, h_.row_slice(T - 1, 1), head_weight(run), {.transpose_b = true});
  std::vector<float> logits(size_t(config_.V));
  ops_.download(logits.data(), row);
  return logits;
}

bool Model::finite(const Tensor& x) {
  if (x.dtype == DType::F32) return std::isfinite(ops_.sum_squares(x));
  const Tensor row(scratch_.as<float>(), 1, x.cols);  // scratch is free between passes
  for (int64_t r = 0; r < x.rows; r++) {
    ops_.copy(row, x.row_slice(r, 1));
    if (!std::isfinite(ops_.sum_squares(row))) return false;
  }
  return true;
}

std::string Model::nonfinite_parameter() {
  for (int i = 0; i < table_.size(); i++)
    if (table_[i].trainable() && !finite(parameter(i))) return "parameter " + table_[i].name;
  return "";
}

std::string Model::first_nonfinite() {
  if (const std::string name = nonfinite_parameter(); !name.empty()) return name;
  // Block inputs survive a pass only in training; they are checked in the order they were computed.
  for (int64_t l = 0; options_.training && last_.B > 0 && l <= config_.L; l++)
    if (!finite(residual(l).row_slice(0, last_.N())))
      return l == 0 ? "the token embedding's output" : cat("the output of layer ", l - 1);
  return "";
}

}  // namespace loqal
