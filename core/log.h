// log.jsonl: what happened in a run, one compact JSON object a line (design.md, "The log").
//
// Why the care: a log is written more often than checkpoints are, so after a crash it runs ahead of
// the state that a resume starts from. Opening it for that resume moves the lost stretch aside;
// what is left has every step once, in order, and only whole lines.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "core/json.h"

namespace loqal {

class JsonlLog {
 public:
  static bool exists(const std::string& path);
  /// Of the log at `path`, the last record of `kind` that holds {key, value}; null without one.
  static Json last(const std::string& path, const std::string& kind, const std::string& key,
                   const Json& value);
  /// "time" of the last record up to step `step`, 0 without one. The wall clock of a resumed run
  /// goes on from here: it is no part of a checkpoint, whose bytes must not depend on it.
  static double time_at(const std::string& path, int64_t step);

  /// Without `resume_step`: a new log; Error if `path` exists (nobody's log is overwritten).
  ///
  /// With it: the log of a run that goes on from the checkpoint of step S; a new one if there is
  /// none (the run goes on in another directory). Records of the lost stretch go to the end of
  /// log_superseded.jsonl beside it: those whose "step" is above S and, of those without a step,
  /// what follows the "save" record of step S or, if there is none, the first record above S. "run"
  /// and "end" records, the borders of sessions, stay. Lines that are not JSON (a crash cuts the
  /// last one) go there too, as {"kind":"damaged","text":...}. Both files are complete at any
  /// moment; a crash within can only repeat records in the side file.
  ///
  /// The caller then writes {"kind":"run",...}, with "resumed_step" after a resume.
  explicit JsonlLog(const std::string& path, std::optional<int64_t> resume_step = {});
  ~JsonlLog();
  JsonlLog(const JsonlLog&) = delete;
  JsonlLog& operator=(const JsonlLog&) = delete;

  /// Appends one line with one write(2), so that other processes can follow the file. `record`
  /// starts with "kind"; a "train" record that does not advance "step" is a mistake of the program.
  /// Numbers that may be non-finite go through number(). On a full disk the log is left with whole
  /// lines, then Error.
  void write(const Json& record);

  const std::string& path() const { return path_; }

 private:
  void supersede(int64_t resume_step);

  std::string path_;
  int fd_ = -1;
  int64_t last_train_step_ = -1;  // -1: none yet
};

}  // namespace loqal
