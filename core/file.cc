#include "core/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.h"

namespace loqal {

namespace fs = std::filesystem;

namespace {
constexpr size_t kBuffer = 1 << 20;

[[noreturn]] void fail_errno(const std::string& path, const std::string& action, int error) {
  fail(cat(path, ": cannot ", action, ": ", std::generic_category().message(error)));
}

/// Closes a descriptor whatever happens; for descriptors whose close() cannot lose data.
struct Descriptor {
  int fd;
  Descriptor(const std::string& path, int flags) : fd(open(path.c_str(), flags | O_CLOEXEC)) {
    if (fd < 0) fail_errno(path, "open", errno);
  }
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

/// Opens for reading; anything but a regular file is refused. Returns its size.
int64_t regular_size(const Descriptor& file, const std::string& path) {
  struct stat info;
  if (fstat(file.fd, &info) != 0) fail_errno(path, "examine", errno);
  if (S_ISDIR(info.st_mode)) fail(cat(path, ": expected a file, found a directory"));
  if (!S_ISREG(info.st_mode)) fail(cat(path, ": expected a regular file, found a device or pipe"));
  return info.st_size;
}

/// Error unless the first expected.bytes bytes have expected.crc32.
void check_crc(const Descriptor& file, const std::string& path, const FileSum& expected) {
  std::string piece(kBuffer, '\0');
  uint32_t crc = 0;
  for (int64_t left = expected.bytes; left > 0;) {
    const ssize_t got = read(file.fd, piece.data(), std::min(piece.size(), size_t(left)));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path, "read", errno);
    if (got == 0) fail(cat(path, ": ended ", left, " bytes early: it shrank while being read"));
    crc = uint32_t(crc32_z(crc, reinterpret_cast<const Bytef*>(piece.data()), size_t(got)));
    left -= got;
  }
  if (crc != expected.crc32)
    fail(cat(path, ": damaged: expected CRC-32 ", expected.crc32, ", found ", crc));
}

/// Special files (/dev/null) and some network file systems have nothing to synchronize.
void sync_descriptor(int fd, const std::string& path) {
  if (fsync(fd) != 0 && errno != EINVAL && errno != EROFS) fail_errno(path, "write to disk", errno);
}

void sync_path(const std::string& path) { sync_descriptor(Descriptor(path, O_RDONLY).fd, path); }

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

/// Puts the complete directory `tmp` in the place of `path`, which may exist.
void replace_directory(const std::string& tmp, const std::string& path) {
  if (rename(tmp.c_str(), path.c_str()) == 0) return;  // nothing was there, or an empty directory
  if (errno != EEXIST && errno != ENOTEMPTY) fail_errno(tmp, cat("rename to ", path), errno);
  if (renameat2(AT_FDCWD, tmp.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_errno(tmp, cat("exchange with ", path), errno);
  const std::string old = path + ".old";
  remove_tree(old);
  rename_path(path, old);
  rename_path(tmp, path);
  remove_tree(old);
}
}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(path, O_RDONLY);
  size_ = size_t(regular_size(file, path));
  if (size_ == 0) fail(cat(path, ": the file is empty (0 bytes)"));
  void* memory = mmap(nullptr, size_, PROT_READ, MAP_SHARED, file.fd, 0);
  if (memory == MAP_FAILED) fail_errno(path, cat("map ", size_, " bytes"), errno);
  data_ = static_cast<const std::byte*>(memory);
}

MappedFile::~MappedFile() {
  if (data_) munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(const std::byte* from, size_t bytes) const {
  const size_t page = size_t(sysconf(_SC_PAGESIZE));
  const size_t begin = size_t(from - data_) / page * page, end = size_t(from - data_) + bytes;
  madvise(const_cast<std::byte*>(data_ + begin), end - begin, MADV_DONTNEED);
}

ReadOnlyFile::ReadOnlyFile(const std::string& path) : path_(path) {
  Descriptor file(path, O_RDONLY);
  size_ = regular_size(file, path);
  fd_ = std::exchange(file.fd, -1);
}

ReadOnlyFile::~ReadOnlyFile() { close(fd_); }

void ReadOnlyFile::read(int64_t offset, void* out, size_t bytes) const {
  for (size_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(fd_, static_cast<char*>(out) + done, bytes - done, offset + int64_t(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno(path_, "read", errno);
    if (got == 0)
      fail(cat(path_, ": expected ", size_, " bytes, found ", offset + int64_t(done),
               ": it shrank while being read"));
    done += size_t(got);
  }
}

std::string read_file(const std::string& path, int64_t max_bytes) {
  const ReadOnlyFile file(path);
  if (file.size() > max_bytes)
    fail(cat(path, ": expected at most ", max_bytes, " bytes, found ", file.size()));
  std::string content(size_t(file.size()), '\0');
  file.read(0, content.data(), content.size());
  return content;
}

FileWriter::FileWriter(const std::string& path, int64_t expected_bytes)
    : path_(path), expected_bytes_(expected_bytes) {
  struct stat info;
  regular_ = stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
  if (expected_bytes > 0 && regular_) {
    const int64_t free = free_bytes(path);
    if (free < expected_bytes)
      fail(cat(path, ": the disk is too full: ", expected_bytes, " bytes needed, ", free,
               " bytes free"),
           "free some space or choose another directory");
  }
  fd_ = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd_ < 0) fail_errno(path, "create", errno);
  buffer_.reserve(kBuffer);
}

FileWriter::FileWriter(const std::string& path, const FileSum& kept)
    : path_(path), sum_(kept), expected_bytes_(0) {
  const Descriptor file(path, O_RDONLY);
  if (const int64_t found = regular_size(file, path); found < kept.bytes)
    fail(cat(path, ": expected at least ", kept.bytes, " bytes, found ", found));
  check_crc(file, path, kept);
  fd_ = open(path.c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) fail_errno(path, "open", errno);
  if (ftruncate(fd_, kept.bytes) != 0 || lseek(fd_, 0, SEEK_END) != kept.bytes) {
    close(fd_);
    fail_errno(path, cat("cut to ", kept.bytes, " bytes"), errno);
  }
  buffer_.reserve(kBuffer);
}

FileWriter::~FileWriter() {
  if (fd_ >= 0) close(fd_);
  if (!finished_ && regular_) unlink(path_.c_str());
}

void FileWriter::write(const void* data, size_t bytes) {
  LOQAL_ASSERT(fd_ >= 0, path_, " is finished");
  if (bytes == 0) return;  // zlib takes a null pointer as "start again"
  const char* p = static_cast<const char*>(data);
  sum_.crc32 = uint32_t(crc32_z(sum_.crc32, reinterpret_cast<const Bytef*>(p), bytes));
  sum_.bytes += int64_t(bytes);
  if (buffer_.size() + bytes > kBuffer) flush();
  if (bytes >= kBuffer) write_through(p, bytes);
  else buffer_.append(p, bytes);
}

const FileSum& FileWriter::flush() {
  write_through(buffer_.data(), buffer_.size());
  buffer_.clear();
  return sum_;
}

void FileWriter::keep() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
  finished_ = true;
}

void FileWriter::write_through(const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t put = ::write(fd_, data, bytes);
    if (put >= 0) {
      data += put;
      bytes -= size_t(put);
    } else if (errno == ENOSPC || errno == EDQUOT) {
      const int error = errno;
      const int64_t needed = std::max(expected_bytes_ - sum_.bytes, int64_t(0)) + int64_t(bytes);
      fail(cat(path_, ": ", std::generic_category().message(error), ": at least ", needed,
               " more bytes needed, ", free_bytes(path_), " bytes free"),
           "free some space or choose another directory");
    } else if (errno != EINTR) {
      fail_errno(path_, cat("write ", bytes, " bytes"), errno);
    }
  }
}

FileSum FileWriter::finish() {
  LOQAL_ASSERT(fd_ >= 0, path_, " is finished");
  flush();
  sync_descriptor(fd_, path_);
  if (close(std::exchange(fd_, -1)) != 0) fail_errno(path_, "close", errno);
  finished_ = true;
  return sum_;
}

void verify_file(const std::string& path, const FileSum& expected) {
  const Descriptor file(path, O_RDONLY);
  if (const int64_t found = regular_size(file, path); found != expected.bytes)
    fail(cat(path, ": expected ", expected.bytes, " bytes, found ", found));
  check_crc(file, path, expected);
}

void write_file_atomic(const std::string& path, std::string_view content) {
  const std::string tmp = path + ".tmp";
  FileWriter file(tmp, int64_t(content.size()));
  file.write(content);
  file.finish();
  rename_path(tmp, path);
  sync_path(parent_of(path));
}

AtomicDirectory::AtomicDirectory(const std::string& path) : path_(path) {
  while (path_.size() > 1 && path_.back() == '/') path_.pop_back();
  tmp_ = path_ + ".tmp";
  remove_tree(tmp_);
  create_directories(tmp_);
}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;  // a destructor may run because of an error that matters more
  if (!committed_) fs::remove_all(tmp_, ignored);
}

void AtomicDirectory::commit() {
  LOQAL_ASSERT(!committed_, path_, " is committed");
  for (const fs::directory_entry& entry : fs::directory_iterator(tmp_))
    sync_path(entry.path().string());
  sync_path(tmp_);
  replace_directory(tmp_, path_);
  committed_ = true;
  sync_path(parent_of(path_));
  remove_tree(tmp_);  // after an exchange: the previous directory
}

int64_t free_bytes(const std::string& path) {
  std::error_code ignored;
  fs::path existing = path;
  while (!existing.empty() && !fs::exists(existing, ignored)) existing = existing.parent_path();
  if (existing.empty()) existing = ".";
  struct statvfs info;
  if (statvfs(existing.c_str(), &info) != 0) fail_errno(path, "ask for free space", errno);
  return int64_t(info.f_bavail) * int64_t(info.f_frsize);
}

std::vector<std::string> glob_files(const std::string& pattern) {
  std::error_code ignored;
  if (fs::exists(pattern, ignored)) return {pattern};
  glob_t found{};
  const int result = glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &found), error = errno;
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  const bool no_folder = result == GLOB_ABORTED && (error == ENOENT || error == ENOTDIR);
  if (result != 0 && result != GLOB_NOMATCH && !no_folder)
    fail_errno(pattern, "list the matching files", error);
  std::sort(paths.begin(), paths.end());
  return paths;
}

void rename_path(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) fail_errno(from, cat("rename to ", to), errno);
}

void sync_directory(const std::string& path) { sync_path(path); }

void create_directories(const std::string& path) {
  std::error_code error, ignored;
  fs::create_directories(path, error);
  if (fs::is_directory(path, ignored)) return;
  fs::path existing = path;
  while (!existing.empty() && !fs::exists(existing, ignored)) existing = existing.parent_path();
  if (existing.empty()) existing = ".";
  if (!fs::is_directory(existing, ignored))
    fail(cat(path, ": cannot create the directory: ", existing.string(), " is a file"));
  if (access(existing.c_str(), W_OK) != 0)
    fail(cat(path, ": cannot create the directory: ", existing.string(), " is not writable"));
  fail_errno(path, "create the directory", error.value());
}

std::string real_path(const std::string& path) {
  std::error_code error;
  const fs::path real = fs::weakly_canonical(fs::absolute(path), error);
  if (error) fail_errno(path, "follow this path", error.value());
  return (real.has_filename() ? real : real.parent_path()).string();
}

void remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  const bool none = error == std::errc::not_a_directory;  // a parent is a file
  if (error && !none) fail_errno(path, "remove", error.value());
}

}  // namespace loqal
