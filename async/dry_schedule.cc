#include "async/dry_schedule.h"

#include <algorithm>

#include "async/local_sgd_options.h"
#include "async/options.h"
#include "core/error.h"
#include "core/format.h"

namespace loqal {

namespace {

constexpr int64_t kMostPushes = 50'000;  // some tenths of a second for four workers

std::string short_list(const std::vector<double>& values, const char* form, double factor) {
  constexpr size_t most = 8;
  std::string text;
  for (size_t i = 0; i < std::min(values.size(), most); i++)
    text += (i ? " " : "") + format(form, values[i] * factor);
  return values.size() > most ? text + " ..." : text;
}

void print_method(std::ostream& out, const std::string& name, const ScheduleConfig& config,
                  int64_t steps) {
  Scheduler s(config);
  const int64_t most =
      std::max<int64_t>({2000, kMostPushes * 4 / s.workers(), int64_t(4) * s.workers()});
  while ((s.local_steps() < steps || (config.sync && !s.idle())) && s.pushes() < most)
    if (!s.next_push()) s.restart();
  // Longer runs go on like that.
  const double factor = s.local_steps() < steps ? double(steps) / double(s.local_steps()) : 1.0;
  double stale = 0;
  const std::vector<int64_t>& histogram = s.staleness_histogram();
  for (size_t i = 0; i < histogram.size(); i++) stale += double(i) * double(histogram[i]);
  out << format("  %-16s%12.1f s%10.0f   %5.2f / %-5zu %s\n", name.c_str(), s.time() * factor,
                double(s.pushes()) * factor, stale / double(s.pushes()), histogram.size() - 1,
                short_list(s.utilisation(), "%.0f%%", 100).c_str());
}

}  // namespace

void print_schedule(std::ostream& out, const Options& o, int64_t bytes) {
  const ScheduleConfig mine = schedule_config(o, bytes);
  std::vector<double> seconds;
  for (const Device& d : mine.devices) seconds.push_back(d.seconds_per_step);
  out << "schedule    " << o.local.workers << " workers with " << short_list(seconds, "%.3g", 1)
      << " s a step, rounds of H = " << o.local.inner_steps << ", grace "
      << format("%g", o.local.grace) << " s (* this run)\n"
      << "  method             virtual time    pushes   staleness     utilisation of the workers\n"
      << "                                              mean / most\n";
  for (const bool sync : {true, false})
    for (const bool dylu : {false, true}) {
      ScheduleConfig config = mine;
      config.sync = sync, config.dylu = dylu;
      const bool this_run = sync == mine.sync && dylu == mine.dylu;
      print_method(out, cat(this_run ? "* " : "", sync ? "sync" : "async", dylu ? ", dylu" : ""),
                   config, o.steps);
    }
}

}  // namespace loqal
