// A build without nvcc has no GPU; a dry run for one needs none.
#include "ops/ops.h"

namespace loqal {

namespace {
constexpr const char* kWhy = "this program was built without the CUDA toolkit";
}  // namespace

std::unique_ptr<Ops> make_cuda_ops(int, bool dry) {
  if (!dry) fail(kWhy, "install nvcc and run make again, or use --device cpu");
  return make_cpu_ops(1, true);
}

CudaStatus cuda_status(int) { return {false, kWhy}; }
int64_t cuda_free_bytes(int) { return 0; }

}  // namespace loqal
