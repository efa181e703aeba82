// The implementations that the op suite runs over in run_tests: the CPU, and a GPU where there is
// one; test/cuda_emulation/ has another list.
#include "test/ops/op_test.h"

namespace loqal::test {

std::vector<OpsFactory> present_ops() {
  std::vector<OpsFactory> present = {{"CPU1", [] { return make_cpu_ops(1); }},
                                     {"CPU2", [] { return make_cpu_ops(2); }}};
  if (cuda_status().usable) present.push_back({"CUDA", [] { return make_cuda_ops(); }});
  return present;
}

}  // namespace loqal::test
