// libFuzzer: a shard's header, and reading and checking ids of what passes as one.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "core/error.h"
#include "data/shard.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A header is 1024 bytes, nearly all of them zero: the first 48 bytes of the input and zeros.
  std::vector<uint8_t> bytes(data, data + std::min<size_t>(size, 48));
  bytes.resize(1024);
  if (size > 48) bytes.insert(bytes.end(), data + 48, data + size);
  static const int memory = memfd_create("fuzz", 0);
  if (ftruncate(memory, 0) != 0 ||
      pwrite(memory, bytes.data(), bytes.size(), 0) != ssize_t(bytes.size()))
    std::abort();
  try {
    const loqal::Shard shard(loqal::cat("/proc/self/fd/", memory), 300);
    std::vector<int32_t> ids(size_t(shard.header().tokens));
    shard.scan();
    shard.read(0, shard.header().tokens, ids.data());
    for (const int32_t id : ids)
      if (id < 0 || id >= 300) std::abort();
    uint8_t again[1024];
    loqal::format_shard_header(shard.header(), again);
    if (shard.header().vocab_size > 0 && !std::equal(again, again + 1024, bytes.begin()))
      std::abort();
  } catch (const loqal::Error&) {
  }
  return 0;
}
