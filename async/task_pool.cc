#include "async/task_pool.h"

#include <system_error>

#include "core/error.h"

namespace loqal {

TaskPool::TaskPool(int threads, int tasks) : tasks_(size_t(tasks)) {
  try {
    for (int i = 1; i < threads; i++) helpers_.emplace_back([this] { helper(); });
  } catch (const std::system_error&) {
    // Fewer threads give the same results, later.
  }
}

TaskPool::~TaskPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    waiting_.clear();
  }
  changed_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void TaskPool::add(int task, double urgency, std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    Task& t = tasks_.at(size_t(task));
    LOQAL_ASSERT(!t.work, "task ", task, " was not waited for");
    t = {std::move(work), false, nullptr};
    waiting_[{urgency, task}] = task;
  }
  changed_.notify_one();
}

// The most urgent task, if there is one.
bool TaskPool::run_one(std::unique_lock<std::mutex>& lock) {
  if (waiting_.empty()) return false;
  Task& task = tasks_[size_t(waiting_.begin()->second)];
  waiting_.erase(waiting_.begin());
  lock.unlock();
  std::exception_ptr error;
  try {
    task.work();
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  task.error = error;
  task.done = true;
  changed_.notify_all();
  return true;
}

void TaskPool::wait(int number) {
  std::unique_lock lock(mutex_);
  Task& task = tasks_.at(size_t(number));
  LOQAL_ASSERT(task.work, "no task ", number);
  while (!task.done)
    if (!run_one(lock)) changed_.wait(lock);
  task.work = nullptr;
  if (task.error) std::rethrow_exception(std::exchange(task.error, nullptr));
}

void TaskPool::helper() {
  std::unique_lock lock(mutex_);
  while (!stop_)
    if (!run_one(lock)) changed_.wait(lock);
}

}  // namespace loqal
