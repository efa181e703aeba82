#include "test/cuda_emulation/block.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <sstream>

namespace loqal::emulation {

__thread uint3 thread_index, block_index;
__thread dim3 block_size, grid_size;

namespace {

template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

std::string str(const Where& where) { return text(where.file, ":", where.line); }
std::string str(const uint3& i) { return text("(", i.x, ",", i.y, ",", i.z, ")"); }

const char* name_of(Op op) {
  switch (op) {
    case Op::shuffle: return "__shfl_sync";
    case Op::shuffle_xor: return "__shfl_xor_sync";
    case Op::shuffle_down: return "__shfl_down_sync";
    case Op::ballot: return "__ballot_sync";
    case Op::sync: return "__syncwarp";
  }
  return "?";
}

}  // namespace

std::vector<int64_t> permutation(int64_t n, const Options& options, Random& random) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (options.order == Order::descending) std::reverse(order.begin(), order.end());
  if (options.order == Order::random)
    for (size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[random.next() % i]);
  return order;
}

BlockRunner& this_runner() {
  thread_local BlockRunner runner;
  return runner;
}

// free_ never moves: TSan sees memmove even in uninstrumented code, and threads push to it.
BlockRunner::BlockRunner() : scheduler_(Fiber::of_this_thread()) { free_.reserve(1024); }

int BlockRunner::lanes_in_warp(int warp) const {
  return std::min(32, int(threads_.size()) - 32 * warp);
}

void BlockRunner::prepare(const Launch& launch, uint3 block, uint64_t seed) {
  launch_ = &launch;
  random_ = {seed};
  error_.clear();
  next_ = 0;
  exited_ = at_barrier_ = generation_ = 0;
  const unsigned count = launch.block.x * launch.block.y * launch.block.z;
  threads_.resize(count);
  for (unsigned i = 0; i < count; i++) {
    Thread& t = threads_[i];
    t.index = {i % launch.block.x, i / launch.block.x % launch.block.y,
               i / launch.block.x / launch.block.y};
    t.number = int(i);
    t.state = State::fresh;
    t.fiber = nullptr;
    t.where = {"", 0};
    t.groups = 0;
    t.copies.clear();
  }
  warps_.assign((count + 31) / 32, {});
  if (order_.size() != count || made_for_ != options_->order || made_for_ == Order::random)
    order_ = permutation(count, *options_, random_);
  made_for_ = options_->order;
  // Of exactly the launch's size, so that ASan sees what lies behind it.
  shared_.reset(new char[launch.shared_bytes]);
  std::memset(shared_.get(), 0xFF, launch.shared_bytes);
  block_index = block;
  block_size = launch.block;
  grid_size = launch.grid;
}

void BlockRunner::run(const Launch& launch, uint3 block, const Options& options, uint64_t seed) {
  options_ = &options;
  prepare(launch, block, seed);
  if (kTsan)
    for (Thread& t : threads_) start_fiber(&t);
  Fiber::release(&start_tag_);
  while (exited_ < int(threads_.size()) && error_.empty()) {
    bool progress = false;
    if (next_ < order_.size()) {
      if (!kTsan) start_fiber(nullptr), scheduler_->switch_to(*free_.back());
      else resume(threads_[size_t(order_[next_++])]);
      continue;
    }
    if (options.order == Order::random)
      order_ = permutation(int64_t(order_.size()), options, random_);
    for (const int64_t i : order_) {
      Thread& t = threads_[size_t(i)];
      if (t.state != State::ready || !error_.empty()) continue;
      resume(t);
      progress = true;
    }
    if (!progress && error_.empty()) error_ = "deadlock: every thread waits" + positions();
  }
  Fiber::acquire(&end_tag_);
  if (error_.empty()) return;
  fibers_.clear();  // the threads that wait are never resumed
  free_.clear();
  throw KernelError(text("block ", str(block), ": ", error_));
}

// On top of free_: a fiber that will run fresh threads; under TSan it belongs to `first` alone.
void BlockRunner::start_fiber(Thread* first) {
  if (free_.empty()) {
    fibers_.push_back(std::make_unique<Fiber>());
    free_.push_back(fibers_.back().get());
  }
  free_.back()->start(&BlockRunner::fiber_body, this);
  if (!first) return;
  first->fiber = free_.back();
  free_.pop_back();
}

void BlockRunner::resume(Thread& thread) {
  current_ = &thread;
  thread_index = thread.index;
  scheduler_->switch_to(*thread.fiber);
}

void BlockRunner::fiber_body(void* runner) { static_cast<BlockRunner*>(runner)->run_threads(); }

void BlockRunner::run_threads() {
  Fiber::acquire(&start_tag_);
  Fiber* fiber = kTsan ? current_->fiber : free_.back();
  if (!kTsan) free_.pop_back();
  do {
    if (!kTsan) current_ = &threads_[size_t(order_[next_++])];
    current_->fiber = fiber;
    thread_index = current_->index;
    launch_->thread();
    exit_thread(*current_);
  } while (!kTsan && next_ < order_.size() && error_.empty());
  free_.push_back(fiber);
  leave();
}

void BlockRunner::exit_thread(Thread& thread) {
  try {
    thread.fiber->check_stack();
  } catch (const std::exception& e) {
    if (error_.empty()) error_ = e.what();
  }
  thread.state = State::exited;
  exited_++;
  if (!thread.copies.empty() && error_.empty())
    error_ = text("thread ", str(thread.index), " ends before its async copies were waited for");
  const int number = thread.number, first = number / 32 * 32;
  Warp& warp = warps_[size_t(number / 32)];
  warp.exited |= 1u << (number - first);
  if (at_barrier_ > 0 && error_.empty())
    error_ = text("thread ", str(thread.index), " ended while others wait at __syncthreads",
                  positions());
  for (int lane = 0; lane < lanes_in_warp(number / 32); lane++) {
    const Thread& t = threads_[size_t(first + lane)];
    if (t.state == State::collective && (t.mask & warp.exited) && error_.empty())
      error_ = text(name_of(t.op), " (", str(t.where), ") by thread ", str(t.index),
                    ": its mask names lane ", number - first, ", which has ended");
  }
}

// Leaves the thread; comes back when the scheduler resumes it. All that it did is then known to the
// scheduler at the block's end, and so to the next block, but not to the block's other threads.
void BlockRunner::leave() {
  Fiber::release(&end_tag_);
  current_->fiber->switch_to(*scheduler_);
}

// After a mistake of the kernel: its threads cannot be unwound, so this one stops here for good.
// (What the caller still holds on its stack leaks: it calls this when it holds nothing.)
void BlockRunner::stop_if_wrong() {
  if (error_.empty()) return;
  leave();
  __builtin_trap();
}

void BlockRunner::sync_threads(Where where) {
  Thread& t = *current_;
  t.where = where;
  if (exited_ > 0)
    error_ = text("thread ", str(t.index), " waits at __syncthreads (", str(where),
                  "), but others have ended");
  stop_if_wrong();
  char* tag = &tags_[generation_ % 2];
  Fiber::release(tag);
  t.state = State::barrier;
  if (++at_barrier_ == int(threads_.size())) finish_barrier();
  leave();
  Fiber::acquire(tag);
}

void BlockRunner::finish_barrier() {
  for (const Thread& t : threads_)
    if (t.where.line != threads_[0].where.line ||
        std::strcmp(t.where.file, threads_[0].where.file)) {
      error_ = "divergent __syncthreads: threads of the block wait at different ones" + positions();
      return;
    }
  for (Thread& t : threads_) t.state = State::ready;
  at_barrier_ = 0;
  generation_++;
}

uint64_t BlockRunner::collective(Op op, unsigned mask, uint64_t value, int parameter, int width,
                                 Where where) {
  Thread& t = *current_;
  const int number = t.number, lane = number % 32;
  Warp& warp = warps_[size_t(number / 32)];
  t.where = where;
  t.op = op, t.mask = mask, t.value = value, t.parameter = parameter, t.width = width;
  const int lanes = lanes_in_warp(number / 32);
  const char* what = !(mask >> lane & 1)             ? "does not name the caller"
                     : lanes < 32 && (mask >> lanes) ? "names lanes that the warp has not"
                     : mask & warp.exited            ? "names lanes that have ended"
                                                     : nullptr;
  if (what)
    error_ = text(name_of(op), " (", str(where), ") by thread ", str(t.index), ": its mask ", what);
  stop_if_wrong();
  warp.waiting |= 1u << lane;
  char* tag = &warp.tags[warp.generation % 2];
  if (op == Op::sync) Fiber::release(tag);
  t.state = State::collective;
  if ((warp.waiting & mask) == mask) finish_collective(warp, mask);
  leave();
  if (op == Op::sync) Fiber::acquire(tag);
  return t.result;
}

void BlockRunner::finish_collective(Warp& warp, unsigned mask) {
  Thread* lanes = &threads_[size_t(&warp - warps_.data()) * 32];
  const Thread& last = *current_;
  for (int lane = 0; lane < 32; lane++) {
    const Thread& t = lanes[lane];
    if (!(mask >> lane & 1) ||
        (t.op == last.op && t.mask == last.mask && t.where.line == last.where.line &&
         !std::strcmp(t.where.file, last.where.file)))
      continue;
    error_ = text("lanes of a warp disagree: thread ", str(t.index), " is at ", name_of(t.op), " (",
                  str(t.where), ") with mask ", t.mask, ", thread ", str(last.index), " at ",
                  name_of(last.op), " (", str(last.where), ") with mask ", last.mask);
    return;
  }
  compute(mask, lanes);
  for (int lane = 0; lane < 32; lane++)
    if (mask >> lane & 1) lanes[lane].state = State::ready;
  warp.waiting &= ~mask;
  if (last.op == Op::sync) warp.generation++;
}

// The result of every lane of the mask. A shuffle that reads a lane outside of it gets NaN bits.
void BlockRunner::compute(unsigned mask, Thread* lanes) {
  unsigned votes = 0;
  for (int lane = 0; lane < 32; lane++)
    if ((mask >> lane & 1) && lanes[lane].value) votes |= 1u << lane;
  for (int lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    Thread& t = lanes[lane];
    const int first = lane / t.width * t.width;  // of the segment that the shuffle stays in
    int source = lane;
    if (t.op == Op::shuffle) source = first + (t.parameter & (t.width - 1));
    if (t.op == Op::shuffle_xor && (lane ^ t.parameter) < first + t.width)
      source = lane ^ t.parameter;
    if (t.op == Op::shuffle_down && lane + t.parameter < first + t.width)
      source = lane + t.parameter;
    t.result = t.op == Op::ballot ? votes : mask >> source & 1 ? lanes[source].value : ~uint64_t(0);
  }
}

void BlockRunner::async_copy(const AsyncCopy& copy, Where where) {
  if (reinterpret_cast<uintptr_t>(copy.to) % 16 || reinterpret_cast<uintptr_t>(copy.from) % 16)
    error_ = text("async copy (", str(where), "): both addresses must be multiples of 16");
  stop_if_wrong();
  current_->copies.emplace_back(current_->groups, copy);
}

bool BlockRunner::next_async_copy(int pending, AsyncCopy& copy) {
  auto& copies = current_->copies;
  if (copies.empty() || copies.front().first >= current_->groups - pending) return false;
  copy = copies.front().second;
  copies.erase(copies.begin());
  return true;
}

// Where the threads are, equal ones together: "  threads 0-15: __syncthreads (file:line)".
std::string BlockRunner::positions() const {
  const auto position = [&](const Thread& t) -> std::string {
    if (t.state == State::exited) return "ended";
    if (t.state == State::barrier) return text("__syncthreads (", str(t.where), ")");
    if (t.state == State::collective) return text(name_of(t.op), " (", str(t.where), ")");
    return t.state == State::fresh ? "not started" : "running";
  };
  std::string out;
  for (size_t i = 0; i < threads_.size();) {
    size_t j = i + 1;
    while (j < threads_.size() && position(threads_[j]) == position(threads_[i])) j++;
    out += text("\n  thread", j - i > 1 ? text("s ", i, "-", j - 1) : text(" ", i), ": ",
                position(threads_[i]));
    i = j;
  }
  return out;
}

void sync_threads(Where where) { this_runner().sync_threads(where); }
uint64_t collective(Op op, unsigned mask, uint64_t value, int parameter, int width, Where where) {
  return this_runner().collective(op, mask, value, parameter, width, where);
}
void* dynamic_shared() { return this_runner().dynamic_shared(); }
void async_copy(const AsyncCopy& copy, Where where) { this_runner().async_copy(copy, where); }
void async_commit() { this_runner().async_commit(); }
bool next_async_copy(int pending, AsyncCopy& copy) {
  return this_runner().next_async_copy(pending, copy);
}

}  // namespace loqal::emulation
