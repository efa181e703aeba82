// Memory accounting, shared by all devices.
#include <algorithm>
#include <utility>

#include "ops/ops.h"

namespace loqal {

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(ops_, other.ops_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(category_, other.category_);
  return *this;
}

Buffer::~Buffer() {
  if (ops_) ops_->release(data_, bytes_, category_);
}

Buffer Ops::alloc(int64_t bytes, const std::string& category) {
  LOQAL_ASSERT(bytes >= 0, category, ": ", bytes, " bytes");
  void* data = dry_ || bytes == 0 ? nullptr : do_alloc(bytes);
  if (!dry_ && bytes > 0 && !data) {
    std::string table;
    for (const auto& [name, held] : memory_) table += cat("\n    ", name, ": ", held >> 20, " MiB");
    fail(
        cat("out of memory: ", category, " needs ", (bytes >> 20) + 1, " MiB; held so far:", table),
        "reduce --batch-size or --seq-len, or use --recompute block; --dry-run prints the whole "
        "table");
  }
  memory_[category] += bytes;
  current_ += bytes;
  peak_ = std::max(peak_, current_);
  return {this, data, bytes, category};
}

void Ops::release(void* data, int64_t bytes, const std::string& category) {
  if (data) do_free(data, bytes);
  memory_[category] -= bytes;
  current_ -= bytes;
}

}  // namespace loqal
