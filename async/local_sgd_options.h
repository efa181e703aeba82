// Options of Local-SGD: several workers instead of one.
#pragma once
#include <cstdint>
#include <string>

#include "async/option_table.h"
#include "async/scheduler.h"
#include "async/server.h"

namespace loqal {

struct Options;

struct LocalSgdOptions {
  int64_t workers = 1;
  bool sync = false, async = false;
  int64_t inner_steps = 50;
  bool dylu = false;
  double grace = 0;
  std::string inner_state = "keep";
  std::string outer;  ///< "" until complete_local_sgd(), as are those that are -1
  double outer_lr = 0.7, outer_momentum = 0.9;
  int64_t dn_period = -1, buffer = -1;
  double dn_c = 0;
  std::string push_weight = "constant:1";
  double delay_compensation = 0;
  std::string shard_sampling;
  std::string heterogeneity = "none", device_speeds, device_profile;
  std::vector<Device> devices;  ///< those of the run that is resumed; none: the options name them

  /// Otherwise it is plain training.
  bool on() const { return workers > 1 || sync || async; }
};

void add_local_sgd(OptionTable& table, LocalSgdOptions& options);

/// Derived values and contradictions, the devices' included. Usage error also if one of these
/// options is given for plain training.
void complete_local_sgd(Options& options);

/// For a resume: the devices of the run whose state.json `state` is, unless --device-profile is
/// given anew: its file may be gone.
void take_saved_devices(Options& options, const Json& state, const std::string& where);

/// What the engine's parts are told; for options that are complete. bytes: of one push and one
/// pull.
ScheduleConfig schedule_config(const Options& options, int64_t bytes);
ServerConfig server_config(const LocalSgdOptions& options);

/// Steps of one shard's clock: --steps of all workers, shared out. Of Local-SGD's learning rate.
int64_t steps_of_shard(const Options& options);

}  // namespace loqal
