// How the attention softmax of short rows is divided: a half warp, a warp or a block is a team, which has a row in its
// registers and runs down rows that lie one after the other.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_TEAM_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_TEAM_CUH_

#include "custom_ops/kernels/attention_softmax/row.cuh"

namespace tftrain::cuda {

// The threads that share a row: so many lanes of a warp, or a block.
template <int kLanes>
struct Team {
  __device__ static int size() { return kLanes ? kLanes : blockDim.x; }
  __device__ static int thread() {
    if constexpr (kLanes > 0) return threadIdx.x % kLanes;
    return threadIdx.x;
  }
  __device__ static int64_t number() {
    if constexpr (kLanes > 0) return blockIdx.x * int64_t{blockDim.x / kLanes} + threadIdx.x / kLanes;
    return blockIdx.x;
  }
  __device__ static int64_t teams() {
    if constexpr (kLanes > 0) return gridDim.x * int64_t{blockDim.x / kLanes};
    return gridDim.x;
  }

  template <typename How>
  __device__ float Reduce(float value, float* scratch) const {
    float values[1] = {value};
    if constexpr (kLanes > 0) {
      ReduceWarp<How, kLanes>(values);
    } else {
      ReduceBlock<How>(values, scratch);
    }
    return values[0];
  }
};

// A thread's part of a row.
template <int kLanes, typename T, int kSize, int kPacks>
struct RowPart {
  Pack<T, kSize> pack[kPacks];

  __device__ static int KeyOf(int p) { return (p * Team<kLanes>::size() + Team<kLanes>::thread()) * kSize; }

  // The packs with keys before `end`; the others stay as they are.
  __device__ void Load(const void* from, int64_t row, int64_t keys, int64_t end) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (KeyOf(p) < end) pack[p] = Pack<T, kSize>::Load(static_cast<const T*>(from) + row * keys + KeyOf(p));
    }
  }

  __device__ static void Store(const float (&values)[kSize], void* to, int64_t row, int64_t keys, int p) {
    Pack<T, kSize>::Encode(values).Store(static_cast<T*>(to) + row * keys + KeyOf(p));
  }

  __device__ static void StoreZeros(void* to, int64_t row, int64_t keys, int p) {
    const float zeros[kSize] = {};
    Store(zeros, to, row, keys, p);
  }
};

// The next rows of a team, by sample and place in it.
struct RowCursor {
  __device__ RowCursor(const AttentionShape& shape, int64_t row)
      : queries(shape.queries),
        rows_of_sample(shape.heads * shape.queries),
        sample(row / rows_of_sample),
        row_of_sample(row % rows_of_sample),
        query(row_of_sample % queries) {}

  // Whether a sample begins.
  __device__ bool Next() {
    query = NextQuery();
    if (++row_of_sample < rows_of_sample) return false;
    row_of_sample = 0;
    ++sample;
    return true;
  }

  __device__ int64_t NextQuery() const { return query + 1 == queries ? 0 : query + 1; }

  // The row's first element in its sample, among all heads.
  __device__ int64_t Element(const AttentionShape& shape) const {
    return (shape.first_head * shape.queries + row_of_sample) * shape.keys;
  }

  int64_t queries;
  int64_t rows_of_sample;
  int64_t sample;
  int64_t row_of_sample;
  int64_t query;
};

template <int kLanes, typename T, int kSize, int kPacks>
__device__ __forceinline__ uint32_t OwnKeyBits(const int32_t* key_mask, int64_t sample, int keys) {
  using Part = RowPart<kLanes, T, kSize, kPacks>;
  uint32_t bits = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (Part::KeyOf(p) < keys) bits |= KeyBits<kSize>(key_mask, sample * keys + Part::KeyOf(p)) << (p * kSize);
  }
  return bits;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_TEAM_CUH_
