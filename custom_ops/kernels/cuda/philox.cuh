// The draws of a whole pack; see philox.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_

#include "custom_ops/kernels/cuda/runtime.cuh"
#include "custom_ops/kernels/common/philox.h"

namespace tftrain::cuda {

// A draw is the upper half of a word, whatever the lower half is: below this threshold its element is dropped.
__device__ __forceinline__ uint32_t DropThreshold(int64_t drop_below) {
  return static_cast<uint32_t>(drop_below) << 16;
}

// Draws for the kSize elements from `element` on, which must be a multiple of kSize. One counter value serves 8 elements; a
// pack of 4 draws it whole and uses half.
template <int kSize>
__device__ __forceinline__ void DrawPack(const SampleDraws& draws, int64_t element, uint32_t (&draw)[kSize]) {
  static_assert(kSize == 1 || kSize == 4 || kSize == kElementsPerCount);
  const PhiloxWords words = Philox(draws.key, draws.low + (static_cast<uint64_t>(element) >> 3), draws.high);
  const bool second_half = element & 4;
  if constexpr (kSize == 1) {
    const uint32_t low = second_half ? words.word[2] : words.word[0];
    const uint32_t high = second_half ? words.word[3] : words.word[1];
    draw[0] = (element & 2 ? high : low) << (element & 1 ? 0 : 16);
  } else {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
      const uint32_t word = kSize == 4 && second_half ? words.word[i + 2] : words.word[i];
      draw[2 * i] = word << 16;
      draw[2 * i + 1] = word;
    }
  }
}

// A position read once: through the pointer it would be read again after every store.
struct Position {
  __device__ explicit Position(const Dropout& dropout)
      : value{dropout.position[0], dropout.position[1]}, dropout_(dropout) {}

  __device__ SampleDraws DrawsOf(int64_t sample, int64_t elements_per_sample) const {
    const Dropout dropout{dropout_.drop_below, dropout_.seed, dropout_.site, value};
    return SampleDraws(dropout, sample, elements_per_sample);
  }

  int64_t value[2];

 private:
  const Dropout& dropout_;
};

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_PHILOX_CUH_
