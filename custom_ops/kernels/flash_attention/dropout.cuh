// The dropout masks of a tile of scores, as bits. A call of Philox serves 16 keys of a query, but a lane holds 4 of them. So
// each lane draws for others: a group of lanes draws every 16 keys of its rows once, and exchanges the bits.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_DROPOUT_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_DROPOUT_CUH_

#include <cstdint>

#include "custom_ops/kernels/cuda/matrix.cuh"
#include "custom_ops/kernels/flash_attention/product.cuh"
#include "custom_ops/kernels/cuda/philox.cuh"

namespace tftrain::cuda {

struct FlashDraws {
  static constexpr int kCount = kElementsPerCount<ProbabilityDraw>;

  ProbabilityDraws draws;
  uint32_t threshold;  // see DropThreshold

  // Bit i is set if element + i is kept, for i < 16; `element` is a multiple of 16.
  __device__ __forceinline__ uint32_t KeptOfCount(int64_t element) const {
    uint32_t draw[kCount];
    DrawPack(draws, element, draw);
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kCount; ++i) bits |= (draw[i] >= threshold ? 1u : 0u) << i;
    return bits;
  }

  // The same for any element: two counts have these elements if it is no multiple of 16.
  __device__ __forceinline__ uint32_t Kept16(int64_t element) const {
    const int place = static_cast<int>(element % kCount);
    return (KeptOfCount(element - place) | KeptOfCount(element - place + kCount) << 16) >> place & 0xffff;
  }

  // What this lane draws: the bits of kParts parts, of the 16 elements from `element_of(i)` on, in the halves of a word. If
  // all parts begin at multiples of 16, each is one count, and two at a time hide the latency of their rounds.
  template <int kParts, typename ElementOf>
  __device__ __forceinline__ uint32_t Own(bool is_aligned, const ElementOf& element_of) const {
    uint32_t own = 0;
    if (is_aligned) {
#pragma unroll 2
      for (int i = 0; i < kParts; ++i) own |= KeptOfCount(element_of(i)) << (16 * i);
    } else {
#pragma unroll 1
      for (int i = 0; i < kParts; ++i) own |= Kept16(element_of(i)) << (16 * i);
    }
    return own;
  }
};

// The draws of one sample, with the position read once; without dropout there is none to read.
template <bool kDropout>
__device__ __forceinline__ FlashDraws DrawsOf(const Dropout& dropout, int64_t sample, int64_t elements_per_sample) {
  const int64_t position[2] = {kDropout ? dropout.position[0] : 0, kDropout ? dropout.position[1] : 0};
  const Dropout at = {dropout.drop_below, dropout.seed, dropout.site, position};
  return {ProbabilityDraws(at, sample, elements_per_sample), DropThreshold(dropout.drop_below)};
}

// Without dropout.
struct AllKept {
  __device__ __forceinline__ bool operator()(int /*j*/, int /*i*/) const { return true; }
};

// Rows are queries, columns keys. For one tile of 16 rows, whose rows g and g + 8 begin at the elements `begin`.
template <int kColumns>
class KeptOfRows {
 public:
  __device__ __forceinline__ KeptOfRows(const FlashDraws& draws, const int64_t (&begin)[2]) {
    static_assert(kColumns == 32 || kColumns == 64);
    // Part number p of the 2 * kParts parts of 16 elements, row g first, is drawn by lane p % 4 of the quad.
    const int lane = threadIdx.x % 4;
    const uint32_t own = draws.Own<kParts / 2>(((begin[0] | begin[1]) & 15) == 0, [&](int i) {
      const int part = 4 * i + lane;
      return (part < kParts ? begin[0] : begin[1]) + 16 * (part % kParts);
    });
    uint32_t of_lane[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of_lane[i] = ShuffleFrom(own, threadIdx.x % kWarp / 4 * 4 + i);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int word = 0; word < kParts / 2; ++word) {
        bits_[half][word] = 0;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int part = half * kParts + word * 2 + i;
          bits_[half][word] |= (of_lane[part % 4] >> (16 * (part / 4)) & 0xffff) << (16 * i);
        }
        bits_[half][word] >>= LaneColumn();
      }
    }
  }

  // Whether element i of fragment j is kept.
  __device__ __forceinline__ bool operator()(int j, int i) const { return bits_[i / 2][j / 4] >> (8 * (j % 4) + i % 2) & 1; }

 private:
  static constexpr int kParts = kColumns / 16;
  uint32_t bits_[2][kParts / 2];
};

// Rows are keys, columns queries. For one tile of 16 rows and kColumns columns; the first of these pairs is element `begin`,
// and a query is `length` elements after the one before.
template <int kColumns>
class KeptOfColumns {
 public:
  __device__ __forceinline__ KeptOfColumns(const FlashDraws& draws, int64_t begin, int length) {
    static_assert(kColumns == 32);
    // The 8 lanes with the same 8 columns share their 16 keys each: lane group p draws column p / kFragments of fragment
    // p % kFragments.
    const int group = LaneGroup(), column = LaneColumn();
    const uint32_t own = draws.Own<1>(((begin | length) & 15) == 0, [&](int) {
      return begin + static_cast<int64_t>(8 * (group % kFragments) + column + group / kFragments) * length;
    });
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // two lanes' bits in a word
      const uint32_t low = ShuffleFrom(own, 4 * i + threadIdx.x % 4);
      bits_[i] = (low | ShuffleFrom(own, 4 * i + 16 + threadIdx.x % 4) << 16) >> group;
    }
  }

  // Whether element i of fragment j is kept.
  __device__ __forceinline__ bool operator()(int j, int i) const {
    return bits_[j] >> (i % 2 * 16 + i / 2 * 8) & 1;
  }

 private:
  static constexpr int kFragments = kColumns / 8;
  uint32_t bits_[4];
};

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_DROPOUT_CUH_
