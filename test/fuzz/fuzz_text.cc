// libFuzzer: the readers of gzip, JSON lines and plain text. The first byte chooses the options,
// the second cuts the limit of a document; the rest is the file.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "core/error.h"
#include "data/text_reader.h"
#include "data/utf8.h"

namespace {

/// The bytes as a file that can be opened by name, without a disk.
std::string as_file(const uint8_t* data, size_t size) {
  static const int memory = memfd_create("fuzz", 0);
  if (ftruncate(memory, 0) != 0 || pwrite(memory, data, size, 0) != ssize_t(size)) std::abort();
  return loqal::cat("/proc/self/fd/", memory);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  loqal::ReadOptions options;
  options.split = loqal::Split(data[0] % 4);
  options.separator = "<e>";
  options.skip_bad = data[0] & 4;
  options.max_doc_bytes = 1 + data[1];
  loqal::SkipReport skipped;
  try {
    loqal::TextReader reader(as_file(data + 2, size - 2), options, &skipped);
    for (std::string document; reader.next(&document);)
      if (loqal::invalid_utf8(document) != std::string::npos) std::abort();
    if (reader.file_sha256().size() != 64) std::abort();
  } catch (const loqal::Error&) {
    if (options.skip_bad) std::abort();  // then nothing in a file is an error
  }
  return 0;
}
