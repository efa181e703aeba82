#include "core/in_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>

namespace loqal {
namespace {

struct Item {
  int64_t bytes = 0;
  int number = -1;
};

/// What write() saw, of `count` items of `bytes` each; work(i) may take its time or throw.
template <class Work>
std::vector<int> written(int threads, int count, int64_t bytes, int64_t limit, const Work& work) {
  std::vector<int> out;
  int next = 0;
  InOrder<Item>({[&](Item* item) {
                   if (next == count) return false;
                   *item = {bytes, next++};
                   return true;
                 },
                 [&](int thread, Item* item) {
                   EXPECT_LT(thread, threads);
                   work(item->number);
                 },
                 [&](Item* item) { out.push_back(item->number); }},
                threads, limit)
      .run();
  return out;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers;
  for (int i = 0; i < count; i++) numbers.push_back(i);
  return numbers;
}

TEST(InOrder, KeepsTheOrderForAnyNumberOfThreads) {
  for (const int threads : {1, 2, 3, 8})
    EXPECT_EQ(written(threads, 500, 1, 10,
                      [](int i) {
                        if (i % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
                      }),
              first_numbers(500));
  EXPECT_EQ(written(3, 0, 1, 10, [](int) {}), std::vector<int>{});
}

// The first item takes until nobody else can go on: then at most limit / bytes + 1 + threads were
// begun, and none is lost.
TEST(InOrder, ReadsNoFurtherAheadThanItMay) {
  std::atomic<int> begun = 0;
  int most = 0;
  const auto out = written(4, 100, 10, 50, [&](int i) {
    begun++;
    if (i != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    most = begun;
  });
  EXPECT_EQ(out, first_numbers(100));
  EXPECT_GE(most, 5);
  EXPECT_LE(most, 6);  // the sixth brings the sum to 60 > 50
}

TEST(InOrder, AnErrorOfWorkEndsIt) {
  for (const int threads : {1, 4})
    EXPECT_THROW(written(threads, 1000, 1, 100,
                         [](int i) {
                           if (i == 20) throw Error(Exit::failure, "in work");
                         }),
                 Error);
}

// What was read before the error is complete: the caller may go on from there.
TEST(InOrder, AnErrorOfReadComesAfterAllThatWasRead) {
  for (const int threads : {1, 4}) {
    int next = 0;
    std::vector<int> out;
    InOrder<Item> pipeline({[&](Item* item) {
                              if (next == 30) throw Error(Exit::failure, "in read");
                              *item = {1, next++};
                              return true;
                            },
                            [](int, Item*) {}, [&](Item* item) { out.push_back(item->number); }},
                           threads, 5);
    EXPECT_THROW(pipeline.run(), Error);
    EXPECT_EQ(out, first_numbers(30));
  }
}

TEST(InOrder, AnErrorOfWriteEndsIt) {
  for (const int threads : {1, 4}) {
    int next = 0;
    InOrder<Item> pipeline({[&](Item* item) {
                              *item = {1, next++};
                              return true;  // endless
                            },
                            [](int, Item*) {},
                            [](Item* item) {
                              if (item->number == 30) throw Error(Exit::failure, "disk full");
                            }},
                           threads, 5);
    EXPECT_THROW(pipeline.run(), Error);
  }
}

}  // namespace
}  // namespace loqal
