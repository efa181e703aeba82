#include "core/param_table.h"

#include <gtest/gtest.h>

namespace loqal {
namespace {

ParamTable small_table() {
  ParamTable table;
  table.add("embed", {10, 30}, 0, Role::embedding);
  table.add("block.norm", {30}, 1, Role::norm);
  table.add("block.proj", {16, 16}, 1, Role::matrix);
  table.add("block.rope", {8, 4}, 1, Role::constant, Segment::frozen);
  table.add("head", {257}, 2, Role::head);
  return table;
}

TEST(ParamTable, OffsetsAreAlignedAndGroupedBySegment) {
  ParamTable table = small_table();
  table.commit();
  EXPECT_EQ(table.size(), 5);
  EXPECT_EQ(table[0].offset, 0);
  EXPECT_EQ(table[1].offset, 512);  // 300 rounded up to 512
  EXPECT_EQ(table[2].offset, 768);
  EXPECT_EQ(table[3].offset, 0);  // first of the frozen segment
  EXPECT_EQ(table[4].offset, 1024);
  EXPECT_EQ(table.groups(), 3);
  EXPECT_EQ(table.group_offset(1), 512);
  EXPECT_EQ(table.group_size(0), 512);
  EXPECT_EQ(table.group_size(1), 512);
  EXPECT_EQ(table.group_size(2), 512);
  EXPECT_EQ(table.elements(), 1536);
  EXPECT_EQ(table.frozen_bytes(), 256);
  EXPECT_EQ(table.numel(), 300 + 30 + 256 + 257);
}

TEST(ParamTable, FindViewAndDecay) {
  ParamTable table = small_table();
  table.commit();
  std::vector<float> memory(size_t(table.elements()));
  EXPECT_EQ(table.find("block.proj"), 2);
  EXPECT_EQ(table.find("block"), -1);
  const Tensor proj = table.view(2, memory.data(), DType::F32);
  EXPECT_EQ(proj.data, memory.data() + 768);
  EXPECT_EQ(str(proj), "F32[16,16]");
  EXPECT_EQ(str(table.view(1, memory.data(), DType::F32)), "F32[1,30]");
  EXPECT_FALSE(table.view(0, nullptr, DType::F32));
  EXPECT_TRUE(table[2].decays());
  EXPECT_FALSE(table[1].decays());
}

TEST(ParamTable, MistakesOfTheProgram) {
  ParamTable table = small_table();
  EXPECT_THROW(table.add("head", {1}, 2, Role::head), std::logic_error);  // twice
  EXPECT_THROW(table.add("late", {1}, 1, Role::norm), std::logic_error);  // groups out of order
  EXPECT_THROW(table.add("gap", {1}, 4, Role::norm), std::logic_error);
  EXPECT_THROW(table.add("cube", {2, 2, 2}, 2, Role::norm), std::logic_error);
  table.commit();
  EXPECT_THROW(table.commit(), std::logic_error);
  EXPECT_THROW(table.add("after", {1}, 2, Role::norm), std::logic_error);
}

}  // namespace
}  // namespace loqal
