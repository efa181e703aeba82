#include "async/method_options.h"

#include <algorithm>
#include <vector>

#include "async/options.h"
#include "core/error.h"

namespace loqal {

void add_method(OptionTable& t, MethodOptions& o) {
  using enum Scope;
  t.section("method (doc/loqt.md); of low-rank ones each matrix learns in a subspace of that rank");
  t.choice("--method", o.method, {"full", "loqt", "galore", "lora", "relora"},
           "full: every weight is trained", trajectory);
  t.choice("--quant", o.quant, {"none", "int8", "nf4"},
           "of the frozen weights [int8 for loqt, else none]", trajectory);
  t.integer("--quant-block", o.quant_block, 64, 256, "64, 128 or 256 [128 int8, 64 nf4]",
            trajectory);
  t.choice("--rounding", o.rounding, {"nearest", "stochastic"},
           "of the weights [stochastic int8, nearest nf4]", trajectory);
  t.integer("--rank", o.rank, 1, 1 << 20, "of the trained part [width/4]", trajectory);
  t.real("--scale", o.scale, 1e-6, 1e6, "s: the low-rank part counts so much", trajectory);
  t.integer("--interval", o.interval, 1, kMany,
            "steps between refreshes, tau [100; 200 galore, 1000 relora]", trajectory);
  t.real("--growth", o.growth, 0, 100,
         "psi: gap i is tau + psi^i; 0: fixed [1.2; 0 galore, relora]", trajectory);
  t.integer("--max-gap", o.max_gap, 0, kMany, "no gap is longer; 0: no limit", trajectory);
  t.integer("--compensate", o.compensate, 0, 100,
            "iterations that put the rounding error of a merge into B [5]", trajectory);
  t.choice("--subspace", o.subspace, {"sketch", "svd"},
           "of a gradient: from a sketch, or exact and slow [sketch]", trajectory);
  t.choice("--refresh-moments", o.refresh_moments, {"keep", "reset", "rotate"},
           "Adam's moments in a new subspace [rotate; reset relora]", trajectory);
  t.real("--lr-dense", o.lr_dense, 0, 1e30, "of embeddings, head and norms [lr]", trajectory);
}

namespace {

// Which methods use an option; the others refuse it.
void refuse_unused(const Options& o) {
  const MethodOptions& m = o.method;
  struct Use {
    const char* name;
    std::vector<std::string> methods;
  };
  const std::vector<std::string> low_rank = {"loqt", "galore", "lora", "relora"},
                                 frozen = {"loqt", "lora", "relora"},
                                 refreshed = {"loqt", "galore", "relora"},
                                 frozen_refreshed = {"loqt", "relora"};
  const Use uses[] = {{"--quant", frozen},
                      {"--quant-block", frozen},
                      {"--rounding", frozen},
                      {"--rank", low_rank},
                      {"--scale", low_rank},
                      {"--interval", refreshed},
                      {"--growth", refreshed},
                      {"--max-gap", refreshed},
                      {"--compensate", {"loqt"}},
                      {"--subspace", {"loqt", "galore"}},
                      {"--refresh-moments", frozen_refreshed}};
  for (const auto& [name, methods] : uses)
    if (o.is_given(name) && std::find(methods.begin(), methods.end(), m.method) == methods.end())
      fail_usage(cat(name, " is not used by --method ", m.method),
                 cat("it belongs to --method ", OptionTable::join(methods)));
}

void check_quantization(Options& o) {
  MethodOptions& m = o.method;
  const bool quantized = m.quantized();
  for (const char* name : {"--quant-block", "--rounding"})
    if (o.is_given(name) && !quantized)
      fail_usage(cat(name, " contradicts --quant none, where nothing is rounded to a grid"));
  if (o.is_given("--compensate") && m.compensate > 0 && !quantized)
    fail_usage("--compensate contradicts --quant none: there is no rounding error");
  if (quantized && m.quant_block < 0) m.quant_block = m.quant == "int8" ? 128 : 64;
  if (quantized && m.quant_block != 64 && m.quant_block != 128 && m.quant_block != 256)
    fail_usage(cat("--quant-block ", m.quant_block, ": choose 64, 128 or 256"));
  if (m.quant == "nf4" && m.quant_block != 64)
    fail_usage(
        cat("--quant-block ", m.quant_block, " contradicts --quant nf4, whose blocks are 64"));
  if (quantized && m.rounding.empty()) m.rounding = m.quant == "int8" ? "stochastic" : "nearest";
  if (m.compensate < 0) m.compensate = m.method == "loqt" && quantized ? 5 : 0;
}

}  // namespace

void complete_method(Options& o) {
  MethodOptions& m = o.method;
  refuse_unused(o);
  if (m.method == "galore" && o.param_dtype == "bf16")
    fail_usage("--param-dtype bf16 contradicts --method galore, which updates fp32 weights");
  if (!m.full() && o.local.on())
    fail_usage(cat("--method ", m.method, " contradicts --workers: Local-SGD trains all weights"));
  if (m.quant.empty()) m.quant = m.method == "loqt" ? "int8" : "none";
  check_quantization(o);
  if (m.lr_dense < 0) m.lr_dense = o.lr;
  if (o.is_given("--lr-dense") && o.lr == 0)
    fail_usage("--lr-dense with --lr 0: the schedule scales with --lr");
  if (!m.refreshes()) return;
  if (m.interval < 0) m.interval = m.method == "loqt" ? 100 : m.method == "galore" ? 200 : 1000;
  if (m.growth < 0) m.growth = m.method == "loqt" ? 1.2 : 0;
  if (m.max_gap > 0 && m.max_gap < m.interval)
    fail_usage(cat("--max-gap ", m.max_gap, " is below --interval ", m.interval));
  if (m.subspace.empty()) m.subspace = "sketch";
  if (m.method == "relora" && m.refresh_moments == "rotate")
    fail_usage(
        "--refresh-moments rotate contradicts --method relora, whose new factors are random");
  if (m.refresh_moments.empty()) m.refresh_moments = m.method == "relora" ? "reset" : "rotate";
}

void resolve_method(Options& o, const ModelConfig& config) {
  if (!o.method.full() && o.method.rank < 0) o.method.rank = std::max<int64_t>(1, config.C / 4);
}

MatrixPlan matrix_plan(const Options& o) {
  const MethodOptions& m = o.method;
  MatrixPlan plan;
  if (o.lr > 0) plan.dense_rate = m.lr_dense / o.lr;
  if (!m.factors()) return plan;
  plan.kind = m.method == "loqt" ? MatrixPlan::Kind::projected : MatrixPlan::Kind::lora;
  plan.rank = m.rank;
  plan.scale = m.scale;
  if (m.quantized())
    plan.format = {m.quant == "int8" ? QuantFormat::Kind::int8 : QuantFormat::Kind::nf4,
                   m.quant_block};
  plan.rounding = m.rounding == "stochastic" ? Rounding::stochastic : Rounding::nearest;
  plan.seed = uint64_t(o.seed);
  plan.exact_gradient = m.subspace == "svd";
  return plan;
}

RefreshMoments refresh_moments(const MethodOptions& m) {
  return m.refresh_moments == "keep"    ? RefreshMoments::keep
         : m.refresh_moments == "reset" ? RefreshMoments::reset
                                        : RefreshMoments::rotate;
}

RefreshSchedule refresh_schedule(const Options& o) {
  const MethodOptions& m = o.method;
  return {.interval = m.interval, .growth = m.growth, .max_gap = m.max_gap, .steps = o.steps};
}

GaLoreConfig galore_config(const Options& o, const AdamWConfig& adam, const ParamTable& table) {
  return {.adam = adam,
          .rank = o.method.rank,
          .scale = o.method.scale,
          .schedule = refresh_schedule(o),
          .sketch = o.method.subspace == "sketch",
          .projected = [&table](int i) { return table[i].role == Role::matrix; }};
}

RefreshConfig refresh_config(const Options& o) {
  const MethodOptions& m = o.method;
  RefreshConfig config;
  const bool relora = m.method == "relora";
  config.kind = relora ? RefreshConfig::Kind::restart : RefreshConfig::Kind::project;
  config.moments = refresh_moments(m);
  config.steps = refresh_schedule(o).all();
  if (relora) config.steps.erase(config.steps.begin());  // nothing is learned yet at step 0
  config.compensate = m.compensate;
  config.seed = uint64_t(o.seed);
  return config;
}

}  // namespace loqal
