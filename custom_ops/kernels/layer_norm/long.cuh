// Layer normalization and RMSNorm of rows that do not fit into the registers of a block: the block walks down the row and
// reads it again from memory, most often from a cache, for each of the formula's passes.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LONG_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LONG_CUH_

#include "custom_ops/kernels/layer_norm/row.cuh"
#include "custom_ops/kernels/cuda/long_rows.cuh"

namespace tftrain::cuda {

template <bool kCentred, typename T, int kSize>
__global__ void __launch_bounds__(kLongRowThreads) LongLayerNormKernel(LayerNormForward args) {
  using Columns = Pack<T, kSize>;
  __shared__ float scratch[2][kLongRowThreads / kWarp];
  const float inverse = 1.0f / args.hidden;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t begin = row * args.hidden;
    const T* const x = static_cast<const T*>(args.x) + begin;
    T* const y = static_cast<T*>(args.y) + begin;
    float mean[1] = {};
    if constexpr (kCentred) {
      ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
        float v[kSize];
        Columns::Load(x + column).Decode(v);
        AddValues(v, mean);
      });
      ReduceBlock<Add>(mean, scratch[turn]);
      turn ^= 1;
      mean[0] *= inverse;
    }
    float rstd[1] = {};
    ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
      float v[kSize];
      Columns::Load(x + column).Decode(v);
      AddSquares<kCentred>(v, mean[0], rstd);
    });
    ReduceBlock<Add>(rstd, scratch[turn]);
    turn ^= 1;
    rstd[0] = RstdOf(rstd[0], inverse, args.epsilon);
    if (threadIdx.x == 0) {
      if constexpr (kCentred) args.mean[row] = mean[0];
      args.rstd[row] = rstd[0];
    }
    ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
      float v[kSize], gamma[kSize], beta[kSize] = {};
      Columns::Load(x + column).Decode(v);
      LoadColumns(args.gamma, args.parameter_dtype, column, gamma);
      if constexpr (kCentred) LoadColumns(args.beta, args.parameter_dtype, column, beta);
      Normalize<kCentred>(mean[0], rstd[0], gamma, beta, v);
      Columns::Encode(v).Store(y + column);
    });
  }
}

// The sums of the parameters' gradients over a block's rows live in its part of `parts`, [kSums, hidden].
template <bool kCentred, typename T, int kSize>
__global__ void __launch_bounds__(kLongRowThreads) LongLayerNormGradientKernel(LayerNormBackward args, float* parts) {
  using Columns = Pack<T, kSize>;
  __shared__ float scratch[2][2 * kLongRowThreads / kWarp];
  const float inverse = 1.0f / args.hidden;
  float* const dgamma_part = parts + int64_t{blockIdx.x} * kSums<kCentred> * args.hidden;
  float* const dbeta_part = dgamma_part + args.hidden;
  ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
    const float zeros[kSize] = {};
    StoreFloats(zeros, dgamma_part + column);
    if constexpr (kCentred) StoreFloats(zeros, dbeta_part + column);
  });
  int turn = 0;
  for (int64_t row = blockIdx.x; row < args.rows; row += gridDim.x) {
    const int64_t begin = row * args.hidden;
    const T* const dy = static_cast<const T*>(args.dy) + begin;
    const T* const x = static_cast<const T*>(args.x) + begin;
    T* const dx = static_cast<T*>(args.dx) + begin;
    GradientRow at = {kCentred ? args.mean[row] : 0, args.rstd[row]};
    float sums[2] = {};
    ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
      float d[kSize], v[kSize], gamma[kSize], dgamma[kSize], dbeta[kSize] = {};
      Columns::Load(dy + column).Decode(d);
      Columns::Load(x + column).Decode(v);
      LoadColumns(args.gamma, args.parameter_dtype, column, gamma);
      LoadFloats(dgamma_part + column, dgamma);
      if constexpr (kCentred) LoadFloats(dbeta_part + column, dbeta);
      AddGradients<kCentred>(d, v, at.mean, at.rstd, gamma, &sums[0], &sums[1], dgamma, dbeta);
      StoreFloats(dgamma, dgamma_part + column);
      if constexpr (kCentred) StoreFloats(dbeta, dbeta_part + column);
    });
    ReduceBlock<Add>(sums, scratch[turn]);
    turn ^= 1;
    at.mean_g = sums[0] * inverse;
    at.mean_gn = sums[1] * inverse;
    ForOwnPacks<kSize>(args.hidden, [&](int64_t column) {
      float d[kSize], v[kSize], gamma[kSize];
      Columns::Load(dy + column).Decode(d);
      Columns::Load(x + column).Decode(v);
      LoadColumns(args.gamma, args.parameter_dtype, column, gamma);
      InputGradient<kCentred>(d, gamma, at, v);
      Columns::Encode(v).Store(dx + column);
    });
  }
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LONG_CUH_
