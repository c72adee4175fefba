// The draws of a whole pack; see philox.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_

#include "custom_ops/kernels/cuda/runtime.cuh"
#include "custom_ops/kernels/common/philox.h"

namespace tftrain::cuda {

// A draw is the upper bits of a word, whatever the lower ones are: below this threshold its element is dropped.
__device__ __forceinline__ uint32_t DropThreshold(int64_t drop_below) {
  return static_cast<uint32_t>(drop_below) << 16;
}

// Draws for the kSize elements from `element` on, which must be a multiple of kSize. One counter value serves more of them
// than a small pack has, which draws it whole and uses a part.
template <typename Draw, int kSize>
__device__ __forceinline__ void DrawPack(const SampleDraws<Draw>& draws, int64_t element, uint32_t (&draw)[kSize]) {
  constexpr int kBits = 8 * sizeof(Draw), kPerCount = kElementsPerCount<Draw>, kPerWord = 32 / kBits;
  static_assert(kSize == 1 || (kSize % kPerWord == 0 && kPerCount % kSize == 0));
  const PhiloxWords words = Philox(draws.key, draws.low + static_cast<uint64_t>(element) / kPerCount, draws.high);
  constexpr int kWords = kSize == 1 ? 1 : kSize / kPerWord;
  const int first = static_cast<uint64_t>(element) % kPerCount / kPerWord;  // word of the pack
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    uint32_t word = words.word[i / kPerWord];
    if constexpr (kWords == 2) word = first & 2 ? words.word[i / kPerWord + 2] : word;
    if constexpr (kWords == 1) {
      const uint32_t low = first & 2 ? words.word[2] : words.word[0];
      word = first & 1 ? (first & 2 ? words.word[3] : words.word[1]) : low;
    }
    const int place = kSize == 1 ? static_cast<uint64_t>(element) % kPerWord : i % kPerWord;
    draw[i] = word << (32 - kBits * (place + 1));
  }
}

// A position read once: through the pointer it would be read again after every store.
struct Position {
  __device__ explicit Position(const Dropout& dropout)
      : value{dropout.position[0], dropout.position[1]}, dropout_(dropout) {}

  template <typename Draw>
  __device__ SampleDraws<Draw> DrawsOf(int64_t sample, int64_t elements_per_sample) const {
    const Dropout dropout{dropout_.drop_below, dropout_.seed, dropout_.site, value};
    return SampleDraws<Draw>(dropout, sample, elements_per_sample);
  }

  int64_t value[2];

 private:
  const Dropout& dropout_;
};

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_
