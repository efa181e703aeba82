// The file layer, above all that nothing complete is ever lost: kills, full disks, missing commits.
#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>

#include "core/philox.h"
#include "test/core/files.h"

namespace loqal {
namespace {

namespace fs = std::filesystem;

TEST(File, MappedFileAndItsErrors) {
  const TempDir dir;
  write_file_atomic(dir / "a", "hello");
  const MappedFile file(dir / "a");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data()), file.size()), "hello");
  EXPECT_EQ(file.path(), dir / "a");
  write_file_atomic(dir / "empty", "");
  EXPECT_CONTAINS(error_of([&] { MappedFile(dir / "empty"); }),
                  dir / "empty: the file is empty (0 bytes)");
  EXPECT_CONTAINS(error_of([&] { MappedFile(dir / "none"); }), "none: cannot open: No such file");
  EXPECT_CONTAINS(error_of([&] { MappedFile{dir.path}; }), "expected a file, found a directory");
  EXPECT_CONTAINS(error_of([&] { MappedFile("/dev/null"); }), "/dev/null: expected a regular file");
}

TEST(File, ReadFile) {
  const TempDir dir;
  write_file_atomic(dir / "a", std::string("x\0y", 3));
  EXPECT_EQ(read_file(dir / "a"), std::string("x\0y", 3));
  EXPECT_CONTAINS(error_of([&] { read_file(dir / "a", 2); }), "expected at most 2 bytes, found 3");
  write_file_atomic(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
}

TEST(File, WriterCountsAndChecksums) {
  const TempDir dir;
  FileWriter file(dir / "a");
  file.write("1234");
  file.write("56789");
  const FileSum sum = file.finish();
  EXPECT_EQ(sum.bytes, 9);
  EXPECT_EQ(sum.crc32, 0xCBF43926u);  // the published check value of CRC-32
  EXPECT_EQ(read_file(dir / "a"), "123456789");
  EXPECT_THROW(file.write("x"), std::logic_error);
  verify_file(dir / "a", sum);
  write_file_atomic(dir / "a", "123456780");
  EXPECT_CONTAINS(error_of([&] { verify_file(dir / "a", sum); }),
                  "damaged: expected CRC-32 3421780262, found");
  write_file_atomic(dir / "a", "1234");
  EXPECT_CONTAINS(error_of([&] { verify_file(dir / "a", sum); }), "expected 9 bytes, found 4");
}

TEST(File, WriterKeepsOrderOfSmallAndLargePieces) {
  const TempDir dir;
  std::string expected;
  FileWriter file(dir / "a");
  for (const size_t n : {1u, 1u << 20, 7u, 3u << 20, (1u << 20) - 7, 8u, 0u, 100'000u}) {
    const std::string piece(n, char('a' + expected.size() % 26));
    expected += piece;
    file.write(piece);
  }
  EXPECT_EQ(file.finish().bytes, int64_t(expected.size()));
  EXPECT_TRUE(read_file(dir / "a") == expected);
}

TEST(File, WriterWithoutFinishLeavesNothing) {
  const TempDir dir;
  { FileWriter(dir / "a").write("half"); }
  EXPECT_FALSE(fs::exists(dir / "a"));
  EXPECT_CONTAINS(error_of([&] { FileWriter(dir / "no/a"); }), "no/a: cannot create: No such file");
}

TEST(File, FullDiskNamesFileNeededAndFree) {
  const std::string message = error_of([] {
    FileWriter full("/dev/full");
    full.write("1234");
    full.finish();
  });
  EXPECT_CONTAINS(message, "/dev/full: No space left on device: at least 4 more bytes needed, ");
  EXPECT_CONTAINS(message, " bytes free");
  EXPECT_TRUE(fs::exists("/dev/full"));
  const TempDir dir;
  const int64_t too_many = free_bytes(dir.path) + (int64_t(1) << 40);
  EXPECT_CONTAINS(error_of([&] { FileWriter(dir / "a", too_many); }),
                  cat("the disk is too full: ", too_many));
  EXPECT_FALSE(fs::exists(dir / "a"));
}

TEST(File, WriteErrorInTheMiddleKeepsTheOldFile) {
  const TempDir dir;
  write_file_atomic(dir / "a", "old");
  EXPECT_TRUE(true_in_child([&] {
    limit_file_size(1 << 20);  // stands for any write error after some success
    const std::string message =
        error_of([&] { write_file_atomic(dir / "a", std::string(5 << 20, 'n')); });
    return message.find("a.tmp: cannot write") != std::string::npos;
  }));
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_FALSE(fs::exists(dir / "a.tmp"));
}

void write_version(const std::string& path, int version) {
  AtomicDirectory out(path);
  for (const char* name : {"a", "b"}) {
    FileWriter file(out.file(name));
    for (int i = 0; i < 3; i++) file.write(std::string(40'000, char('0' + version % 10)));
    file.finish();
  }
  out.commit();
}

TEST(AtomicDirectory, CommitReplacesAndDestructorKeeps) {
  const TempDir dir;
  const std::string path = dir / "sub/step_1";
  write_version(path + "/", 1);  // parents are made; a final slash does not matter
  EXPECT_EQ(read_file(path + "/b").substr(0, 2), "11");
  write_version(path, 2);
  EXPECT_EQ(read_file(path + "/b").substr(0, 2), "22");
  {
    AtomicDirectory abandoned(path);
    write_file_atomic(abandoned.file("a"), "half");
  }
  EXPECT_EQ(read_file(path + "/a").substr(0, 2), "22");
  create_directories(path + ".tmp/stale");
  write_version(path, 3);
  EXPECT_EQ(read_file(path + "/a").substr(0, 2), "33");
  EXPECT_EQ(glob_files(dir / "sub/*"), std::vector{path});
}

TEST(AtomicDirectory, KillAtRandomMomentsLeavesOneVersionComplete) {
  const TempDir dir;
  const std::string path = dir / "step";
  write_version(path, 0);
  const PhiloxStream random(1, Purpose::test);
  for (uint64_t trial = 0; trial < 20; trial++) {
    const pid_t child = fork();
    if (child == 0) {
      for (int version = 1;; version++) write_version(path, version);
    }
    usleep(1000 + random.bits(trial) % 20'000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const std::string a = read_file(path + "/a"), b = read_file(path + "/b");
    ASSERT_EQ(a.size(), 120'000u);
    ASSERT_TRUE(a == b) << a[0] << " " << b[0];
    ASSERT_EQ(a.find_first_not_of(a[0]), std::string::npos);
  }
}

TEST(File, GlobIsSortedAndLiteralNamesCount) {
  const TempDir dir;
  for (const char* name : {"b2", "a1", "B3", "c[1]"}) write_file_atomic(dir / name, "x");
  EXPECT_EQ(glob_files(dir / "?[0-9]"), (std::vector{dir / "B3", dir / "a1", dir / "b2"}));
  EXPECT_EQ(glob_files(dir / "c[1]"), std::vector{dir / "c[1]"});
  EXPECT_TRUE(glob_files(dir / "none*").empty());
}

TEST(File, RenameReplacesAndNamesBothPaths) {
  const TempDir dir;
  write_file_atomic(dir / "a", "new");
  write_file_atomic(dir / "b", "old");
  rename_path(dir / "a", dir / "b");
  EXPECT_EQ(read_file(dir / "b"), "new");
  const std::string message = error_of([&] { rename_path(dir / "a", dir / "c"); });
  EXPECT_CONTAINS(message, dir / "a");
  EXPECT_CONTAINS(message, dir / "c");
}

TEST(File, CreateDirectoriesNamesTheCulprit) {
  const TempDir dir;
  create_directories(dir / "a/b/c");
  create_directories(dir / "a/b/c/");
  EXPECT_TRUE(fs::is_directory(dir / "a/b/c"));
  write_file_atomic(dir / "a/file", "x");
  EXPECT_CONTAINS(error_of([&] { create_directories(dir / "a/file/x/y"); }), "a/file is a file");
  EXPECT_CONTAINS(error_of([&] { create_directories(dir / "a/file"); }), "a/file is a file");
  if (geteuid() != 0) {
    chmod((dir / "a/b").c_str(), 0555);
    EXPECT_CONTAINS(error_of([&] { create_directories(dir / "a/b/x/y"); }), "a/b is not writable");
    chmod((dir / "a/b").c_str(), 0755);
  }
  remove_tree(dir / "a");
  remove_tree(dir / "a");
  EXPECT_FALSE(fs::exists(dir / "a"));
}

TEST(File, FreeBytesOfAPathThatDoesNotExistYet) {
  const TempDir dir;
  EXPECT_GT(free_bytes(dir / "x/y/z"), 0);
  EXPECT_GT(free_bytes("surely_not_there"), 0);
}

}  // namespace
}  // namespace loqal
