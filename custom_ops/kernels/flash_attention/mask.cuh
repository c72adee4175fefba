// Which pairs of a query and a key flash attention computes. A token has a code: the id of its sequence, or kNoToken for
// padding and after the end. A query attends to the keys with its own code in its range of positions
// (FlashShape::before, after).
//
// A block has rows of scores, and walks down tiles of columns: rows are queries and columns keys, or the other way round.
// A tile without a pair is skipped; in a full one no pair need be looked at.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_MASK_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_MASK_CUH_

#include <cstdint>

#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/cuda/matrix.cuh"
#include "custom_ops/kernels/flash_attention/flash_attention.h"
#include "custom_ops/kernels/flash_attention/product.cuh"

namespace tftrain::cuda {

constexpr float kLog2E = 1.44269504f;
constexpr int32_t kNoToken = INT32_MIN;  // no sequence may have this id

// The tokens of one sample.
struct SampleTokens {
  __device__ SampleTokens(const FlashShape& shape, const FlashMask& mask, int64_t sample)
      : length(static_cast<int>(shape.length)),
        keys(mask.keys + sample * shape.length),
        sequence_ids(mask.sequence_ids == nullptr ? nullptr : mask.sequence_ids + sample * shape.length) {}

  // As a key, padding has no code; as a query it has one.
  template <bool kAsKey>
  __device__ int32_t Code(int token) const {
    if (token >= length || (kAsKey && keys[token] <= 0)) return kNoToken;
    return sequence_ids == nullptr ? 0 : sequence_ids[token];
  }

  int length;
  const int32_t* keys;
  const int32_t* sequence_ids;
};

// The least and the greatest code of a range of tokens, and whether each has one.
struct CodeRange {
  int32_t least;
  int32_t greatest;
  bool all;

  __device__ bool is_empty() const { return least > greatest; }
  __device__ bool is_one() const { return least == greatest; }
};

// The codes of 32 * kEach tokens: token 32i + lane of the range in code[i] of a lane, the same in every warp.
template <bool kAsKeys, int kEach>
struct RangeCodes {
  int32_t code[kEach];

  __device__ void Read(const SampleTokens& tokens, int first) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) code[i] = tokens.template Code<kAsKeys>(first + i * kWarp + threadIdx.x % kWarp);
  }

  __device__ CodeRange Range() const {
    int32_t least = INT32_MAX, greatest = INT32_MIN;
    int32_t all = 1;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const bool exists = code[i] != kNoToken;
      all = exists ? all : 0;
      least = exists && code[i] < least ? code[i] : least;
      greatest = exists && code[i] > greatest ? code[i] : greatest;
    }
    return {LeastOfWarp(least), GreatestOfWarp(greatest), LeastOfWarp(all) != 0};
  }
};

template <int kTile>
struct FlashTile {
  int first;  // column
  bool is_full;
  int32_t code[kTile / kWarp];  // as in RangeCodes
};

// The tiles of kTile columns that have a pair with kRows rows, in their order. The codes of the tile after the next are
// read before it is asked for, so that nobody waits for them.
template <bool kColumnsAreKeys, int kRows, int kTile>
class TileWalk {
 public:
  // In a full tile there is also no bias, and a larger product is a larger score.
  __device__ TileWalk(const FlashShape& shape, const FlashMask& mask, float scale, const SampleTokens& tokens,
                      int first_row)
      : tokens_(tokens),
        left_(static_cast<int>(kColumnsAreKeys ? shape.before() : shape.after())),
        right_(static_cast<int>(kColumnsAreKeys ? shape.after() : shape.before())),
        may_be_full_(mask.slopes == nullptr && scale > 0),
        first_row_(first_row),
        next_(Begin()),
        end_(EndOf(first_row, kRows + right_)) {
    RangeCodes<!kColumnsAreKeys, kRows / kWarp> rows;
    rows.Read(tokens, first_row);
    rows_ = rows.Range();
    codes_.Read(tokens, next_);
  }

  // The next tile; false if there is none. The same tiles come again for each head up to `last`: `head` is that of the tile
  // before, and becomes this one's.
  __device__ bool Next(FlashTile<kTile>* tile, int last, int* head) {
    while (next_ < end_ || *head < last) {
      if (next_ >= end_) {
        ++*head;
        next_ = Begin();
        codes_.Read(tokens_, next_);
      }
      const int first = next_;
      const RangeCodes<kColumnsAreKeys, kTile / kWarp> codes = codes_;
      next_ += kTile;
      codes_.Read(tokens_, next_);
      const CodeRange columns = codes.Range();
      if (rows_.is_empty() || columns.is_empty()) continue;
      if (columns.greatest < rows_.least || rows_.greatest < columns.least) continue;
      const bool all_near =
          EndOf(first, kTile) - first_row_ <= right_ + 1 && EndOf(first_row_, kRows) - first <= left_ + 1;
      const bool all_keys = kColumnsAreKeys ? columns.all : rows_.all;
      tile->first = first;
      tile->is_full = may_be_full_ && all_keys && rows_.is_one() && columns.is_one() && all_near;
#pragma unroll
      for (int i = 0; i < kTile / kWarp; ++i) tile->code[i] = codes.code[i];
      return true;
    }
    return false;
  }

  __device__ bool Next(FlashTile<kTile>* tile) {
    int head = 0;
    return Next(tile, 0, &head);
  }

 private:
  __device__ int Begin() const { return first_row_ > left_ ? (first_row_ - left_) / kTile * kTile : 0; }
  __device__ int EndOf(int first, int count) const {
    return count < tokens_.length - first ? first + count : tokens_.length;
  }

  const SampleTokens tokens_;
  const int left_, right_;  // how far from a row its columns may be
  const bool may_be_full_;
  const int first_row_;
  int next_;
  const int end_;
  CodeRange rows_;
  RangeCodes<kColumnsAreKeys, kTile / kWarp> codes_;
};

// What makes a product of a query and a key a score, as a power of 2: `outer` times a number that in a full tile is the
// product itself, and else is made by MaskTile. `outer` is positive, so that the largest number is the largest score.
struct ScoreRule {
  __device__ ScoreRule(const FlashShape& shape, const FlashMask& mask, float scale, int64_t head)
      : inner(scale > 0 ? 1.0f : scale * kLog2E),
        outer(scale > 0 ? scale * kLog2E : 1.0f),
        slope(SlopeOf(mask, scale, head)),
        before(static_cast<uint32_t>(shape.before())),
        range(static_cast<uint32_t>(shape.before() + shape.after())) {}

  __device__ static float SlopeOf(const FlashMask& mask, float scale, int64_t head) {
    return mask.slopes == nullptr ? 0.0f : scale > 0 ? mask.slopes[head] / scale : mask.slopes[head] * kLog2E;
  }

  // The score less a reference, rounded once, so that large scores lose no more precision than small ones.
  __device__ float Less(float number, float reference) const { return fmaf(number, outer, -reference); }

  float inner;
  float outer;
  float slope;
  uint32_t before;
  uint32_t range;  // from the first position of a query's range to the last
};

// Adds the bias to the products of a tile of 16 rows, and puts minus infinity for pairs that are masked. Rows are queries
// and columns keys, or the other way round; `distance` is from row g to column 0.
template <int kTiles>
__device__ __forceinline__ void MaskTile(bool columns_are_keys, const ScoreRule& rule, float slope,
                                         const int32_t (&row_codes)[2], const int32_t* column_codes, int distance,
                                         float (&products)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = 8 * j + LaneColumn() + i % 2, from_row = distance + column - i / 2 * 8;
      const int from_query = columns_are_keys ? from_row : -from_row;
      const float number = fmaf(static_cast<float>(from_query), slope, products[j][i] * rule.inner);
      const bool is_near = static_cast<uint32_t>(from_query) + rule.before <= rule.range;
      const bool allowed = row_codes[i / 2] == column_codes[column] && is_near;
      products[j][i] = allowed ? number : -INFINITY;
    }
  }
}

// The part of the scores that a block computes: `first_row` on of one of the heads of its rows of one sample.
struct FlashPlace {
  __device__ FlashPlace(const FlashShape& shape, int64_t heads, int rows, bool last_first) {
    const unsigned tiles = static_cast<unsigned>((shape.length + rows - 1) / rows);
    const unsigned tile = blockIdx.x % tiles, pair = blockIdx.x / tiles;
    first_row = static_cast<int>(last_first ? tiles - 1 - tile : tile) * rows;
    sample = pair / static_cast<unsigned>(heads);
    head = pair % static_cast<unsigned>(heads);
  }

  int64_t sample;
  int64_t head;
  int first_row;
};

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_MASK_CUH_
