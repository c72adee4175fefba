// Sums over rows, as gradients of parameters are: blocks write the sums over their own rows to a workspace, and a second
// kernel adds these parts in a fixed order. No atomics, so every run gives the same bits on one kind of GPU.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_COLUMN_SUMS_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_COLUMN_SUMS_CUH_

#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain::cuda {

// Where the sums of one array, or of two, end up: [columns] each.
struct ColumnSums {
  int64_t columns;
  DType dtype;
  void* to[2];

  int64_t total() const { return to[1] == nullptr ? columns : 2 * columns; }
};

// `parts` are [number, total]. Each of kSumWarps warps adds up every 32nd part for 32 columns. A template, because several
// files have it.
template <int kSumWarps>
__global__ void __launch_bounds__(kSumWarps* kWarp)
    SumPartsKernel(const float* parts, int number, int64_t total, ColumnSums sums) {
  __shared__ float of_warp[kSumWarps][kWarp];
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t column = int64_t{blockIdx.x} * kWarp + lane;
  float sum = 0;
  if (column < total) {
#pragma unroll 8
    for (int part = warp; part < number; part += kSumWarps) sum += parts[part * total + column];
  }
  of_warp[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= total) return;
  for (int i = 1; i < kSumWarps; ++i) sum += of_warp[i][lane];
  const bool second = column >= sums.columns;
  StoreColumn(sum, second ? sums.to[1] : sums.to[0], sums.dtype, second ? column - sums.columns : column);
}

inline void SumParts(const float* parts, int number, const ColumnSums& sums, const CudaStream& stream) {
  constexpr int kWarps = 32;
  LaunchKernel(SumPartsKernel<kWarps>, {DivideUp(sums.total(), kWarp)}, kWarps * kWarp, stream.handle, parts, number,
               sums.total(), sums);
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_COLUMN_SUMS_CUH_
