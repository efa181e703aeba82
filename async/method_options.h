// Options of the training method: all weights trained (full), or a low-rank part of each matrix.
#pragma once
#include <cstdint>
#include <string>

#include "async/option_table.h"
#include "core/param_table.h"
#include "model/config.h"
#include "model/refresh.h"
#include "optim/galore.h"
#include "quant/refresh_schedule.h"

namespace loqal {

struct Options;

/// What is -1 or "" depends on the method, until complete_method().
struct MethodOptions {
  std::string method = "full", quant, rounding, subspace, refresh_moments;
  int64_t quant_block = -1, rank = -1, interval = -1, max_gap = 0, compensate = -1;
  double scale = 0.5, growth = -1, lr_dense = -1;

  bool full() const { return method == "full"; }
  bool quantized() const { return quant == "int8" || quant == "nf4"; }
  /// Frozen matrices beside trained factors: not full, and not GaLore, whose matrices are trained.
  bool factors() const { return method == "loqt" || method == "lora" || method == "relora"; }
  /// Steps at which something is merged or projected anew.
  bool refreshes() const { return method == "loqt" || method == "galore" || method == "relora"; }
};

void add_method(OptionTable& table, MethodOptions& options);

/// Derived values and contradictions; usage error also for an option that the method does not use.
void complete_method(Options& options);
/// The rank, [width / 4], once the model is known.
void resolve_method(Options& options, const ModelConfig& config);

/// How the matrices of the linear layers are held.
MatrixPlan matrix_plan(const Options& options);

RefreshMoments refresh_moments(const MethodOptions& options);
RefreshSchedule refresh_schedule(const Options& options);

/// Of --method galore.
GaLoreConfig galore_config(const Options& options, const AdamWConfig& adam,
                           const ParamTable& table);
/// Of --method loqt and relora.
RefreshConfig refresh_config(const Options& options);

}  // namespace loqal
