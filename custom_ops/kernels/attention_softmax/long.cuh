// The attention softmax of rows that do not fit into the registers of a block: the block walks down the row and reads it
// again from memory, most often from a cache, for each of the formula's passes.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_LONG_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_LONG_CUH_

#include "custom_ops/kernels/attention_softmax/row.cuh"
#include "custom_ops/kernels/cuda/long_rows.cuh"

namespace tftrain::cuda {

// Writes zeros to this thread's packs after the one with the key before `key_end`, in one array or in two.
template <typename T, int kSize>
__device__ __forceinline__ void ZeroPacksFrom(int64_t key_end, int64_t row, int64_t keys, void* first, void* second) {
  const float zeros[kSize] = {};
  ForOwnPacks<kSize>(keys, [&](int64_t key) {
    if (key < key_end) return;
    Pack<T, kSize>::Encode(zeros).Store(static_cast<T*>(first) + row * keys + key);
    if (second != nullptr) Pack<T, kSize>::Encode(zeros).Store(static_cast<T*>(second) + row * keys + key);
  });
}

template <bool kCausal, bool kDropout, typename T, int kSize>
__global__ void __launch_bounds__(kLongRowThreads) LongSoftmaxKernel(AttentionSoftmaxForward args, float keep_scale) {
  using Keys = Pack<T, kSize>;
  __shared__ float scratch[2][kLongRowThreads / kWarp];
  const int64_t keys = args.shape.keys;
  const float factor = args.scale * kLog2E;
  const Position position(args.dropout);
  for (int64_t row = blockIdx.x; row < args.shape.rows(); row += gridDim.x) {
    const int64_t sample = args.shape.SampleOf(row);
    const int64_t key_end = kCausal ? args.shape.KeyEndOfRow(row) : keys;
    const int32_t* const key_mask = args.key_mask + sample * keys;
    const auto bits_of = [&](int64_t key) {
      const uint32_t bits = KeyBits<kSize>(key_mask, key);
      return kCausal ? bits & BitsBefore<kSize>(key_end, key) : bits;
    };
    const T* const scores = static_cast<const T*>(args.scores) + row * keys;
    float largest[1] = {-INFINITY};
    ForOwnPacks<kSize>(key_end, [&](int64_t key) {
      float v[kSize];
      Keys::Load(scores + key).Decode(v);
      largest[0] = LargestOf(v, bits_of(key), factor, largest[0]);
    });
    ReduceBlock<Larger>(largest, scratch[0]);
    float sum[1] = {};
    const auto powers = [&](int64_t key, float(&v)[kSize]) {
      Keys::Load(scores + key).Decode(v);
      Powers(bits_of(key), factor, largest[0], v);
    };
    ForOwnPacks<kSize>(key_end, [&](int64_t key) {
      float v[kSize];
      powers(key, v);
#pragma unroll
      for (int i = 0; i < kSize; ++i) sum[0] += v[i];
    });
    ReduceBlock<Add>(sum, scratch[1]);
    const float inverse = InverseOf(sum[0]);
    const DropMask mask{position.DrawsOf<ProbabilityDraw>(sample, args.shape.ElementsPerSample()), args.dropout.drop_below, keep_scale};
    const int64_t element = args.shape.ElementOf(row);
    ForOwnPacks<kSize>(key_end, [&](int64_t key) {
      float v[kSize];
      powers(key, v);
#pragma unroll
      for (int i = 0; i < kSize; ++i) v[i] *= inverse;
      Keys::Encode(v).Store(static_cast<T*>(args.probabilities) + row * keys + key);
      if (kDropout) {
        mask.Apply(element + key, v);
        Keys::Encode(v).Store(static_cast<T*>(args.dropped) + row * keys + key);
      }
    });
    if (kCausal) ZeroPacksFrom<T, kSize>(key_end, row, keys, args.probabilities, args.dropped);
  }
}

template <bool kCausal, bool kDropout, typename T, int kSize>
__global__ void __launch_bounds__(kLongRowThreads)
    LongSoftmaxGradientKernel(AttentionSoftmaxBackward args, float keep_scale) {
  using Keys = Pack<T, kSize>;
  __shared__ float scratch[2][kLongRowThreads / kWarp];
  const int64_t keys = args.shape.keys;
  const Position position(args.dropout);
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.shape.rows(); row += gridDim.x) {
    const int64_t sample = args.shape.SampleOf(row);
    const int64_t key_end = kCausal ? args.shape.KeyEndOfRow(row) : keys;
    const T* const probabilities = static_cast<const T*>(args.probabilities) + row * keys;
    const T* const ddropped = static_cast<const T*>(args.ddropped) + row * keys;
    const DropMask mask{position.DrawsOf<ProbabilityDraw>(sample, args.shape.ElementsPerSample()), args.dropout.drop_below, keep_scale};
    const int64_t element = args.shape.ElementOf(row);
    float sum[1] = {};
    ForOwnPacks<kSize>(key_end, [&](int64_t key) {
      float gradient[kSize], probability[kSize];
      Keys::Load(ddropped + key).Decode(gradient);
      Keys::Load(probabilities + key).Decode(probability);
      if (kCausal) KeepFirst(key_end - key, gradient, probability);
      if (kDropout) {
        float dropped[kSize];
        Keys::Load(probabilities + key).Decode(dropped);
        if (kCausal) KeepFirst(key_end - key, dropped);
        mask.Apply(element + key, gradient, dropped);
        Keys::Encode(dropped).Store(static_cast<T*>(args.dropped) + row * keys + key);
      }
      sum[0] = AddProducts(gradient, probability, sum[0]);
    });
    ReduceBlock<Add>(sum, scratch[turn]);
    turn ^= 1;
    ForOwnPacks<kSize>(key_end, [&](int64_t key) {
      float gradient[kSize], probability[kSize];
      Keys::Load(ddropped + key).Decode(gradient);
      Keys::Load(probabilities + key).Decode(probability);
      if (kCausal) KeepFirst(key_end - key, gradient, probability);
      if (kDropout) mask.Apply(element + key, gradient);
      ScoreGradient(probability, sum[0], args.scale, gradient);
      Keys::Encode(gradient).Store(static_cast<T*>(args.dscores) + row * keys + key);
    });
    if (kCausal) ZeroPacksFrom<T, kSize>(key_end, row, keys, args.dscores, args.dropped);
  }
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_LONG_CUH_
