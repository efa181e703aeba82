// The emulated device: grids of blocks on OS threads, streams, device memory. Host code sees the
// CUDA runtime's functions, which runtime.cc defines by these.
#pragma once
#include <deque>
#include <functional>
#include <map>
#include <mutex>

#include "test/cuda_emulation/cuda_emulation.h"

/// A stream holds work that has not run yet; only a lazy one ever does for long.
struct CUstream_st {
  std::deque<std::function<void()>> work;
  int64_t begun = 0;  ///< pieces of work that were taken from `work`
};

/// An event stands for all work that its stream had been given when it was recorded.
struct CUevent_st {
  cudaStream_t stream = nullptr;
  int64_t position = 0;  ///< of the stream's work; 0: never recorded
  double seconds = 0;    ///< when that was done
};

namespace loqal::emulation {

/// What every GPU from sm_80 on allows; more would be an error on some of them.
constexpr int kMaxThreads = 1024, kMaxShared = 48 << 10, kMaxSharedOptIn = 99 << 10;

constexpr int kDevices = 2;  // that the runtime tells of; they share everything
constexpr size_t kDeviceBytes = size_t(1) << 32;

/// Puts work on a stream (null: the default one) and, unless streams are lazy, runs it.
void enqueue(cudaStream_t stream, std::function<void()> work);
/// Runs a stream's work, all of it or up to a position.
void drain(cudaStream_t stream, int64_t position = INT64_MAX);
void drain_all();
/// Pieces of work that a stream has been given.
int64_t given(cudaStream_t stream);

/// Device memory: found by any address inside of it.
class Memory {
 public:
  void* allocate(size_t bytes);  ///< null if there is not enough; all bytes are 0xFF
  bool free(void* data);
  bool holds(const void* data, size_t bytes);
  void* allocate_pinned(size_t bytes);
  bool free_pinned(void* data);
  bool is_pinned(const void* data);
  /// While one of these exists, the protected part can be read and written.
  class Access {
   public:
    Access();
    ~Access();
  };

 private:
  struct Block {
    size_t bytes;
    bool is_protected;
  };
  void set_protection(int protection);

  std::recursive_mutex mutex_;
  std::map<const char*, Block> blocks_;
  std::map<const char*, size_t> pinned_;
  size_t used_ = 0;
  int accesses_ = 0;
  int protected_ = 0;
};
Memory& memory();

/// cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize).
void allow_shared(const void* kernel, int bytes);

void create_stream(cudaStream_t* stream);
bool destroy_stream(cudaStream_t stream);

}  // namespace loqal::emulation
