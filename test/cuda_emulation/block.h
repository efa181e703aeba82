// One block of an emulated kernel: its threads, their barriers and warp collectives.
#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "test/cuda_emulation/cuda_emulation.h"
#include "test/cuda_emulation/fiber.h"

namespace loqal::emulation {

/// Pseudo-random numbers of a seed (splitmix64).
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
};

/// 0 ... n-1 in the order of `options`.
std::vector<int64_t> permutation(int64_t n, const Options& options, Random& random);

/// Runs blocks, one at a time. Threads are started one after the other by plain calls on one fiber;
/// only a thread that has to wait keeps that fiber, and the next one continues on another. So a
/// kernel without barriers costs a loop. (Under TSan each thread has a fiber of its own.)
class BlockRunner {
 public:
  BlockRunner();

  /// Throws KernelError; then the block's threads are abandoned where they stand.
  void run(const Launch& launch, uint3 block, const Options& options, uint64_t seed);

  // Called by the thread that runs, through the functions of cuda_emulation.h.
  void sync_threads(Where where);
  uint64_t collective(Op op, unsigned mask, uint64_t value, int parameter, int width, Where where);
  void* dynamic_shared() { return shared_.get(); }
  void async_copy(const AsyncCopy& copy, Where where);
  void async_commit() { current_->groups++; }
  bool next_async_copy(int pending, AsyncCopy& copy);

 private:
  enum class State : uint8_t { fresh, ready, barrier, collective, exited };
  struct Thread {
    uint3 index;
    int number;  // in the block
    State state;
    Fiber* fiber;
    Where where;  // it waits, or waited last
    Op op;
    unsigned mask;
    uint64_t value, result;
    int parameter, width;
    int groups;                                     // of async copies that were committed
    std::vector<std::pair<int, AsyncCopy>> copies;  // with the group of each, oldest first
  };
  struct Warp {
    unsigned waiting = 0, exited = 0;  // lanes
    int generation = 0;                // of __syncwarp
    char tags[2];                      // TSan's names for two successive generations
  };

  void prepare(const Launch& launch, uint3 block, uint64_t seed);
  void start_fiber(Thread* first);
  void resume(Thread& thread);
  static void fiber_body(void* runner);
  void run_threads();
  void exit_thread(Thread& thread);
  void leave();
  void finish_barrier();
  void finish_collective(Warp& warp, unsigned mask);
  void compute(unsigned mask, Thread* lanes);
  void stop_if_wrong();
  std::string positions() const;
  int lanes_in_warp(int warp) const;

  std::unique_ptr<Fiber> scheduler_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  const Launch* launch_ = nullptr;
  const Options* options_ = nullptr;
  std::unique_ptr<char[]> shared_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<int64_t> order_;
  Order made_for_ = Order::ascending;  // order_
  Random random_{0};
  size_t next_ = 0;  // of order_: the next thread to start
  int exited_ = 0, at_barrier_ = 0, generation_ = 0;
  char tags_[2], start_tag_, end_tag_;
  Thread* current_ = nullptr;
  std::string error_;
};

/// The runner of the calling OS thread.
BlockRunner& this_runner();

}  // namespace loqal::emulation
