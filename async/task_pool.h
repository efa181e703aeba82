// TaskPool: a few tasks, each once, on several threads, the most urgent first. The thread that
// waits for a task works too, so that a pool of one thread starts none and runs each task when it
// is asked for.
#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace loqal {

class TaskPool {
 public:
  /// `tasks`: they are numbered from 0 to tasks - 1.
  TaskPool(int threads, int tasks);
  /// Leaves out what nobody has begun; waits for the rest.
  ~TaskPool();
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Lower is more urgent, then the lower number. A number is free again after wait().
  void add(int task, double urgency, std::function<void()> work);
  /// Returns when the task is done, running others meanwhile; throws what it threw.
  void wait(int task);

 private:
  struct Task {
    std::function<void()> work;
    bool done = false;
    std::exception_ptr error;
  };

  void helper();
  bool run_one(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Task> tasks_;                        // by number
  std::map<std::pair<double, int>, int> waiting_;  // (urgency, number) -> number
  bool stop_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace loqal
