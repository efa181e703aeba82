// Sorting on the device, by CUB. Its header alone takes seconds to compile: it is included in one
// file only. test/cuda_emulation/ has its own definition.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace loqal::cuda {

/// Bytes that sort_pairs needs as workspace for n pairs.
size_t sort_bytes(int n);

/// keys_out, values_out [n] = the pairs of keys_in in [0, limit) and values_in, by key; equal keys
/// stay in their order.
void sort_pairs(uint32_t* keys_out, int32_t* values_out, const uint32_t* keys_in,
                const int32_t* values_in, int n, uint32_t limit, void* workspace, size_t bytes,
                cudaStream_t stream);

}  // namespace loqal::cuda
