#include "core/threads.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <stdexcept>

#include "test/core/files.h"

namespace loqal {
namespace {

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, EachTaskExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 3, 7, 1000}) {
    std::vector<int> done(size_t(count) + 1);
    pool.run(count, [&](int64_t i) { done[size_t(i)]++; });
    EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), count);
    for (int64_t i = 0; i < count; i++) EXPECT_EQ(done[size_t(i)], 1);
  }
}

TEST_P(Threads, ManySmallJobsSeeEachOther) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> value(5);
  for (int job = 0; job < 2'000;
       job++)  // each job reads what other threads wrote in the one before
    pool.run(5,
             [&](int64_t i) { value[size_t(i)] = std::max(value[size_t(i)], int64_t(job)) + 1; });
  for (const int64_t v : value) EXPECT_EQ(v, 2'000);
}

TEST_P(Threads, ChunksCoverTheRangeOnce) {
  ThreadPool pool(GetParam());
  for (const int64_t n : {0, 1, 9, 10, 11, 1003}) {
    std::vector<int> done(size_t(n) + 1);
    pool.chunks(n, 10, [&](int64_t first, int64_t last) {
      EXPECT_EQ(first % 10, 0);
      EXPECT_LE(last, n);
      EXPECT_GE(last - first, 1);
      for (int64_t i = first; i < last; i++) done[size_t(i)]++;
    });
    for (int64_t i = 0; i < n; i++) EXPECT_EQ(done[size_t(i)], 1);
    EXPECT_EQ(done[size_t(n)], 0);
  }
}

TEST_P(Threads, SleepingWorkersWakeUp) {
  ThreadPool pool(GetParam());
  for (int job = 0; job < 5; job++) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // longer than they spin
    std::atomic<int64_t> sum{0};
    pool.run(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

// The pool goes on working afterwards, and nobody is inside a task when the exception comes out.
TEST_P(Threads, AnExceptionComesOutOfRun) {
  ThreadPool pool(GetParam());
  for (int job = 0; job < 200; job++) {
    std::atomic<int> inside{0}, begun{0};
    try {
      pool.run(1000, [&](int64_t i) {
        inside++, begun++;
        const bool bad = i == job || i == job + 1;  // often two at a time
        if (!bad && i > job) std::this_thread::yield();
        inside--;
        if (bad) throw std::runtime_error(cat("task ", i));
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& e) {
      EXPECT_EQ(inside, 0);
      EXPECT_CONTAINS(e.what(), "task ");
    }
    EXPECT_LT(begun, 1000) << "the rest is left out";
    std::atomic<int64_t> sum{0};
    pool.run(100, [&](int64_t i) { sum += i; });
    EXPECT_EQ(sum, 4950);
  }
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, testing::Values(1, 2, 5));

TEST(ThreadsTest, PoolsNestAndEndWithoutWork) {
  ThreadPool idle(3), outer(2);
  std::atomic<int> done{0};
  outer.run(4, [&](int64_t) {
    ThreadPool inner(2);  // a pool is not reentrant, but a task may have one of its own
    inner.run(8, [&](int64_t) { done++; });
  });
  EXPECT_EQ(done, 32);
  EXPECT_GE(usable_cpus(), 1);
}

#if !defined(__SANITIZE_THREAD__)  // which starts no threads in a child process
TEST(ThreadsTest, TooManyThreadsAreAnErrorWithAHint) {
  EXPECT_TRUE(true_in_child([] {
    // The limit counts a user's processes; root has none, so the child becomes somebody else.
    if (getuid() == 0 && setuid(54321) != 0) return false;
    const rlimit limit{4, 4};
    if (setrlimit(RLIMIT_NPROC, &limit) != 0) return false;
    try {
      ThreadPool pool(64);
    } catch (const Error& e) {
      return std::string(e.what()).starts_with("cannot start 64 threads") &&
             e.hint.find("--threads") != std::string::npos;
    }
    return false;
  }));
}
#endif

}  // namespace
}  // namespace loqal
