#include "test/cuda_emulation/device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/cuda_emulation/block.h"

namespace loqal::emulation {

Options& options() {
  static Options the;
  return the;
}

// ---- memory -----------------------------------------------------------------------------------

Memory& memory() {
  static Memory& the = *new Memory;  // never destroyed: a test's static Ops may outlive it
  return the;
}

namespace {
size_t whole_pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }
}  // namespace

void* Memory::allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kDeviceBytes - used_) return nullptr;
  const bool is_protected = options().protect_memory;
  void* data = nullptr;
  if (is_protected) {
    data = mmap(nullptr, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                -1, 0);
    if (data == MAP_FAILED) return nullptr;
    protected_++;
  } else if (posix_memalign(&data, 256, bytes) != 0) {
    return nullptr;
  }
  used_ += bytes;
  std::memset(data, 0xFF, bytes);
  if (is_protected && accesses_ == 0) mprotect(data, whole_pages(bytes), PROT_NONE);
  blocks_[static_cast<char*>(data)] = {bytes, is_protected};
  return data;
}

bool Memory::free(void* data) {
  const std::lock_guard lock(mutex_);
  const auto found = blocks_.find(static_cast<char*>(data));
  if (found == blocks_.end()) return false;
  const Block block = found->second;
  used_ -= block.bytes;
  if (block.is_protected) munmap(data, whole_pages(block.bytes)), protected_--;
  else std::free(data);
  blocks_.erase(found);
  return true;
}

bool Memory::holds(const void* data, size_t bytes) {
  const std::lock_guard lock(mutex_);
  const char* p = static_cast<const char*>(data);
  auto found = blocks_.upper_bound(p);
  if (found == blocks_.begin()) return false;
  --found;
  return p + bytes <= found->first + found->second.bytes;
}

void* Memory::allocate_pinned(size_t bytes) {
  const std::lock_guard lock(mutex_);
  void* data = std::malloc(bytes);
  if (data) pinned_[static_cast<char*>(data)] = bytes;
  return data;
}

bool Memory::free_pinned(void* data) {
  const std::lock_guard lock(mutex_);
  if (!pinned_.erase(static_cast<char*>(data))) return false;
  std::free(data);
  return true;
}

bool Memory::is_pinned(const void* data) {
  const std::lock_guard lock(mutex_);
  const char* p = static_cast<const char*>(data);
  auto found = pinned_.upper_bound(p);
  if (found == pinned_.begin()) return false;
  --found;
  return p < found->first + found->second;
}

void Memory::set_protection(int protection) {
  if (protected_ == 0) return;
  for (const auto& [data, block] : blocks_)
    if (block.is_protected) mprotect(const_cast<char*>(data), whole_pages(block.bytes), protection);
}

Memory::Access::Access() {
  const std::lock_guard lock(memory().mutex_);
  if (memory().accesses_++ == 0) memory().set_protection(PROT_READ | PROT_WRITE);
}

Memory::Access::~Access() {
  const std::lock_guard lock(memory().mutex_);
  if (--memory().accesses_ == 0) memory().set_protection(PROT_NONE);
}

// ---- streams ----------------------------------------------------------------------------------

namespace {

std::recursive_mutex streams_mutex;
std::set<cudaStream_t>& streams() {
  static auto& the = *new std::set<cudaStream_t>;  // as memory()
  return the;
}

CUstream_st* resolve(cudaStream_t stream) {
  static CUstream_st& default_stream = *new CUstream_st;
  return stream ? stream : &default_stream;
}

}  // namespace

void create_stream(cudaStream_t* stream) {
  const std::lock_guard lock(streams_mutex);
  *stream = new CUstream_st;
  streams().insert(*stream);
}

bool destroy_stream(cudaStream_t stream) {
  drain(stream);
  const std::lock_guard lock(streams_mutex);
  if (!streams().erase(stream)) return false;
  delete stream;
  return true;
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  resolve(stream)->work.push_back(std::move(work));
  if (!options().lazy_streams) drain(stream);
}

void drain(cudaStream_t stream, int64_t position) {
  CUstream_st* s = resolve(stream);
  while (!s->work.empty() && s->begun < position) {
    const std::function<void()> first = std::move(s->work.front());
    s->work.pop_front();
    s->begun++;
    first();
  }
}

int64_t given(cudaStream_t stream) {
  return resolve(stream)->begun + int64_t(resolve(stream)->work.size());
}

void drain_all() {
  std::vector<cudaStream_t> all = {nullptr};
  {
    const std::lock_guard lock(streams_mutex);
    all.insert(all.end(), streams().begin(), streams().end());
  }
  for (cudaStream_t stream : all) drain(stream);
}

// ---- launches ---------------------------------------------------------------------------------

namespace {

std::mutex attributes_mutex;
std::map<const void*, int>& attributes() {
  static std::map<const void*, int> the;
  return the;
}

int allowed_shared(const void* kernel) {
  const std::lock_guard lock(attributes_mutex);
  const auto found = attributes().find(kernel);
  return found == attributes().end() ? kMaxShared : std::max(kMaxShared, found->second);
}

void check_limits(const Launch& l) {
  const auto require = [&](bool ok, const std::string& what) {
    if (!ok) throw KernelError("launch: " + what);
  };
  const uint64_t threads = uint64_t(l.block.x) * l.block.y * l.block.z;
  require(threads >= 1 && threads <= kMaxThreads && l.block.z <= 64,
          "a block of " + std::to_string(threads) + " threads; 1 to 1024 are possible, z up to 64");
  require(l.grid.x >= 1 && l.grid.y >= 1 && l.grid.z >= 1, "an empty grid");
  require(l.grid.x <= 0x7fffffffu && l.grid.y <= 65535 && l.grid.z <= 65535,
          "a grid of " + std::to_string(l.grid.x) + " x " + std::to_string(l.grid.y) + " x " +
              std::to_string(l.grid.z) + " blocks; y and z reach 65535");
  require(l.shared_bytes <= size_t(allowed_shared(l.kernel)),
          std::to_string(l.shared_bytes) +
              " bytes of dynamic shared memory; this kernel may have " +
              std::to_string(allowed_shared(l.kernel)));
  require(l.parameter_bytes <= 4096, "more than 4096 bytes of parameters");
}

// Workers take the blocks of a grid in turn: worker w the w-th, the (w + W)-th ... All start
// together, so that races between blocks are seen by TSan.
class Grid {
 public:
  static constexpr int kWorkers = 2;

  static Grid& get() {
    static Grid the;
    return the;
  }

  void run(const Launch& launch) {
    const std::lock_guard one_at_a_time(launches_);
    const Memory::Access access;
    launch_ = &launch;
    seed_ = options().seed + 1000003 * launched_++;
    const int64_t count = int64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    Random random{seed_};
    order_ = permutation(count, options(), random);
    error_ = nullptr;
    if (kSerial || count == 1) run_blocks(0, 1);
    else run_together();
    if (error_) std::rethrow_exception(error_);
  }

 private:
#ifdef LOQAL_EMULATION_ASAN
  static constexpr bool kSerial = true;  // __shared__ variables are plain there
#else
  static constexpr bool kSerial = false;
#endif

  Grid() {
    if (kSerial) return;
    for (int w = 0; w < kWorkers; w++) workers_.emplace_back([this, w] { work(w); });
  }
  ~Grid() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  void run_together() {
    std::unique_lock lock(mutex_);
    round_++;
    running_ = kWorkers;
    arrived_ = 0;
    wake_.notify_all();
    done_.wait(lock, [&] { return running_ == 0; });
  }

  void work(int worker) {
    int64_t seen = 0;
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return stopping_ || round_ > seen; });
        if (stopping_) return;
        seen = round_;
      }
      if (kTsan)
        for (arrived_++; arrived_ < kWorkers;) std::this_thread::yield();
      run_blocks(worker, kWorkers);
      const std::lock_guard lock(mutex_);
      if (--running_ == 0) done_.notify_all();
    }
  }

  void run_blocks(int first, int step) {
    const dim3 grid = launch_->grid;
    try {
      for (size_t i = size_t(first); i < order_.size(); i += size_t(step)) {
        const auto b = unsigned(order_[i]);
        this_runner().run(*launch_, {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y},
                          options(), seed_ + 7919 * b);
      }
    } catch (...) {
      const std::lock_guard lock(errors_);
      if (!error_) error_ = std::current_exception();
    }
  }

  std::mutex launches_, mutex_, errors_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> workers_;
  int64_t round_ = 0;
  int running_ = 0;
  bool stopping_ = false;
  std::atomic<int> arrived_{0};
  const Launch* launch_ = nullptr;
  std::vector<int64_t> order_;
  uint64_t seed_ = 0, launched_ = 0;
  std::exception_ptr error_;
};

}  // namespace

void allow_shared(const void* kernel, int bytes) {
  const std::lock_guard lock(attributes_mutex);
  attributes()[kernel] = bytes;
}

void submit(Launch launch) {
  check_limits(launch);
  cudaStream_t stream = launch.stream;
  enqueue(stream, [launch = std::move(launch)] { Grid::get().run(launch); });
}

}  // namespace loqal::emulation
