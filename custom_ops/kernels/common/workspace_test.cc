#include "custom_ops/kernels/common/workspace.h"

#include <gtest/gtest.h>

namespace tftrain {
namespace {

constexpr int64_t kRows = int64_t{1} << 30;

TEST(Workspace, OfSumsOverRowsIsBounded) {
  for (int64_t columns : {1, 7, 64, 768, 1024, 2730, 4096, 16384, 1 << 20}) {
    for (int64_t sums : {1, 2}) {
      EXPECT_LE(RowSumsBytes(kRows, columns, sums), sums * std::max<int64_t>(4 << 20, 1536 * columns)) << columns;
      EXPECT_LE(TileSumsBytes(kRows, columns, sums), sums * std::max<int64_t>(3 << 19, 4 * columns)) << columns;
    }
  }
}

TEST(Workspace, OfSumsOverFewRowsHasNoMorePartsThanRows) {
  EXPECT_EQ(RowSumsBytes(5, 1024, 2), 5 * 1024 * 2 * 4);
  EXPECT_EQ(TileSumsBytes(5, 1024, 1), 5 * 1024 * 4);
}

TEST(Workspace, OfNoRowsHasOnePartOfZeros) {
  EXPECT_EQ(RowSumsBytes(0, 64, 2), 64 * 2 * 4);
  EXPECT_EQ(TileSumsBytes(0, 64, 1), 64 * 4);
}

TEST(Workspace, HoldsAPartForEveryBlockThatFitsOnAnH200) {
  EXPECT_GE(MostRowParts(kRows, 16384), 2 * 132);
  EXPECT_GE(MostRowParts(kRows, 1024), 5 * 132);
  EXPECT_GE(MostTileParts(kRows, 4096), 8 * 132 / (4096 / 256));
}

TEST(Workspace, HoldsASumForEveryChunkOfTensors) {
  const std::vector<int64_t> sizes = {5, 0, kChunkElements, 70001, 2 * kChunkElements + 1};
  int64_t elements = 0;
  for (int64_t size : sizes) elements += size;
  EXPECT_GE(MostChunks(sizes.size(), elements), static_cast<int64_t>(CutTensors(sizes).size()));
  EXPECT_LE(MostChunks(sizes.size(), elements), static_cast<int64_t>(CutTensors(sizes).size() + sizes.size()));
}

}  // namespace
}  // namespace tftrain
