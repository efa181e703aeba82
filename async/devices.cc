#include "async/devices.h"

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "core/json.h"
#include "core/suggest.h"

namespace loqal {

std::vector<Device> heterogeneous_devices(const std::string& level, int64_t workers) {
  std::array<double, 4> seconds = {0.58, 0.75, 1.51, 3.33};
  const auto speeds = [&](double b, double c, double d) {
    seconds = {0.58, 0.58 / b, 0.58 / c, 0.58 / d};
  };
  if (level == "none") speeds(1, 1, 1);
  if (level == "slight") speeds(0.9, 0.8, 0.7);
  if (level == "moderate") speeds(0.8, 0.6, 0.4);
  std::vector<Device> devices;
  for (int64_t w = 0; w < workers; w++)
    devices.push_back({.seconds_per_step = seconds[size_t(w) % seconds.size()]});
  return devices;
}

std::vector<Device> devices_of_speeds(const std::string& list, int64_t workers) {
  std::vector<Device> devices;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    double speed = 0;
    const auto [stop, error] = std::from_chars(list.data() + begin, list.data() + end, speed);
    const bool whole = error == std::errc() && stop == list.data() + end;
    if (!whole || !(speed >= 1e-9 && speed <= 1e9))
      fail_usage(cat("--device-speeds ", list, ": \"", list.substr(begin, end - begin),
                     "\" is no number of steps per second"),
                 "one for each worker, separated by commas: 1.72,1.33,0.66,0.3");
    devices.push_back({.seconds_per_step = 1 / speed});
    begin = end + 1;
  }
  if (int64_t(devices.size()) != workers)
    fail_usage(cat("--device-speeds ", list, " names ", devices.size(), " devices, --workers is ",
                   workers));
  return devices;
}

namespace {

// A number of a device in [low, 1e15].
double number_of(const Json& device, const std::string& key, const std::string& where,
                 double fallback, double low) {
  const double value = get_or<double>(device, key, where, fallback);
  if (!(value >= low && value <= 1e15))
    fail_usage(cat(where, ": \"", key, "\" is ", value, ", expected a number from ", low));
  return value;
}

Device device_of(const Json& json, const std::string& where) {
  static const std::vector<std::string> keys = {
      "seconds_per_step", "count", "jitter", "latency", "up", "down", "name"};
  for (const auto& [key, value] : json.items())
    if (std::find(keys.begin(), keys.end(), key) == keys.end())
      fail_usage(cat(where, ": unknown key \"", key, "\""),
                 cat("did you mean ", closest(key, keys), "?"));
  get<double>(json, "seconds_per_step", where);  // is missing: says so
  return {.seconds_per_step = number_of(json, "seconds_per_step", where, 0, 1e-9),
          .jitter = number_of(json, "jitter", where, 0, 0),
          .latency = number_of(json, "latency", where, 0, 0),
          .up = number_of(json, "up", where, 0, 0),
          .down = number_of(json, "down", where, 0, 0)};
}

}  // namespace

std::vector<Device> devices_of_profile(const std::string& path, int64_t workers) {
  if (!std::filesystem::exists(path))
    fail_usage(cat("--device-profile ", path, ": there is no such file"), "doc/async.md has one");
  std::vector<Device> devices;
  try {
    const Json list = get<Json>(read_json(path), "devices", path);
    for (size_t i = 0; i < list.size(); i++) {
      const std::string where = cat(path, ": device ", i);
      const Device device = device_of(list[i], where);
      const int64_t count = get_or<int64_t>(list[i], "count", where, 1);
      if (count < 1 || count > 1 << 16)
        fail_usage(cat(where, ": \"count\" is ", count, ", expected 1 or more"));
      devices.insert(devices.end(), size_t(count), device);
    }
  } catch (const Error& e) {
    throw Error(Exit::usage, e.what(), e.hint);  // a file of options is an option
  }
  if (int64_t(devices.size()) != workers)
    fail_usage(cat("--device-profile ", path, " describes ", devices.size(),
                   " devices, --workers is ", workers));
  return devices;
}

}  // namespace loqal
