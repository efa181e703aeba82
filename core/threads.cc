#include "core/threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "core/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace loqal {

namespace {
inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

// Ops follow each other within microseconds, so waiting threads spin this long before they sleep.
constexpr int kSpins = 4000;
}  // namespace

ThreadPool::ThreadPool(int threads) {
  try {
    for (int i = 1; i < threads; i++) workers_.emplace_back([this] { worker_loop(); });
  } catch (const std::system_error& e) {
    const size_t started = workers_.size() + 1;
    stop();  // a thread that is not joined would end the process
    fail(cat("cannot start ", threads, " threads, only ", started, ": ", e.what()),
         "choose fewer with --threads, or raise the limit (ulimit -u)");
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  stop_.store(true);
  job_.fetch_add(1);
  job_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run(int64_t count, const std::function<void(int64_t)>& task) {
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; i++) task(i);
    return;
  }
  task_ = &task;
  count_ = count;
  next_.store(0, std::memory_order_relaxed);
  busy_.store(int(workers_.size()), std::memory_order_relaxed);
  job_.fetch_add(1, std::memory_order_release);
  job_.notify_all();
  work();
  for (int spins = 0, left; (left = busy_.load(std::memory_order_acquire)) != 0;) {
    if (++spins < kSpins) relax();
    else busy_.wait(left, std::memory_order_acquire);
  }
  if (!failed_.load(std::memory_order_relaxed)) [[likely]]
    return;
  failed_.store(false, std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(error_, nullptr));
}

/// Tasks of the current job until none is left. The exception waits in error_: thrown from here it
/// would end the process, or unwind what other threads still use.
void ThreadPool::work() noexcept {
  try {
    for (int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) (*task_)(i);
  } catch (...) {
    next_.store(count_, std::memory_order_relaxed);  // nobody begins another task
    if (!failed_.exchange(true, std::memory_order_relaxed)) error_ = std::current_exception();
  }
}

void ThreadPool::worker_loop() {
  for (uint64_t seen = 0;;) {
    uint64_t now;
    for (int spins = 0; (now = job_.load(std::memory_order_acquire)) == seen;) {
      if (++spins < kSpins) relax();
      else job_.wait(seen, std::memory_order_acquire);
    }
    seen = now;
    if (stop_.load()) return;
    work();
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
  }
}

int usable_cpus() {
  cpu_set_t set;
  int cpus = int(std::max(1u, std::thread::hardware_concurrency()));
  if (sched_getaffinity(0, sizeof set, &set) == 0) cpus = std::max(1, CPU_COUNT(&set));
  std::ifstream quota("/sys/fs/cgroup/cpu.max");  // "max 100000" or "150000 100000"
  std::string limit;
  double period = 0;
  if (quota >> limit >> period && limit != "max" && period > 0)
    cpus = std::clamp(int(std::ceil(std::stod(limit) / period)), 1, cpus);
  return cpus;
}

}  // namespace loqal
