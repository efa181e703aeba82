// The CUDA runtime's functions, those that the project calls, on the emulated device.
#include <chrono>
#include <vector>

#include "test/cuda_emulation/device.h"

using namespace loqal::emulation;

namespace {

thread_local cudaError_t last_error = cudaSuccess;

cudaError_t result(bool ok, cudaError_t error = cudaErrorInvalidValue) {
  if (!ok) last_error = error;
  return ok ? cudaSuccess : error;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

extern "C" {

cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess                 ? "cudaSuccess"
         : error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation"
         : error == cudaErrorInvalidDevice    ? "cudaErrorInvalidDevice"
                                              : "cudaErrorInvalidValue";
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return result(device >= 0 && device < kDevices, cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (cudaSetDevice(device) != cudaSuccess) return result(false, cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "emulated GPU");
  properties->major = 8;
  properties->totalGlobalMem = kDeviceBytes;
  properties->multiProcessorCount = 4;
  properties->sharedMemPerBlockOptin = kMaxSharedOptIn;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = kDeviceBytes;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = memory().allocate(bytes);
  return result(*data, cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  drain_all();  // as the real one does
  return result(!data || memory().free(data));
}
cudaError_t cudaMallocHost(void** data, size_t bytes) {
  *data = memory().allocate_pinned(bytes);
  return result(*data, cudaErrorMemoryAllocation);
}
cudaError_t cudaFreeHost(void* data) { return result(!data || memory().free_pinned(data)); }

cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t stream) {
  if (!memory().holds(data, bytes)) return result(false);
  enqueue(stream, [=] {
    const Memory::Access access;
    std::memset(data, value, bytes);
  });
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if (kind == cudaMemcpyDefault || memory().holds(to, bytes) != to_device ||
      memory().holds(from, bytes) != from_device)
    return result(false);
  const auto copy = [](void* t, const void* f, size_t n) {
    const Memory::Access access;
    std::memcpy(t, f, n);
  };
  // Pageable memory is staged: the caller may reuse it at once.
  if (!from_device && !memory().is_pinned(from)) {
    const char* bytes_of = static_cast<const char*>(from);
    enqueue(stream, [=, staged = std::vector<char>(bytes_of, bytes_of + bytes)] {
      copy(to, staged.data(), bytes);
    });
    return cudaSuccess;
  }
  enqueue(stream, [=] { copy(to, from, bytes); });
  if (!to_device && !memory().is_pinned(to)) drain(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  create_stream(stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return result(destroy_stream(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  drain(stream);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  drain_all();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  enqueue(stream, [from = event->stream, position = event->position] { drain(from, position); });
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->stream = stream;
  event->position = given(stream) + 1;
  enqueue(stream, [event] { event->seconds = now(); });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  drain(event->stream, event->position);
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  *milliseconds = float((end->seconds - start->seconds) * 1e3);
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value > kMaxSharedOptIn)
    return result(false);
  allow_shared(kernel, value);
  return cudaSuccess;
}

}  // extern "C"
