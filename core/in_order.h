// A pipeline of three stages: read (one at a time), work (on all threads), write (one at a time, in
// the order of reading). What comes out does not depend on the number of threads, because nothing
// but the middle stage runs at the same time as itself, and that stage sees one item only.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"

namespace loqal {

/// Item: movable, default-constructible, with a member `bytes`, its share of the limit.
template <class Item>
class InOrder {
 public:
  struct Stages {
    std::function<bool(Item*)> read;              ///< false: there is no more
    std::function<void(int thread, Item*)> work;  ///< 0 <= thread < threads
    std::function<void(Item*)> write;
  };

  /// At most `max_bytes` of items, and one item more, are read ahead of what is written.
  InOrder(Stages stages, int threads, int64_t max_bytes)
      : stages_(std::move(stages)), threads_(threads), max_bytes_(max_bytes) {}

  /// Everything, on the calling thread and threads - 1 more. The first exception comes out of here:
  /// one of read() once all that was read before it is written, others at once.
  void run() {
    std::vector<std::thread> others;
    try {
      for (int i = 1; i < threads_; i++) others.emplace_back([this, i] { loop(i); });
    } catch (const std::system_error& e) {
      stop(std::make_exception_ptr(
          Error(Exit::failure, cat("cannot start ", threads_, " threads: ", e.what()),
                "choose fewer with --jobs, or raise the limit (ulimit -u)")));
    }
    loop(0);
    for (std::thread& other : others) other.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void loop(int thread) noexcept {
    try {
      Item item;
      for (int64_t index; (index = read_next(&item)) >= 0; item = Item()) {
        stages_.work(thread, &item);
        hand_over(index, std::move(item));
      }
    } catch (...) {
      stop(std::current_exception());
    }
  }

  /// The item's number, or -1 at the end.
  int64_t read_next(Item* item) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ || (!reading_ && waiting_bytes_ <= max_bytes_); });
    if (ended_) return -1;
    reading_ = true;
    lock.unlock();
    bool more = false;
    std::exception_ptr error;
    try {
      more = stages_.read(item);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    reading_ = false;
    if (error && !error_) error_ = error;
    ended_ |= !more;
    if (more) waiting_bytes_ += item->bytes;
    changed_.notify_all();
    return more ? next_read_++ : -1;
  }

  /// Whoever brings the next item in the order writes it, and what waited for it.
  void hand_over(int64_t index, Item item) {
    std::unique_lock lock(mutex_);
    done_.emplace(index, std::move(item));
    if (writing_) return;
    writing_ = true;
    while (!stopped_ && !done_.empty() && done_.begin()->first == next_write_) {
      Item next = std::move(done_.begin()->second);
      done_.erase(done_.begin());
      lock.unlock();
      stages_.write(&next);
      lock.lock();
      waiting_bytes_ -= next.bytes;
      next_write_++;
      changed_.notify_all();
    }
    writing_ = false;
  }

  void stop(std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    if (!error_) error_ = std::move(error);
    ended_ = stopped_ = true;
    changed_.notify_all();
  }

  const Stages stages_;
  const int threads_;
  const int64_t max_bytes_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  bool reading_ = false, writing_ = false, ended_ = false, stopped_ = false;
  int64_t next_read_ = 0, next_write_ = 0;
  int64_t waiting_bytes_ = 0;     // of what was read and is not written
  std::map<int64_t, Item> done_;  // complete, but something before them is not written
  std::exception_ptr error_;
};

}  // namespace loqal
