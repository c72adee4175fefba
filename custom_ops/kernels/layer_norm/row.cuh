// The formulas of layer normalization, and of RMSNorm where kCentred is false, for kSize columns of a row side by side,
// which the kernels for short and for long rows share; see layer_norm.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_ROW_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_ROW_CUH_

#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/layer_norm/layer_norm.h"

namespace tftrain::cuda {

template <int kSize>
__device__ __forceinline__ void AddValues(const float (&v)[kSize], float* sum) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) *sum += v[i];
}

// The sums over rows that gradients of parameters are: of dgamma, and of dbeta if there is one.
template <bool kCentred>
constexpr int kSums = kCentred ? 2 : 1;

template <bool kCentred>
__device__ __forceinline__ float Centre(float v, float mean) {
  return kCentred ? v - mean : v;
}

template <bool kCentred, int kSize>
__device__ __forceinline__ void AddSquares(const float (&v)[kSize], float mean, float* sum) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float centred = Centre<kCentred>(v[i], mean);
    *sum = fmaf(centred, centred, *sum);
  }
}

// `inverse` is 1 / hidden.
__device__ __forceinline__ float RstdOf(float squares, float inverse, float epsilon) {
  return rsqrtf(fmaf(squares, inverse, epsilon));
}

// Replaces x by y.
template <bool kCentred, int kSize>
__device__ __forceinline__ void Normalize(float mean, float rstd, const float (&gamma)[kSize],
                                          const float (&beta)[kSize], float (&v)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float normal = Centre<kCentred>(v[i], mean) * rstd;
    v[i] = kCentred ? fmaf(normal, gamma[i], beta[i]) : normal * gamma[i];
  }
}

// A row's statistics, and the means of g and of g * n over it.
struct GradientRow {
  float mean;
  float rstd;
  float mean_g;
  float mean_gn;
};

// Adds to the sums of g and of g * n over a row, and to those of the parameters' gradients over rows.
template <bool kCentred, int kSize>
__device__ __forceinline__ void AddGradients(const float (&dy)[kSize], const float (&v)[kSize], float mean, float rstd,
                                             const float (&gamma)[kSize], float* sum_g, float* sum_gn,
                                             float (&dgamma)[kSize], float (&dbeta)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float normal = Centre<kCentred>(v[i], mean) * rstd;
    const float g = dy[i] * gamma[i];
    dgamma[i] = fmaf(dy[i], normal, dgamma[i]);
    if constexpr (kCentred) dbeta[i] += dy[i];
    if constexpr (kCentred) *sum_g += g;
    *sum_gn = fmaf(g, normal, *sum_gn);
  }
}

// Replaces x by dx.
template <bool kCentred, int kSize>
__device__ __forceinline__ void InputGradient(const float (&dy)[kSize], const float (&gamma)[kSize],
                                              const GradientRow& row, float (&v)[kSize]) {
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const float normal = Centre<kCentred>(v[i], row.mean) * row.rstd;
    v[i] = row.rstd * fmaf(-normal, row.mean_gn, Centre<kCentred>(dy[i] * gamma[i], row.mean_g));
  }
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_ROW_CUH_
