// ThreadPool: runs a fixed list of tasks on a fixed number of threads. The list never depends on
// the thread count and tasks write disjoint memory, so results are the same bytes for any thread
// count.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace loqal {

class ThreadPool {
 public:
  /// Error if the system does not let this process have so many threads.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return int(workers_.size()) + 1; }

  /// Calls task(i) once for each i in [0, count), in any order, and returns when all are done.
  /// Not reentrant; called by one thread at a time. If a task throws, tasks that nobody has begun
  /// are left out, and the first exception comes out of run() once no thread is inside a task.
  void run(int64_t count, const std::function<void(int64_t)>& task);

  /// Cuts [0, n) into chunks of `grain` elements (the last may be shorter): body(first, last).
  template <class Body>
  void chunks(int64_t n, int64_t grain, const Body& body) {
    run((n + grain - 1) / grain, [&](int64_t c) {
      const int64_t first = c * grain, last = first + grain < n ? first + grain : n;
      body(first, last);
    });
  }

 private:
  void worker_loop();
  void work() noexcept;
  void stop();

  std::vector<std::thread> workers_;
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t count_ = 0;
  std::atomic<uint64_t> job_{0};     // number of the current job; waiting threads watch it
  std::atomic<int64_t> next_{0};     // next task of the current job
  std::atomic<int> busy_{0};         // workers that have not finished the current job
  std::atomic<bool> failed_{false};  // a task of the current job has thrown
  std::exception_ptr error_;         // by whoever set failed_; read when all are idle
  std::atomic<bool> stop_{false};
};

/// CPUs this process may use: the affinity mask, and the container's CPU quota if it is smaller.
int usable_cpus();

}  // namespace loqal
