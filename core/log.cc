#include "core/log.h"
#include <fstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace loqal {

namespace {
constexpr int64_t kNoStep = -1;

struct Line {
  std::string text;  // without the line feed
  std::string kind;
  int64_t step = kNoStep;
};

/// Splits a log into lines; what is not a JSON object with a "kind" becomes one that says so.
std::vector<Line> parse_lines(std::string_view log, const std::string& path) {
  std::vector<Line> lines;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size());
    Line line{std::string(log.substr(begin, end - begin)), "", kNoStep};
    try {
      const auto json = parse_json<JsonMap>(line.text, path);
      line.kind = get<std::string>(json, "kind", path);
      line.step = get_or<int64_t>(json, "step", path, kNoStep);
    } catch (const Error&) {
      line.kind = "damaged";
      line.text = dump_json(Json{{"kind", "damaged"}, {"text", line.text}});
    }
    lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

/// Index of the first line of the lost stretch: it decides for lines without a step.
size_t lost_from(const std::vector<Line>& lines, int64_t resume_step) {
  size_t save = 0;
  for (size_t i = 0; i < lines.size(); i++) {
    if (lines[i].step > resume_step && lines[i].kind != "run" && lines[i].kind != "end")
      return save > 0 ? save : i;
    if (lines[i].kind == "save" && lines[i].step == resume_step) save = i + 1;
  }
  return save > 0 ? save : lines.size();
}
}  // namespace

bool JsonlLog::exists(const std::string& path) { return std::filesystem::exists(path); }

JsonlLog::JsonlLog(const std::string& path, std::optional<int64_t> resume_step) : path_(path) {
  if (resume_step && exists(path)) supersede(*resume_step);
  const int create = O_CREAT | (resume_step ? 0 : O_EXCL);
  fd_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | create, 0666);
  if (fd_ < 0)
    fail(cat(path, ": cannot open the log: ", std::generic_category().message(errno)),
         errno == EEXIST ? "resume that run (--resume), or choose another directory (--out)" : "");
}

JsonlLog::~JsonlLog() {
  if (fd_ >= 0) close(fd_);
}

void JsonlLog::supersede(int64_t resume_step) {
  const std::string log = read_file(path_, int64_t(1) << 40);
  const std::vector<Line> lines = parse_lines(log, path_);
  const size_t cut = lost_from(lines, resume_step);
  std::string kept, lost;
  for (size_t i = 0; i < lines.size(); i++) {
    const Line& line = lines[i];
    const bool in_time = line.step == kNoStep ? i < cut : line.step <= resume_step;
    const bool stays =
        line.kind == "run" || line.kind == "end" || (in_time && line.kind != "damaged");
    (stays ? kept : lost) += line.text + "\n";
    if (stays && line.kind == "train") last_train_step_ = line.step;
  }
  if (!lost.empty()) {
    const std::string side =
        std::filesystem::path(path_).replace_filename("log_superseded.jsonl").string();
    write_file_atomic(side, (exists(side) ? read_file(side, int64_t(1) << 40) : "") + lost);
  }
  if (kept != log) write_file_atomic(path_, kept);
}

void JsonlLog::write(const Json& record) {
  LOQAL_ASSERT(record.is_object() && !record.empty() && record.begin().key() == "kind", path_,
               ": a record starts with \"kind\"");
  const bool train = record.front() == "train";
  const int64_t step = train ? get<int64_t>(record, "step", path_) : kNoStep;
  LOQAL_ASSERT(!train || step > last_train_step_, path_, ": step ", step, " after step ",
               last_train_step_);
  const std::string line = dump_json(record) + "\n";
  struct stat before;
  if (fstat(fd_, &before) != 0)
    fail(cat(path_, ": cannot examine: ", std::generic_category().message(errno)));
  for (size_t done = 0; done < line.size();) {
    const ssize_t put = ::write(fd_, line.data() + done, line.size() - done);
    if (put >= 0) {
      done += size_t(put);
    } else if (errno != EINTR) {
      const int error = errno;
      // Take back half a line. If that fails too, the next resume repairs it.
      [[maybe_unused]] const int taken_back = done > 0 ? ftruncate(fd_, before.st_size) : 0;
      fail(cat(path_, ": cannot write a line of ", line.size(), " bytes: ",
               std::generic_category().message(error), " (", free_bytes(path_), " bytes free)"),
           error == ENOSPC ? "free some space on that disk" : "");
    }
  }
  if (train) last_train_step_ = step;
}

Json JsonlLog::last(const std::string& path, const std::string& kind, const std::string& key,
                    const Json& value) {
  std::ifstream in(path);
  Json found;
  for (std::string line; std::getline(in, line);) {
    if (line.find('"' + kind + '"') == std::string::npos) continue;  // most need no parsing
    const Json record = Json::parse(line, nullptr, false);
    if (record.is_object() && record.value("kind", "") == kind && record.contains(key) &&
        record[key] == value)
      found = record;
  }
  return found;
}

double JsonlLog::time_at(const std::string& path, int64_t step) {
  std::ifstream in(path);
  double time = 0;
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line, nullptr, false);
    const auto number_of = [&](const char* key, double missing) {
      const bool there = record.is_object() && record.contains(key) && record[key].is_number();
      return there ? record[key].get<double>() : missing;
    };
    if (number_of("step", 0) <= double(step)) time = number_of("time", time);
  }
  return time;
}

}  // namespace loqal
