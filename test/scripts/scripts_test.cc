// The scripts, run as a user runs them. The tests' working directory is the root of the repository.
#include <gtest/gtest.h>

#include <filesystem>

#include "test/core/files.h"
#include "test/scripts/run.h"

namespace loqal {
namespace {

std::string log_text(int steps) {
  std::string text = "{\"kind\":\"run\"}\n";
  for (int i = 1; i <= steps; i++) {
    const std::string loss = i == 3 ? "\"nan\"" : cat(3 + 4.0 / i);
    text += cat("{\"kind\":\"train\",\"step\":", i, ",\"loss\":", loss, ",\"tokens\":", i * 4096,
                ",\"time\":", i, "}\n");
    if (i % 10 == 0)
      text += cat("{\"kind\":\"eval\",\"step\":", i,
                  ",\"loss\":3.5,\"ppl\":33.1,\"tokens\":", i * 4096, "}\n");
  }
  return text + "{\"kind\":\"tra";  // being written
}

bool has_matplotlib() { return run("/usr/bin/python3 -c 'import matplotlib'").status == 0; }

TEST(CheckIncludes, ThisRepositoryIsClean) {
  const Result result = run("scripts/check_includes.sh");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_CONTAINS(result.output, "includes: ok");
}

TEST(CheckIncludes, FindsEachKindOfViolation) {
  const TempDir dir;
  const auto put = [&](const std::string& path, const std::string& content) {
    create_directories(std::filesystem::path(dir / path).parent_path());
    write_file_atomic(dir / path, content);
  };
  put("core/bad.h", "#pragma once\n#include \"ops/ops.h\"\n");
  put("data/bad.cc", "#include \"ops/ops.h\"\n#include \"core/file.h\"\n#include <vector>\n");
  put("model/bad.cc", "#include \"data/loader.h\"\n");
  put("ops/cpu/bad.cc", "\n#include <cuda_runtime.h>\n");
  put("ops/cuda/good.cu", "#include <cuda_runtime.h>\n#include \"ops/ops.h\"\n");
  put("optim/bad.cc", "#include \"adamw.h\"\n");
  put("async/good.cc", "#include \"data/loader.h\"\n#include \"model/gpt2.h\"\n");
  put("train.cu", "#include \"async/trainer.h\"\n#include \"test/reference.h\"\n");
  put("test/any/good_test.cc", "#include \"async/trainer.h\"\n#include \"test/reference.h\"\n");
  put("core/long.cc", std::string(401, '\n'));
  const Result result = run("scripts/check_includes.sh " + dir.path);
  EXPECT_EQ(result.status, 1) << result.output;
  for (const char* line :
       {"core/bad.h:2: core/ must not include ops/", "data/bad.cc:1: data/ must not include ops/",
        "model/bad.cc:1: model/ must not include data/",
        "ops/cpu/bad.cc:2: CUDA headers appear in ops/cuda/ only",
        "optim/bad.cc:1: include \"adamw.h\" is not relative",
        "train.cu:2: the root must not include test/",
        "core/long.cc: warning: more than 400 lines"})
    EXPECT_CONTAINS(result.output, line);
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 7) << result.output;
}

TEST(Plot, DrawsOneRunBesideItsLogAndSeveralWhereAsked) {
  if (!has_matplotlib()) GTEST_SKIP() << "matplotlib is missing";
  const TempDir dir;
  for (const char* name : {"a", "b"}) {
    create_directories(dir / name);
    write_file_atomic(dir / cat(name, "/log.jsonl"), log_text(40));
  }
  const Result one = run("scripts/plot.py " + dir / "a");
  EXPECT_EQ(one.status, 0) << one.output;
  EXPECT_EQ(read_file(dir / "a/loss.png").substr(1, 3), "PNG");
  const Result two =
      run(cat("scripts/plot.py ", dir / "a", " ", dir / "b/log.jsonl", " -o ", dir / "both.png"));
  EXPECT_EQ(two.status, 0) << two.output;
  EXPECT_EQ(read_file(dir / "both.png").substr(1, 3), "PNG");
}

TEST(Plot, DrawsLocalSgdAndItsSchedule) {
  if (!has_matplotlib()) GTEST_SKIP() << "matplotlib is missing";
  const TempDir dir;
  std::string text;
  for (int push = 0; push < 30; push++) {
    for (int step = push * 2 + 1; step <= push * 2 + 2; step++)
      text += cat("{\"kind\":\"train\",\"step\":", step, ",\"loss\":", 4 - step / 20.0,
                  ",\"tokens\":", step, ",\"worker\":", push % 3, ",\"round\":", push / 3, "}\n");
    text += cat("{\"kind\":\"push\",\"step\":", push * 2 + 2, ",\"t_virtual\":", push + 1.5,
                ",\"worker\":", push % 3, ",\"staleness\":", push % 4,
                ",\"bytes_up\":8,\"bytes_down\":8,\"accepted\":", push == 7 ? "false" : "true",
                ",\"t_start\":", push, ",\"t_pulled\":", push + 0.1, ",\"t_computed\":", push + 1.2,
                ",\"time\":", push, "}\n");
  }
  write_file_atomic(dir / "log.jsonl", text);
  for (const char* picture : {"loss.png", "schedule.png"}) {
    const Result result =
        run(cat("scripts/plot.py ", *picture == 's' ? "--schedule " : "", dir.path));
    EXPECT_EQ(result.status, 0) << result.output;
    EXPECT_EQ(read_file(dir / picture).substr(1, 3), "PNG");
  }
  write_file_atomic(dir / "log.jsonl", log_text(40));
  const Result plain = run("scripts/plot.py --schedule " + dir.path);
  EXPECT_EQ(plain.status, 1);
  EXPECT_CONTAINS(plain.output, "log.jsonl: expected \"push\" records of Local-SGD");
}

TEST(Plot, ErrorsNameTheFile) {
  if (!has_matplotlib()) GTEST_SKIP() << "matplotlib is missing";
  const TempDir dir;
  const Result none = run("scripts/plot.py " + dir / "none");
  EXPECT_EQ(none.status, 1);
  EXPECT_EQ(none.output,
            "plot.py: " + dir / "none: cannot read the log: No such file or directory\n");
  write_file_atomic(dir / "log.jsonl", "{\"kind\":\"run\"}\n");
  const Result empty = run("scripts/plot.py " + dir.path);
  EXPECT_EQ(empty.status, 1);
  EXPECT_CONTAINS(empty.output, "log.jsonl: expected \"train\" or \"eval\" records");
}

TEST(Plot, SaysHowToGetMatplotlib) {
  const TempDir dir;
  write_file_atomic(dir / "matplotlib.py", "raise ImportError\n");
  const Result result = run(cat("PYTHONPATH=", dir.path, " scripts/plot.py ", dir.path));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "matplotlib is missing: scripts/install_deps.sh quickstart");
}

TEST(InstallDeps, SaysOnlyWhenToldSo) {
  const Result result = run("NO_INSTALL=1 scripts/install_deps.sh all");
  EXPECT_EQ(result.status, 0) << result.output;
  EXPECT_EQ(run("NO_INSTALL=1 scripts/install_deps.sh bild").status, 1);
}

/// A PATH with the basic tools and these fakes of the package manager.
std::string fake_path(const TempDir& dir, const std::string& apt_get) {
  const auto script = [&](const std::string& name, const std::string& body) {
    write_file_atomic(dir / name, "#!/bin/sh\n" + body + "\n");
    std::filesystem::permissions(dir / name, std::filesystem::perms::owner_all);
  };
  script("dpkg-query", "exit 1");
  script("apt-get", apt_get);
  script("sudo", "exec \"$@\"");
  return cat("PATH=", dir.path, ":$PATH ");
}

TEST(InstallDeps, NoNetworkIsAnErrorAndNeverDone) {
  const TempDir dir;
  for (const char* apt_get :
       {"exit 100", "case \"$*\" in *update*) exit 0;; esac; exit 100", "exit 0"}) {
    const Result result = run(fake_path(dir, apt_get) + "scripts/install_deps.sh build");
    EXPECT_EQ(result.status, 1) << result.output;
    EXPECT_CONTAINS(result.output, "zlib1g-dev");
    EXPECT_EQ(result.output.find("Installed."), std::string::npos) << result.output;
  }
}

TEST(InstallDeps, OtherSystemsGetTheList) {
  const TempDir dir;
  for (const char* tool : {"awk", "cat", "cut", "sed", "bash"})
    std::filesystem::create_symlink(run(cat("printf %s \"$(command -v ", tool, ")\"")).output,
                                    dir / tool);
  const Result result = run(cat("PATH=", dir.path, " bash scripts/install_deps.sh build"));
  EXPECT_EQ(result.status, 1);
  EXPECT_CONTAINS(result.output, "neither Debian nor Ubuntu");
  EXPECT_CONTAINS(result.output, "libdnnl-dev");
}

}  // namespace
}  // namespace loqal
