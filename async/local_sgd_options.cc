#include "async/local_sgd_options.h"

#include <charconv>
#include <cmath>

#include "async/devices.h"
#include "async/options.h"
#include "core/error.h"
#include "core/json.h"

namespace loqal {

namespace {
constexpr int64_t kMostPushes = 1 << 20;
}  // namespace

void add_local_sgd(OptionTable& t, LocalSgdOptions& o) {
  using enum Scope;
  t.section("Local-SGD (doc/async.md); steps are then those of all workers together");
  t.integer("--workers", o.workers, 1, 4096, "above 1: so many train and push to a server",
            trajectory);
  t.flag("--sync", o.sync, "DiLoCo: all wait for all, one outer step for the mean", trajectory);
  t.flag("--async", o.async, "each pushes when it is done; what --workers above 1 does anyway",
         trajectory);
  t.integer("--inner-steps", o.inner_steps, 1, 1 << 30, "of a round (H)", trajectory);
  t.flag("--dylu", o.dylu, "slower workers take fewer: H x speed / fastest speed", trajectory);
  t.real("--grace", o.grace, 0, 1e30, "virtual seconds in which pushes join a batch", trajectory);
  t.choice("--inner-state", o.inner_state, {"keep", "reset"}, "Adam's moments between rounds",
           trajectory);
  t.choice("--outer", o.outer, {"sgd", "heavyball", "nesterov", "adam", "buffer", "dn"},
           "the server's optimizer [dn; nesterov with --sync]", trajectory);
  t.real("--outer-lr", o.outer_lr, 0, 1e6, "its learning rate", trajectory);
  t.real("--outer-momentum", o.outer_momentum, 0, 0.999999, "its momentum", trajectory);
  t.integer("--dn-period", o.dn_period, 1, kMostPushes,
            "pushes of one momentum step of dn [workers]", trajectory);
  t.real("--dn-c", o.dn_c, 0, 1, "share of the momentum in each push of dn, up to 1 / period",
         trajectory);
  t.integer("--buffer", o.buffer, 1, kMostPushes, "pushes of one step of buffer [workers]",
            trajectory);
  t.text("--push-weight", o.push_weight,
         "constant:W; poly: 1 / sqrt(1 + staleness); polythres:N: poly, none above N", trajectory);
  t.real("--delay-compensation", o.delay_compensation, 0, 1e30, "its lambda; 0: off", trajectory);
  t.choice("--shard-sampling", o.shard_sampling, {"progress", "fewest", "own"},
           "the data of a worker's next round [progress; own with --sync]", trajectory);
  t.choice("--heterogeneity", o.heterogeneity, {"none", "slight", "moderate", "very"},
           "speeds of the workers' devices", trajectory);
  t.text("--device-speeds", o.device_speeds, "instead: steps/s of each, separated by commas",
         trajectory);
  t.text("--device-profile", o.device_profile, "instead: JSON file with speeds and networks", run);
}

namespace {

PushWeight push_weight(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string name = text.substr(0, colon),
                    rest = colon == std::string::npos ? "" : text.substr(colon + 1);
  double value = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  const bool number = !rest.empty() && error == std::errc() && end == rest.data() + rest.size() &&
                      value >= 0 && value <= 1e9;
  if (name == "constant" && number && value > 0) return {PushWeight::Kind::constant, value};
  if (name == "poly" && colon == std::string::npos) return {PushWeight::Kind::poly, 0};
  if (name == "polythres" && number) return {PushWeight::Kind::polythres, value};
  fail_usage(cat("--push-weight ", text, ": expected constant:W, poly or polythres:N"),
             "for example constant:0.25 or polythres:10");
}

void refuse_without_local_sgd(const Options& o) {
  OptionTable table;
  LocalSgdOptions unused;
  add_local_sgd(table, unused);
  for (const std::string& name : table.names())
    if (o.is_given(name) && name != "--workers")
      fail_usage(cat(name, " belongs to Local-SGD"),
                 "give --workers above 1, or --async or --sync for a single worker");
}

void check_sync(const Options& o) {
  const LocalSgdOptions& l = o.local;
  if (l.async) fail_usage("--sync and --async contradict each other; give one");
  if (o.is_given("--grace")) fail_usage("--grace contradicts --sync, where all wait for all");
  if (l.outer == "dn" || l.outer == "buffer")
    fail_usage(cat("--outer ", l.outer, " contradicts --sync, which takes one step for all pushes"),
               "choose sgd, heavyball, nesterov or adam");
  if (l.delay_compensation > 0 || !l.push_weight.starts_with("constant"))
    fail_usage(cat(l.delay_compensation > 0 ? "--delay-compensation" : "--push-weight",
                   " is about staleness, and with --sync there is none"));
}

void check_outer(const Options& o) {
  const LocalSgdOptions& l = o.local;
  const auto belongs = [&](const char* name, const char* outer) {
    if (o.is_given(name) && l.outer != outer)
      fail_usage(cat(name, " belongs to --outer ", outer, ", this is --outer ", l.outer));
  };
  belongs("--dn-period", "dn");
  belongs("--dn-c", "dn");
  belongs("--buffer", "buffer");
  if (l.outer == "sgd" && o.is_given("--outer-momentum"))
    fail_usage("--outer-momentum: --outer sgd has none");
  if (l.outer == "dn" && l.dn_c * double(l.dn_period) > 1 + 1e-12)
    fail_usage(cat("--dn-c ", l.dn_c, " is above 1 / --dn-period = ", 1.0 / double(l.dn_period)));
}

std::vector<Device> devices_of(const LocalSgdOptions& l) {
  if (!l.devices.empty()) return l.devices;
  if (!l.device_profile.empty()) return devices_of_profile(l.device_profile, l.workers);
  if (!l.device_speeds.empty()) return devices_of_speeds(l.device_speeds, l.workers);
  return heterogeneous_devices(l.heterogeneity, l.workers);
}

}  // namespace

void complete_local_sgd(Options& o) {
  LocalSgdOptions& l = o.local;
  if (!l.on()) return refuse_without_local_sgd(o);
  if (l.outer.empty()) l.outer = l.sync ? "nesterov" : "dn";
  if (l.shard_sampling.empty()) l.shard_sampling = l.sync ? "own" : "progress";
  if (l.sync) check_sync(o);
  if (l.dn_period < 0) l.dn_period = l.workers;
  if (l.buffer < 0) l.buffer = l.workers;
  check_outer(o);
  push_weight(l.push_weight);
  const std::string *given = nullptr,
                    names[] = {"--heterogeneity", "--device-speeds", "--device-profile"};
  for (const std::string& name : names) {
    if (!o.is_given(name)) continue;
    if (given) fail_usage(cat(*given, " and ", name, " both describe the devices; give one"));
    given = &name;
  }
  devices_of(l);
  if (o.param_dtype == "bf16")
    fail_usage(
        "--param-dtype bf16 contradicts --workers: a round's small change of the weights "
        "would be lost in their rounding");
}

void take_saved_devices(Options& o, const Json& state, const std::string& where) {
  if (!o.local.on() || o.is_given("--device-profile")) return;
  const std::string at = where + ": local_sgd";
  const Json saved = get<Json>(get<Json>(state, "local_sgd", where), "scheduler", at);
  o.local.devices = Scheduler::devices_of(saved, at + ": scheduler");
  if (int64_t(o.local.devices.size()) != o.local.workers)
    fail(cat(at, ": ", o.local.devices.size(), " devices, expected ", o.local.workers));
}

int64_t steps_of_shard(const Options& o) {
  return (o.steps + o.local.workers - 1) / o.local.workers;
}

ScheduleConfig schedule_config(const Options& o, int64_t bytes) {
  const LocalSgdOptions& l = o.local;
  return {.devices = devices_of(l),
          .inner_steps = l.inner_steps,
          .dylu = l.dylu,
          .sync = l.sync,
          .grace = l.grace,
          .sampling = l.shard_sampling == "own"      ? Sampling::own
                      : l.shard_sampling == "fewest" ? Sampling::fewest
                                                     : Sampling::progress,
          .bytes_up = bytes,
          .bytes_down = bytes,
          .seed = uint64_t(o.seed)};
}

ServerConfig server_config(const LocalSgdOptions& l) {
  using enum OuterConfig::Kind;
  return {.outer = {.kind = l.outer == "sgd"         ? sgd
                            : l.outer == "heavyball" ? heavyball
                            : l.outer == "adam"      ? adam
                            : l.outer == "dn"        ? dn
                                                     : nesterov,
                    .lr = l.outer_lr,
                    .momentum = l.outer_momentum,
                    .collect = l.sync                ? 0
                               : l.outer == "buffer" ? l.buffer
                                                     : 1,
                    .period = l.dn_period,
                    .c = l.dn_c},
          .weight = push_weight(l.push_weight),
          .delay_compensation = l.delay_compensation};
}

}  // namespace loqal
