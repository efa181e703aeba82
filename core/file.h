// Files with errors that help: every message names the path, what was expected and what was found.
//
// Why a layer of our own over POSIX: a crash, a kill or a full disk must never destroy what was
// already saved. The rule is the usual one (LevelDB's too): write beside, fsync, rename, fsync the
// parent directory. All sizes are 64 bits wide.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace loqal {

/// Read-only view of a whole regular file. Error if the file is missing, empty or not a regular
/// one. A file that somebody truncates while it is mapped raises SIGBUS, as with every mmap.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  /// These bytes are not needed for now: they stop counting as this process's memory.
  void release(const std::byte* from, size_t bytes) const;

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// A regular file that is read in pieces from anywhere, by any number of threads.
class ReadOnlyFile {
 public:
  explicit ReadOnlyFile(const std::string& path);
  ~ReadOnlyFile();
  ReadOnlyFile(const ReadOnlyFile&) = delete;
  ReadOnlyFile& operator=(const ReadOnlyFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }  ///< when it was opened
  /// Exactly `bytes` bytes from `offset` on; Error if the file ends before, too.
  void read(int64_t offset, void* out, size_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

/// The whole file, which may be empty. Error if it is larger than `max_bytes`, before reading it.
std::string read_file(const std::string& path, int64_t max_bytes = int64_t(1) << 30);

/// What a finished file must contain: see verify_file().
struct FileSum {
  int64_t bytes = 0;
  uint32_t crc32 = 0;  ///< zlib's
};

/// Creates or truncates `path` and appends to it. A file whose finish() was not called, or failed,
/// is removed by the destructor: half a file never stays behind.
class FileWriter {
 public:
  /// With the final size in `expected_bytes` (0: unknown) a disk that is too full is reported
  /// before the first byte is written.
  explicit FileWriter(const std::string& path, int64_t expected_bytes = 0);
  /// Goes on behind the first kept.bytes bytes of an existing file; what follows them is cut off.
  /// Error if the file is shorter or those bytes do not have that CRC.
  FileWriter(const std::string& path, const FileSum& kept);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Flush, fsync, close. Nothing may be written afterwards.
  FileSum finish();
  /// Hands all that was written to the system (not: to the disk), so that a killed process does
  /// not lose it. The sum is what the second constructor goes on from.
  const FileSum& flush();
  /// Closes the file as flush() left it; the destructor will not remove it.
  void keep();

  const std::string& path() const { return path_; }
  const FileSum& sum() const { return sum_; }  ///< of what was written so far

 private:
  void write_through(const char* data, size_t bytes);

  std::string path_;
  std::string buffer_;
  FileSum sum_;
  int64_t expected_bytes_;
  int fd_ = -1;
  bool regular_ = true;    // never remove a device such as /dev/null
  bool finished_ = false;  // or kept
};

/// Reads the file back and compares: nobody announces a save that does not read back the same.
void verify_file(const std::string& path, const FileSum& expected);

/// Replaces `path` in one step: readers and crashes see the old content or the new one.
void write_file_atomic(const std::string& path, std::string_view content);

/// A directory that appears complete or not at all:
///
///     AtomicDirectory dir("out/step_00000100");   // makes out/step_00000100.tmp
///     FileWriter model(dir.file("model.safetensors"));  ...  model.finish();
///     dir.commit();                               // now it is out/step_00000100
///
/// Files lie directly in it, without subdirectories. An existing directory at `path` is replaced by
/// exchanging the two names; where the file system cannot exchange (NFS), it is called PATH.old for
/// the moment between two renames.
class AtomicDirectory {
 public:
  explicit AtomicDirectory(const std::string& path);  ///< removes what a crash left in PATH.tmp
  ~AtomicDirectory();                                 ///< without commit(): removes PATH.tmp
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return tmp_ + "/" + name; }
  void commit();

 private:
  std::string path_, tmp_;
  bool committed_ = false;
};

/// Bytes that an unprivileged user can still write on the file system of `path`, which need not
/// exist yet (the nearest existing parent counts).
int64_t free_bytes(const std::string& path);

/// Paths that match a shell pattern, in byte order; empty if there is none. A pattern that is
/// itself the name of a file means that file.
std::vector<std::string> glob_files(const std::string& pattern);

/// Replaces what `to` names. Does not sync: write_file_atomic and AtomicDirectory do.
void rename_path(const std::string& from, const std::string& to);

/// Names that were given or taken away in `path` are on disk afterwards.
void sync_directory(const std::string& path);

/// With all parents. Error naming the component that is a file or not writable.
void create_directories(const std::string& path);

/// Absolute, with links followed and without a slash at the end; what does not exist is taken as it
/// is spelled.
std::string real_path(const std::string& path);

/// Removes a file, or a directory with all it contains; nothing happens if there is none.
void remove_tree(const std::string& path);

}  // namespace loqal
