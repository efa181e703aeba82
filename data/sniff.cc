#include "data/sniff.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string>

namespace loqal {
namespace {

struct Signature {
  std::string_view bytes;
  FileKind kind;
};
using std::string_view_literals::operator""sv;
constexpr Signature kSignatures[] = {
    {"\x1f\x8b"sv, FileKind::gzip},
    {"\x28\xb5\x2f\xfd"sv, FileKind::zstd},
    {"\xfd"
     "7zXZ"sv,
     FileKind::xz},
    {"BZh91AY&SY"sv, FileKind::bzip2},
    {"PK\x03\x04"sv, FileKind::zip},
    {"PAR1"sv, FileKind::parquet},
    {"\xff\xfe"sv, FileKind::utf16},
    {"\xfe\xff"sv, FileKind::utf16},
    {"\x88\xd8\x34\x01"sv, FileKind::shard},  // 20240520, little-endian
    {"\xa1\xd9\x34\x01"sv, FileKind::shard},  // 20240801
};

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/// Leading blanks (and an UTF-8 byte order mark) removed, letters lower-cased.
std::string folded(std::string_view start) {
  if (start.starts_with("\xef\xbb\xbf")) start.remove_prefix(3);
  while (!start.empty() && is_space(start.front())) start.remove_prefix(1);
  std::string out(start);
  for (char& c : out) c = char(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

/// True if `text` is `open`, any blanks, `next`.
bool opens_with(const std::string& text, char open, char next) {
  if (text.empty() || text[0] != open) return false;
  const auto after = std::find_if_not(text.begin() + 1, text.end(), is_space);
  return after != text.end() && *after == next;
}

}  // namespace

FileKind sniff(std::string_view start) {
  start = start.substr(0, kSniffBytes);
  if (start.empty()) return FileKind::empty;
  if (std::all_of(start.begin(), start.end(), [](char c) { return c == '\xff'; }))
    return FileKind::ones;
  for (const Signature& s : kSignatures)
    if (start.starts_with(s.bytes)) return s.kind;
  // safetensors: 64-bit header length below 2^32, then the JSON header.
  if (start.size() > 8 && start.substr(4, 5) == "\0\0\0\0{"sv) return FileKind::safetensors;
  const std::string text = folded(start);
  if (text.starts_with("<html") || text.starts_with("<!doctype html")) return FileKind::html;
  if (opens_with(text, '{', '"')) return FileKind::json_lines;
  if (opens_with(text, '[', '{')) return FileKind::json_array;
  return FileKind::other;
}

const char* describe(FileKind kind) {
  switch (kind) {
    case FileKind::empty: return "an empty file";
    case FileKind::html: return "a web page (HTML)";
    case FileKind::gzip: return "gzip";
    case FileKind::zstd: return "zstd";
    case FileKind::xz: return "xz";
    case FileKind::bzip2: return "bzip2";
    case FileKind::zip: return "a zip archive";
    case FileKind::parquet: return "parquet";
    case FileKind::safetensors: return "safetensors";
    case FileKind::utf16: return "text in UTF-16";
    case FileKind::shard: return "a token shard";
    case FileKind::json_lines: return "JSON";
    case FileKind::json_array: return "a JSON array";
    case FileKind::ones: return "0xFF bytes (a failed copy?)";
    case FileKind::other: return "unknown bytes";
  }
  return "unknown bytes";
}

}  // namespace loqal
