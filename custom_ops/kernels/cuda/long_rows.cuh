// How a block walks down rows that are too long for its registers: a thread takes every 512th pack, the same of every row.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_LONG_ROWS_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_LONG_ROWS_CUH_

#include <algorithm>

#include "custom_ops/kernels/cuda/device.cuh"

namespace tftrain::cuda {

constexpr int kLongRowThreads = 512;

// Calls run(column) for the first column of each of this thread's packs.
template <int kSize, typename Run>
__device__ __forceinline__ void ForOwnPacks(int64_t columns, const Run& run) {
#pragma unroll 2
  for (int64_t column = int64_t{threadIdx.x} * kSize; column < columns; column += kLongRowThreads * kSize) run(column);
}

// A pack's worth of fp32 numbers.
template <int kSize>
__device__ __forceinline__ void LoadFloats(const float* from, float (&values)[kSize]) {
  constexpr int kPart = kSize == 1 ? 1 : 4;
#pragma unroll
  for (int i = 0; i < kSize; i += kPart) {
    float part[kPart];
    Pack<float, kPart>::Load(from + i).Decode(part);
#pragma unroll
    for (int k = 0; k < kPart; ++k) values[i + k] = part[k];
  }
}

template <int kSize>
__device__ __forceinline__ void StoreFloats(const float (&values)[kSize], float* to) {
  constexpr int kPart = kSize == 1 ? 1 : 4;
#pragma unroll
  for (int i = 0; i < kSize; i += kPart) {
    float part[kPart];
#pragma unroll
    for (int k = 0; k < kPart; ++k) part[k] = values[i + k];
    Pack<float, kPart>::Encode(part).Store(to + i);
  }
}

// A block for each row, as long as all of them run at once.
template <typename Kernel>
int LongRowBlocks(Kernel kernel, int64_t rows) {
  const int64_t most = BlocksThatFit(kernel, kLongRowThreads);
  return static_cast<int>(std::max<int64_t>(1, std::min(rows, most)));
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_LONG_ROWS_CUH_
