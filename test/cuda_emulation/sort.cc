// What ops/cuda/sort.cu does by CUB, whose own kernels are not emulated.
#include "ops/cuda/sort.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "test/cuda_emulation/device.h"

namespace loqal::cuda {

size_t sort_bytes(int n) { return size_t(n) * 8 + 256; }

void sort_pairs(uint32_t* keys_out, int32_t* values_out, const uint32_t* keys_in,
                const int32_t* values_in, int n, uint32_t limit, void* workspace, size_t bytes,
                cudaStream_t stream) {
  if (bytes < sort_bytes(n) || !emulation::memory().holds(workspace, bytes))
    throw emulation::KernelError("sort_pairs: the workspace is too small");
  emulation::enqueue(stream, [=] {
    const emulation::Memory::Access access;
    std::vector<int> order(static_cast<size_t>(n));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return keys_in[a] < keys_in[b]; });
    std::memset(workspace, 0xFF, bytes);
    for (int i = 0; i < n; i++) {
      const int from = order[size_t(i)];
      if (keys_in[from] >= limit) throw emulation::KernelError("sort_pairs: a key is too large");
      keys_out[i] = keys_in[from];
      values_out[i] = values_in[from];
    }
  });
}

}  // namespace loqal::cuda
