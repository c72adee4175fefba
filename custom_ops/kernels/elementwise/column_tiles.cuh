// Functions of each element and its column's parameters, with sums of the results over rows: the pattern of bias and GeLU,
// gated units, and bias, dropout and add.
//
// A warp takes a tile of 32 packs side by side and runs down the rows; a lane keeps its columns' biases and sums in
// registers. The warps of a block take different rows of one tile, and join their sums before they are written.
//
// The function is a class with
//   kInputs, kOutputs   how many tensors it reads and writes, `const void* in[]` and `void* out[]`
//   kBiases             how many rows of parameters it takes, `const void* bias[]` of bias_dtype; null for zeros
//   kSums               how many outputs, the first ones, are summed over rows
//   Apply<T>(row, column, in[kInputs][kSize], bias[][kSize], out[kOutputs][kSize])
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_COLUMN_TILES_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_COLUMN_TILES_CUH_

#include <algorithm>

#include "custom_ops/kernels/cuda/column_sums.cuh"

namespace tftrain::cuda {

constexpr int kTileWarps = 8;
constexpr int kTileThreads = kTileWarps * kWarp;
// Rows that a warp loads before it uses the first.
template <int kInputs>
constexpr int kTileRows = kInputs == 1 ? 4 : 2;

// Arrays of none are not allowed.
template <int kNumber>
constexpr int kAtLeastOne = kNumber > 0 ? kNumber : 1;

template <typename T, int kSize, typename Function>
__global__ void __launch_bounds__(kTileThreads)
    ColumnTileKernel(Function function, int64_t rows, int64_t columns, float* parts) {
  constexpr int kRows = kTileRows<Function::kInputs>;
  constexpr int kSums = Function::kSums;
  const int lane = threadIdx.x % kWarp;
  const int warp = threadIdx.x / kWarp;
  const int64_t column = (int64_t{blockIdx.x} * kWarp + lane) * kSize;
  const bool inside = column < columns;
  float bias[kAtLeastOne<Function::kBiases>][kSize] = {};
#pragma unroll
  for (int i = 0; i < Function::kBiases; ++i) {
    if (inside && function.bias[i] != nullptr) LoadColumns(function.bias[i], function.bias_dtype, column, bias[i]);
  }
  float sums[kAtLeastOne<kSums>][kSize] = {};
  const int64_t step = int64_t{gridDim.y} * kTileWarps;
  for (int64_t first = int64_t{blockIdx.y} * kTileWarps + warp; inside && first < rows; first += step * kRows) {
    Pack<T, kSize> packs[kRows][Function::kInputs];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * step;
      if (row >= rows) break;
#pragma unroll
      for (int i = 0; i < Function::kInputs; ++i) {
        packs[r][i] = Pack<T, kSize>::Load(static_cast<const T*>(function.in[i]) + row * columns + column);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first + r * step;
      if (row >= rows) break;
      float in[Function::kInputs][kSize];
      float out[Function::kOutputs][kSize];
#pragma unroll
      for (int i = 0; i < Function::kInputs; ++i) packs[r][i].Decode(in[i]);
      function.template Apply<T>(row, column, in, bias, out);
#pragma unroll
      for (int i = 0; i < Function::kOutputs; ++i) {
        Pack<T, kSize>::Encode(out[i]).Store(static_cast<T*>(function.out[i]) + row * columns + column);
      }
#pragma unroll
      for (int i = 0; i < kSums; ++i) {
#pragma unroll
        for (int k = 0; k < kSize; ++k) sums[i][k] += out[i][k];
      }
    }
  }
  if constexpr (kSums > 0) {
    if (parts == nullptr) return;
    __shared__ float of_warp[kTileWarps][kWarp * kSize];
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i > 0) __syncthreads();  // the sums before are still being read
#pragma unroll
      for (int k = 0; k < kSize; ++k) of_warp[warp][k * kWarp + lane] = sums[i][k];
      __syncthreads();
      // Place k * 32 + lane of the tile is column lane * kSize + k.
      for (int place = threadIdx.x; place < kWarp * kSize; place += kTileThreads) {
        float sum = of_warp[0][place];
        for (int w = 1; w < kTileWarps; ++w) sum += of_warp[w][place];
        const int64_t to = (int64_t{blockIdx.x} * kWarp + place % kWarp) * kSize + place / kWarp;
        if (to < columns) parts[(int64_t{blockIdx.y} * kSums + i) * columns + to] = sum;
      }
    }
  }
}

// Runs `function` over [rows, columns]; its sums go to `sums`, if sums.to[0] is not null.
template <typename T, int kSize, typename Function>
CudaError RunTiles(const Function& function, int64_t rows, const ColumnSums& sums, const CudaStream& stream) {
  const int64_t columns = sums.columns;
  const auto kernel = ColumnTileKernel<T, kSize, Function>;
  const int tiles = DivideUp(columns, kWarp * kSize);
  // One wave of blocks if they leave sums behind. If not, several: the GPU evens out what is left over at the end.
  const int waves = Function::kSums > 0 ? 1 : 4;
  const int most = std::max(1, waves * BlocksThatFit(kernel, kTileThreads) / tiles);
  int blocks = std::max(1, std::min({most, DivideUp(rows, kTileWarps), 65535}));
  float* parts = nullptr;
  const bool summed = sums.to[0] != nullptr;
  if (summed) {
    blocks = static_cast<int>(std::min<int64_t>(blocks, MostTileParts(rows, columns)));
    if (const CudaError error = TakeWorkspace(stream, blocks * sums.total(), &parts); error != nullptr) return error;
  }
  LaunchKernel(kernel, {tiles, blocks}, kTileThreads, stream.handle, function, rows, columns, parts);
  if (summed) SumParts(parts, blocks, sums, stream);
  return LastError();
}

// Chooses the type and the width of access.
template <typename Function>
CudaError RunTiles(DType dtype, const Function& function, int64_t rows, const ColumnSums& sums,
                   const CudaStream& stream) {
  if (sums.columns == 0 || (rows == 0 && sums.to[0] == nullptr)) return nullptr;
  CudaError error = nullptr;
  WithType(dtype, [&](auto t) {
    using T = decltype(t);
    bool wide = sums.columns * sizeof(T) % 16 == 0;
    for (const void* in : function.in) wide = wide && Aligned16(0, in);
    for (const void* out : function.out) wide = wide && Aligned16(0, out);
    error = wide ? RunTiles<T, kWidest<T>>(function, rows, sums, stream) : RunTiles<T, 1>(function, rows, sums, stream);
  });
  return error;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_COLUMN_TILES_CUH_
