// The op suite of run_cuda_tests: CudaOps on the emulated device.
#include "test/ops/op_test.h"

namespace loqal::test {

std::vector<OpsFactory> present_ops() {
  return {{"EmulatedCUDA", [] { return make_cuda_ops(); }}};
}

}  // namespace loqal::test
