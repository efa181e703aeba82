#include "async/trace.h"

#include <filesystem>
#include <fstream>
#include <map>

#include "core/file.h"
#include "core/json.h"

namespace loqal {

namespace {

class TraceWriter {
 public:
  explicit TraceWriter(const std::string& path) : file_(path) {
    file_.write("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n");
  }
  void name_row(int row, const std::string& name) {
    event({{"ph", "M"}, {"name", "thread_name"}, {"args", {{"name", name}}}}, row);
    event({{"ph", "M"}, {"name", "thread_sort_index"}, {"args", {{"sort_index", row}}}}, row);
  }
  void span(int row, const char* name, double from, double to, const Json& args) {
    if (to > from)
      event({{"ph", "X"},
             {"name", name},
             {"ts", from * 1e6},
             {"dur", (to - from) * 1e6},
             {"args", args}},
            row);
  }
  void moment(int row, const std::string& name, double at, const Json& args) {
    event({{"ph", "i"}, {"s", "t"}, {"name", name}, {"ts", at * 1e6}, {"args", args}}, row);
  }
  void finish() {
    file_.write("\n]}\n");
    file_.finish();
  }

 private:
  void event(Json json, int row) {
    json["pid"] = 0;
    json["tid"] = row;
    file_.write((first_ ? "" : ",\n") + dump_json(json));
    first_ = false;
  }

  FileWriter file_;
  bool first_ = true;
};

}  // namespace

void write_trace(const std::string& log_path) {
  const std::string path = std::filesystem::path(log_path).replace_filename("trace.json").string();
  TraceWriter trace(path + ".tmp");
  std::map<int, double> pushed;  // by worker: when its last push arrived
  std::ifstream log(log_path);
  trace.name_row(0, "server");
  for (std::string line; std::getline(log, line);) {
    if (!line.starts_with("{\"kind\":\"push\"")) continue;
    const Json p = parse_json(line, log_path);
    const auto at = [&](const char* key) { return get<double>(p, key, log_path); };
    const int worker = get<int>(p, "worker", log_path), row = worker + 1;
    if (!pushed.count(worker)) trace.name_row(row, cat("worker ", worker));
    const Json args = {{"round", p["round"]}, {"shard", p["shard"]}, {"steps", p["inner_steps"]}};
    trace.span(row, "wait", pushed.count(worker) ? pushed[worker] : 0.0, at("t_start"), {});
    trace.span(row, "pull", at("t_start"), at("t_pulled"), args);
    trace.span(row, "compute", at("t_pulled"), at("t_computed"), args);
    trace.span(row, "push", at("t_computed"), at("t_virtual"), args);
    const bool accepted = get<bool>(p, "accepted", log_path);
    trace.moment(0, accepted ? "apply" : "refuse", at("t_virtual"),
                 {{"update", p["update"]},
                  {"worker", worker},
                  {"staleness", p["staleness"]},
                  {"norm", p["norm"]}});
    pushed[worker] = at("t_virtual");
  }
  trace.finish();
  rename_path(path + ".tmp", path);
}

}  // namespace loqal
