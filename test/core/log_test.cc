// The log after crashes and resumes (reports L1, L2, L5).
#include "core/log.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>

#include "test/core/files.h"

namespace loqal {
namespace {

std::vector<Json> lines_of(const std::string& path) {
  std::vector<Json> lines;
  std::istringstream in(read_file(path));
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, path));
  return lines;
}

std::vector<int64_t> steps_of(const std::string& path, const std::string& kind = "train") {
  std::vector<int64_t> steps;
  for (const Json& line : lines_of(path))
    if (line["kind"] == kind) steps.push_back(line.value("step", int64_t(-1)));
  return steps;
}

/// Trains as the real trainer logs: train, eval, save; a stepless record between.
void train(JsonlLog& log, int64_t first, int64_t last, int64_t save_every = 100) {
  for (int64_t step = first; step <= last; step++) {
    log.write({{"kind", "push"}, {"update", step}});
    log.write({{"kind", "train"}, {"step", step}, {"loss", number(1.0 / double(step))}});
    if (step % 50 == 0) log.write({{"kind", "eval"}, {"step", step}});
    if (step % save_every == 0) log.write({{"kind", "save"}, {"step", step}});
  }
}

TEST(Log, LinesAreCompactAndKindIsFirst) {
  const TempDir dir;
  EXPECT_FALSE(JsonlLog::exists(dir / "log.jsonl"));
  JsonlLog log(dir / "log.jsonl");
  log.write({{"kind", "train"}, {"step", 1}, {"loss", number(NAN)}});
  EXPECT_EQ(read_file(log.path()),
            "{\"kind\":\"train\",\"step\":1,\"loss\":\"nan\"}\n");  // at once, not at close
  EXPECT_TRUE(JsonlLog::exists(log.path()));
  EXPECT_THROW(log.write({{"step", 2}, {"kind", "train"}}), std::logic_error);
  EXPECT_CONTAINS(error_of([&] { JsonlLog again(log.path()); }),
                  "log.jsonl: cannot open the log: File exists");
}

TEST(Log, TrainStepsMustAdvance) {
  const TempDir dir;
  JsonlLog log(dir / "log.jsonl");
  train(log, 1, 3);
  EXPECT_THROW(log.write({{"kind", "train"}, {"step", 3}}), std::logic_error);
  log.write({{"kind", "eval"}, {"step", 3}});
  log.write({{"kind", "train"}, {"step", 4}});
  EXPECT_EQ(steps_of(log.path()), (std::vector<int64_t>{1, 2, 3, 4}));
}

TEST(Log, CrashAt137CheckpointAt100ResumeTo200) {
  const TempDir dir;
  const std::string path = dir / "log.jsonl", side = dir / "log_superseded.jsonl";
  {
    JsonlLog log(path);
    log.write({{"kind", "run"}});
    train(log, 1, 137);
  }
  const std::string full = read_file(path);
  std::filesystem::resize_file(path, full.size() - 9);  // the crash cut the last line
  {
    JsonlLog log(path, 100);
    EXPECT_THROW(log.write({{"kind", "train"}, {"step", 100}}), std::logic_error);
    log.write({{"kind", "run"}, {"resumed_step", 100}});
    train(log, 101, 200);
    log.write({{"kind", "end"}, {"reason", "done"}});
  }
  std::vector<int64_t> all;
  for (int64_t step = 1; step <= 200; step++) all.push_back(step);
  EXPECT_EQ(steps_of(path), all);
  EXPECT_EQ(steps_of(path, "eval"), (std::vector<int64_t>{50, 100, 150, 200}));
  EXPECT_EQ(steps_of(path, "save"), (std::vector<int64_t>{100, 200}));
  EXPECT_EQ(steps_of(path, "push").size(), 200u);
  EXPECT_EQ(steps_of(path, "run").size(), 2u);
  EXPECT_EQ(steps_of(side), std::vector(all.begin() + 100, all.begin() + 136));
  EXPECT_EQ(steps_of(side, "push").size(), 37u);
  EXPECT_EQ(steps_of(side, "damaged").size(), 1u);

  // Back to 100 once more: sessions stay visible, the side file grows.
  { JsonlLog log(path, 100); }
  EXPECT_EQ(steps_of(path), std::vector(all.begin(), all.begin() + 100));
  EXPECT_EQ(steps_of(path, "run").size(), 2u);
  EXPECT_EQ(steps_of(path, "end").size(), 1u);
  EXPECT_EQ(steps_of(side).size(), 136u);
}

TEST(Log, ResumeWithNothingLostChangesNothing) {
  const TempDir dir;
  const std::string path = dir / "log.jsonl";
  {
    JsonlLog log(path);
    train(log, 1, 100);
    log.write({{"kind", "eval"},
               {"step", 100},
               {"weights", "merged"}});  // after the save, but of its step
    log.write({{"kind", "end"}, {"step", 100}});
  }
  const std::string before = read_file(path);
  JsonlLog log(path, 100);
  EXPECT_EQ(read_file(path), before);
  EXPECT_FALSE(JsonlLog::exists(dir / "log_superseded.jsonl"));
}

TEST(Log, WithoutASaveRecordTheFirstLaterStepIsTheBorder) {
  const TempDir dir;
  const std::string path = dir / "log.jsonl";
  {
    JsonlLog log(path);
    train(log, 1, 20, 1000);
  }
  JsonlLog log(path, 15);
  EXPECT_EQ(steps_of(path).back(), 15);
  EXPECT_EQ(steps_of(dir / "log_superseded.jsonl").front(), 16);
}

TEST(Log, ResumeIntoAnotherDirectoryStartsALog) {
  const TempDir dir;
  JsonlLog log(dir / "log.jsonl", 100);
  log.write({{"kind", "train"}, {"step", 101}});
  EXPECT_EQ(steps_of(log.path()), std::vector<int64_t>{101});
}

TEST(Log, FailedWriteLeavesWholeLines) {
  const TempDir dir;
  EXPECT_TRUE(true_in_child([&] {
    limit_file_size(140);  // cuts the third line, as a full disk would
    JsonlLog log(dir / "log.jsonl");
    const std::string text(20, 'x');
    for (int step = 1; step <= 2; step++)
      log.write({{"kind", "train"}, {"step", step}, {"x", text}});
    const std::string message = error_of([&] {
      log.write({{"kind", "train"}, {"step", 3}, {"x", text}});
    });
    log.write({{"kind", "e"}});  // a shorter line still fits
    return message.find("log.jsonl: cannot write a line of 53 bytes: File too large") !=
           std::string::npos;
  }));
  EXPECT_EQ(steps_of(dir / "log.jsonl"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(lines_of(dir / "log.jsonl").size(), 3u);
}

}  // namespace
}  // namespace loqal
