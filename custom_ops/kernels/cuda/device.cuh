// Shared by the CUDA kernels: access to 16 bytes at once in any storage type, and sums over warps and blocks.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_DEVICE_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_DEVICE_CUH_

#include <cstdint>
#include <type_traits>

#include "custom_ops/kernels/cuda/runtime.cuh"
#include "custom_ops/kernels/common/dtype.h"

namespace tftrain::cuda {

constexpr int kWarp = 32;

// As many elements as 16 bytes hold.
template <typename T>
constexpr int kWidest = 16 / sizeof(T);

// kSize elements side by side, loaded and stored at once, and decoded only where they are used: 8 numbers of 16 bits take
// 4 registers so, and 8 as floats.
template <typename T, int kSize>
struct Pack {
  static_assert(kSize == 1 || kSize == kWidest<T>);
  using Word = std::conditional_t<std::is_same_v<T, float>, float, std::conditional_t<kSize == 1, uint16_t, uint32_t>>;
  static constexpr int kWords = kSize * sizeof(T) / sizeof(Word);

  alignas(kSize * sizeof(T)) Word word[kWords];

  __device__ static Pack Load(const T* from) {
    if constexpr (kSize == 1) {
      return *reinterpret_cast<const Pack*>(from);
    } else {
      Pack pack;
      Load16(from, pack.word);
      return pack;
    }
  }

  __device__ void Store(T* to) const {
    if constexpr (kSize == 1) {
      *reinterpret_cast<Pack*>(to) = *this;
    } else {
      Store16(word, to);
    }
  }

  __device__ void Decode(float (&values)[kSize]) const {
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) values[i] = word[i];
    } else if constexpr (kSize == 1) {
      values[0] = ToFloat(word[0], T());
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) PairToFloats(word[i], T(), &values[2 * i], &values[2 * i + 1]);
    }
  }

  __device__ static Pack Encode(const float (&values)[kSize]) {
    Pack pack;
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) pack.word[i] = values[i];
    } else if constexpr (kSize == 1) {
      pack.word[0] = FromFloat(values[0], T());
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) pack.word[i] = PairFromFloats(values[2 * i], values[2 * i + 1], T());
    }
    return pack;
  }
};

// Loads columns of parameters of any type. Kernels do this once for many rows, so it need not be fast.
template <int kSize>
__device__ inline void LoadColumns(const void* from, DType dtype, int64_t column, float (&values)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    if (dtype == DType::kFloat32) {
      values[i] = static_cast<const float*>(from)[column + i];
    } else {
      const uint16_t bits = static_cast<const uint16_t*>(from)[column + i];
      values[i] = dtype == DType::kFloat16 ? ToFloat(bits, Half()) : ToFloat(bits, BFloat16());
    }
  }
}

__device__ inline void StoreColumn(float value, void* to, DType dtype, int64_t column) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(to)[column] = value;
  } else {
    static_cast<uint16_t*>(to)[column] =
        dtype == DType::kFloat16 ? FromFloat(value, Half()) : FromFloat(value, BFloat16());
  }
}

struct Add {
  __device__ static float Join(float a, float b) { return a + b; }
};

struct Larger {
  __device__ static float Join(float a, float b) { return fmaxf(a, b); }
};

// Over the lanes of a warp, or of each group of kLanes of them, for each value, in all lanes. Groups need not come here
// together.
template <typename How, int kLanes = kWarp, int kValues>
__device__ inline void ReduceWarp(float (&values)[kValues]) {
  uint32_t lanes = 0xffffffff;
  if (kLanes < kWarp) lanes = ((1u << kLanes % kWarp) - 1) << (threadIdx.x % kWarp / kLanes * kLanes);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = How::Join(values[i], __shfl_xor_sync(lanes, values[i], distance));
    }
  }
}

// Over the threads of a block, in all threads. `scratch` has kValues numbers for each warp; the next reduction must be given
// another, because some threads may still read this one.
template <typename How, int kValues>
__device__ inline void ReduceBlock(float (&values)[kValues], float* scratch) {
  ReduceWarp<How>(values);
  const int warps = blockDim.x / kWarp;
  if (warps == 1) return;
  if (threadIdx.x % kWarp == 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) scratch[threadIdx.x / kWarp * kValues + i] = values[i];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kValues; ++i) values[i] = scratch[i];
  for (int warp = 1; warp < warps; ++warp) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[i] = How::Join(values[i], scratch[warp * kValues + i]);
  }
}

// Whether rows of `row_bytes` at these addresses allow 16-byte access; a null pointer does not matter.
template <typename... Pointers>
bool Aligned16(int64_t row_bytes, Pointers... pointers) {
  uintptr_t all = static_cast<uintptr_t>(row_bytes);
  ((all |= reinterpret_cast<uintptr_t>(pointers)), ...);
  return all % 16 == 0;
}

// A number as a type, for lambdas that choose templates.
template <int kValue>
using Number = std::integral_constant<int, kValue>;

inline int DivideUp(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_DEVICE_CUH_
