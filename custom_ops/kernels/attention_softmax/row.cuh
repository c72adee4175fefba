// The formulas of the attention softmax for kSize keys of a row side by side, which the kernels for short and for long rows
// share; see attention_softmax.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ROW_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ROW_CUH_

#include "custom_ops/kernels/attention_softmax/attention_softmax.h"
#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/cuda/philox.cuh"

namespace tftrain::cuda {

constexpr float kLog2E = 1.44269504f;

// One bit for each key of the sample from `key` on: whether it is one.
template <int kSize>
__device__ __forceinline__ uint32_t KeyBits(const int32_t* key_mask, int64_t key) {
  uint32_t bits = 0;
#pragma unroll
  for (int i = 0; i < kSize; ++i) bits |= static_cast<uint32_t>(key_mask[key + i] > 0) << i;
  return bits;
}

template <int kSize>
constexpr uint32_t kAllBits = (1u << kSize) - 1;

// The bits, of the kSize keys from `key` on, that come before `end`.
template <int kSize>
__device__ __forceinline__ uint32_t BitsBefore(int64_t end, int64_t key) {
  const int64_t left = end - key;
  if (left >= kSize) return kAllBits<kSize>;
  return left > 0 ? (1u << left) - 1 : 0;
}

// Zeroes all but the first `count` values of each array.
template <int kSize, typename... More>
__device__ __forceinline__ void KeepFirst(int64_t count, float (&values)[kSize], More&... more) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (i < count) continue;
    values[i] = 0.0f;
    ((more[i] = 0.0f), ...);
  }
}

// The number of keys up to a query's position; all keys if it is not causal.
template <bool kCausal>
__device__ __forceinline__ int64_t KeyEnd(const AttentionShape& shape, int64_t query) {
  return kCausal ? shape.KeyEnd(query) : shape.keys;
}

// The largest of the scores, as powers of 2, whose bits are set, and of `largest`. Most often all are.
template <int kSize>
__device__ __forceinline__ float LargestOf(const float (&scores)[kSize], uint32_t bits, float factor, float largest) {
  if (bits == kAllBits<kSize>) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) largest = Larger::Join(scores[i] * factor, largest);
  } else {
    NotePartialPack();
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (bits >> i & 1) largest = Larger::Join(scores[i] * factor, largest);
    }
  }
  return largest;
}

// Puts the numerators of the softmax in place of the scores.
template <int kSize>
__device__ __forceinline__ void Powers(uint32_t bits, float factor, float largest, float (&values)[kSize]) {
  const float shift = largest > -INFINITY ? largest : INFINITY;  // Without keys, all are zero.
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    // In one rounding, so that the row's common part of the error is exactly common.
    values[i] = Exp2Approx(fmaf(values[i], factor, -shift));
  }
  if (bits == kAllBits<kSize>) return;
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (!(bits >> i & 1)) values[i] = 0.0f;
  }
}

__device__ __forceinline__ float InverseOf(float sum) { return sum == 0 ? 0.0f : 1.0f / sum; }

// The mask of a sample.
struct DropMask {
  ProbabilityDraws draws;
  int64_t drop_below;
  float keep_scale;

  // Scales what is kept of the elements from `element` on, and zeroes the rest, in one array or in two.
  template <int kSize, typename... More>
  __device__ __forceinline__ void Apply(int64_t element, float (&values)[kSize], More&... more) const {
    uint32_t draw[kSize];
    DrawPack(draws, element, draw);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const bool kept = draw[i] >= DropThreshold(drop_below);
      values[i] = kept ? values[i] * keep_scale : 0.0f;
      ((more[i] = kept ? more[i] * keep_scale : 0.0f), ...);
    }
  }
};

// Adds products to the sum over the row that the gradient subtracts.
template <int kSize>
__device__ __forceinline__ float AddProducts(const float (&gradient)[kSize], const float (&probability)[kSize],
                                             float sum) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) sum = fmaf(gradient[i], probability[i], sum);
  return sum;
}

// Puts the gradient of the scores in place of that of the probabilities.
template <int kSize>
__device__ __forceinline__ void ScoreGradient(const float (&probability)[kSize], float sum, float scale,
                                              float (&gradient)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) gradient[i] = (gradient[i] - sum) * (probability[i] * scale);
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ROW_CUH_
