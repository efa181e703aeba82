#include "data/byte_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace loqal {
namespace {

constexpr size_t kInputBytes = size_t(1) << 17;

const char* hint_for(FileKind kind) {
  switch (kind) {
    case FileKind::html: return "the server sent a page instead of the file: download it again";
    case FileKind::zstd: return "decompress it first: zstd -d";
    case FileKind::xz: return "decompress it first: xz -d";
    case FileKind::bzip2: return "decompress it first: bunzip2";
    case FileKind::zip: return "extract it first: unzip";
    case FileKind::json_array: return "one object a line: jq -c '.[]'";
    case FileKind::utf16: return "convert it first: iconv -f UTF-16 -t UTF-8";
    case FileKind::shard: return "its text is tokenized already: give it to ./train --train-data";
    default: return "convert it to JSON lines ({\"text\": ...} a line) or plain text";
  }
}

bool has_text(FileKind kind) {
  return kind == FileKind::json_lines || kind == FileKind::other || kind == FileKind::empty;
}

FILE* open_regular(const std::string& path) {
  FILE* file = std::fopen(path.c_str(), "rb");
  if (!file) fail(cat(path, ": cannot open: ", std::strerror(errno)));
  struct stat info;
  if (fstat(fileno(file), &info) == 0 && S_ISDIR(info.st_mode)) {
    std::fclose(file);
    fail(cat(path, ": is a folder; expected a file"), "name its files, for example DIR/*.json.gz");
  }
  return file;
}

}  // namespace

ByteSource::ByteSource(const std::string& path)
    : path_(path), file_(open_regular(path), std::fclose), input_(kInputBytes) {
  fill();
  const FileKind outer = sniff({input_.data(), zlib_.avail_in});
  gzip_ = outer == FileKind::gzip;
  if (!gzip_) refuse(outer);
  // 15 window bits + 16: gzip framing, whose CRC and length zlib verifies.
  if (gzip_ && inflateInit2(&zlib_, 15 + 16) != Z_OK) fail(cat(path, ": zlib cannot start"));
  std::string head(kSniffBytes, '\0');
  size_t n = 0;
  try {
    while (n < head.size())
      if (const size_t got = read(head.data() + n, head.size() - n)) n += got;
      else break;
    head.resize(n);
    content_ = sniff(head);
    refuse(content_);
  } catch (...) {
    inflateEnd(&zlib_);
    throw;
  }
  head_ = std::move(head);
}

ByteSource::~ByteSource() { inflateEnd(&zlib_); }

void ByteSource::refuse(FileKind kind) const {
  if (has_text(kind)) return;
  const std::string found = cat(gzip_ ? "inside gzip: " : "", describe(kind));
  fail(cat(path_, ": expected gzip, JSON lines or plain text, found ", found), hint_for(kind));
}

size_t ByteSource::read_file(char* out, size_t size) {
  const size_t n = std::fread(out, 1, size, file_.get());
  if (n == 0 && std::ferror(file_.get()))
    fail(cat(path_, ": cannot read at byte ", file_offset_, ": ", std::strerror(errno)));
  file_offset_ += n;
  digest_.update(out, n);
  return n;
}

std::string ByteSource::file_sha256() {
  while (fill()) {
  }
  return to_hex(digest_.digest());
}

bool ByteSource::fill() {
  zlib_.next_in = reinterpret_cast<Bytef*>(input_.data());
  zlib_.avail_in = uInt(read_file(input_.data(), input_.size()));
  return zlib_.avail_in > 0;
}

void ByteSource::fail_gzip(const std::string& what) const {
  fail(cat(path_, ": damaged gzip: ", what, " at byte ", file_offset_ - zlib_.avail_in),
       "download or copy the file again; --on-error skip keeps what was readable");
}

/// After the end of a member: true if another one follows. Zeros behind the last (tape blocks) are
/// fine, anything else is not.
bool ByteSource::next_member() {
  for (;;) {
    if (zlib_.avail_in == 0 && !fill()) return false;
    const Bytef* end = zlib_.next_in + zlib_.avail_in;
    const Bytef* start =
        std::find_if(zlib_.next_in, zlib_.next_in + zlib_.avail_in, [](Bytef b) { return b != 0; });
    zlib_.avail_in = uInt(end - start);
    zlib_.next_in = const_cast<Bytef*>(start);
    if (start == end) continue;
    if (*start != 0x1f) fail_gzip("garbage behind the end of the stream");
    inflateReset(&zlib_);
    return true;
  }
}

/// What was inflated before an error is returned first; the next call then finds the error again.
size_t ByteSource::inflate_some(char* out, size_t size) {
  zlib_.next_out = reinterpret_cast<Bytef*>(out);
  zlib_.avail_out = uInt(std::min<size_t>(size, kInputBytes));
  const uInt wanted = zlib_.avail_out;
  while (zlib_.avail_out == wanted) {
    if (member_ended_ && !next_member()) break;
    member_ended_ = false;
    if (zlib_.avail_in == 0 && !fill()) fail_gzip("the stream ends too early (cut off?)");
    const int rc = inflate(&zlib_, Z_NO_FLUSH);
    member_ended_ = rc == Z_STREAM_END;
    const bool bad = rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR;
    if (bad && zlib_.avail_out == wanted) fail_gzip(zlib_.msg ? zlib_.msg : "not a gzip stream");
  }
  return wanted - zlib_.avail_out;
}

size_t ByteSource::read(char* out, size_t size) {
  if (!head_.empty()) {
    const size_t n = std::min(size, head_.size());
    std::copy_n(head_.begin(), n, out);
    head_.erase(0, n);
    return n;
  }
  if (gzip_) return inflate_some(out, size);
  if (zlib_.avail_in == 0 && !fill()) return 0;
  const size_t n = std::min<size_t>(size, zlib_.avail_in);
  std::copy_n(zlib_.next_in, n, out);
  zlib_.next_in += n;
  zlib_.avail_in -= uInt(n);
  return n;
}

}  // namespace loqal
