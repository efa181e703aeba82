// What a file is, from its first bytes, so that an error can say "this is a web page" instead of
// "bad magic". A saved error page and a file of another format are the usual causes.
#pragma once
#include <cstddef>
#include <string_view>

namespace loqal {

enum class FileKind {
  empty,
  html,
  gzip,
  zstd,
  xz,
  bzip2,
  zip,
  parquet,
  safetensors,
  utf16,       ///< text, but not in UTF-8
  shard,       ///< llm.c's token shard (either width)
  json_lines,  ///< starts with { "
  json_array,  ///< starts with [ {
  ones,        ///< 0xFF throughout, as unwritten flash or a failed copy leaves it
  other        ///< plain text or unknown bytes
};

constexpr size_t kSniffBytes = 64;  ///< how many leading bytes sniff() looks at, at most

FileKind sniff(std::string_view start);
const char* describe(FileKind kind);  ///< "a web page (HTML)", for messages

}  // namespace loqal
