#include "ops/cuda/sort.h"

#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops/cuda/device.cuh"

namespace loqal::cuda {

size_t sort_bytes(int n) {
  size_t bytes = 0;
  CUDA_CHECK(cub::DeviceRadixSort::SortPairs(
      nullptr, bytes, static_cast<const uint32_t*>(nullptr), static_cast<uint32_t*>(nullptr),
      static_cast<const int32_t*>(nullptr), static_cast<int32_t*>(nullptr), n));
  return bytes;
}

void sort_pairs(uint32_t* keys_out, int32_t* values_out, const uint32_t* keys_in,
                const int32_t* values_in, int n, uint32_t limit, void* workspace, size_t bytes,
                cudaStream_t stream) {
  const int bits = std::max(1, int(std::bit_width(limit - 1)));
  CUDA_CHECK(cub::DeviceRadixSort::SortPairs(workspace, bytes, keys_in, keys_out, values_in,
                                             values_out, n, 0, bits, stream));
}

}  // namespace loqal::cuda
