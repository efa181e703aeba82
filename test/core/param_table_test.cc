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

TEST(ParamTable, FactorsFrozenTensorsAndRates) {
  ParamTable table({.dense_rate = 0.25});
  table.add("embed", {10, 30}, 0, Role::embedding);
  table.add("dense", {4, 8}, 0, Role::matrix);
  Param quantized{.name = "w", .shape = {16, 8}, .group = 1, .role = Role::matrix};
  quantized.segment = Segment::frozen;
  quantized.format = {QuantFormat::Kind::int8, 64};
  table.add(quantized);
  Param factor{.name = "w.B", .shape = {16, 2}, .group = 1, .role = Role::factor};
  factor.grad_numel = 1000;
  table.add(factor);
  table.add("norm", {8}, 2, Role::norm);
  table.commit();
  EXPECT_EQ(table[0].rate, 0.25);
  EXPECT_EQ(table[1].rate, 1) << "of GaLore: the matrices have the method's own";
  EXPECT_EQ(table[3].rate, 1);
  EXPECT_EQ(table[4].rate, 0.25);
  EXPECT_EQ(table[2].frozen_bytes(), 192);  // 128 codes, two fp32 scales padded to 64
  EXPECT_EQ(table.frozen_bytes(), 256);
  EXPECT_EQ(table[3].id, table[2].id) << "random numbers do not depend on factors";
  EXPECT_EQ(table[4].id, 3);
  EXPECT_FALSE(table[3].decays());
  EXPECT_EQ(table.group_size(1), 256);
  EXPECT_EQ(table.grad_group_size(1), 1024);
  EXPECT_EQ(table.grad_group_offset(2), 768 + 1024);
  float memory[2048];
  EXPECT_EQ(table.gradient(4, memory).data, memory);
  EXPECT_EQ(str(table.gradient(3, memory)), "F32[16,2]");
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
