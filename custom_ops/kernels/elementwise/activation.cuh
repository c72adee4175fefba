// GeLU and SiLU and their derivatives of one number, for the GPU; activation-inl.h says why they are made from the tail.
//
// The tail of the normal distribution is E t P(t) with E = e^(-a^2 / 2) and t = 1 / (1 + 0.3 a): what remains after E is
// smooth, and the polynomial P was fitted to it with a relative error below 5e-8 everywhere. With two instructions of the
// special function unit it takes less time than a GPU's memory needs for the number.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_CUH_

#include <cmath>

#include "custom_ops/kernels/cuda/runtime.cuh"
#include "custom_ops/kernels/elementwise/activation.h"

namespace tftrain::cuda {

constexpr float kLog2E = 1.44269504f;

struct Tail {
  float magnitude;
  float tail;   // q
  float slope;  // d
};

__device__ __forceinline__ Tail ErfTail(float a) {
  constexpr float kHalfLog2E = 0.721347520f;
  constexpr float kNormalDensity = 0.398942280f;
  // What rounding a^2 loses is put back: in the exponential it would grow with a^2.
  const float square = a * a;
  const float lost = fmaf(a, a, -square);
  const float gaussian = Exp2Approx(fmaf(square, -kHalfLog2E, lost * -kHalfLog2E));
  const float t = ReciprocalApprox(fmaf(a, 0.3f, 1.0f));
  float sum = 0.0375480643f;
  sum = fmaf(sum, t, -0.165077647f);
  sum = fmaf(sum, t, 0.220085458f);
  sum = fmaf(sum, t, -0.0665247117f);
  sum = fmaf(sum, t, 0.135496612f);
  sum = fmaf(sum, t, 0.097755989f);
  sum = fmaf(sum, t, 0.121111222f);
  sum = fmaf(sum, t, 0.119605038f);
  const float ratio = t * sum;
  return {a, gaussian * ratio, gaussian * fmaf(a, -kNormalDensity, ratio)};
}

// q = sigmoid(-2u(a)) = e / (1 + e) with e = e^(-2u), and c'(a) = q (1 - q) 2u'(a).
__device__ __forceinline__ Tail TanhTail(float a) {
  constexpr float kLinear = 1.59576912f;   // 2 sqrt(2 / pi)
  constexpr float kCubic = 0.0713548163f;  // 0.044715 times that
  const float square = a * a;
  const float e = Exp2Approx(a * fmaf(square, -kCubic * kLog2E, -kLinear * kLog2E));
  const float rest = ReciprocalApprox(1.0f + e);
  const float tail = e * rest;
  const float growth = fmaf(square, 3 * kCubic, kLinear);
  return {a, tail, tail * fmaf(-a * rest, growth, 1.0f)};
}

// q = sigmoid(-a) = e / (1 + e) with e = e^-a, and c'(a) = q (1 - q).
__device__ __forceinline__ Tail SiluTail(float a) {
  const float e = Exp2Approx(a * -kLog2E);
  const float rest = ReciprocalApprox(1.0f + e);
  const float tail = e * rest;
  return {a, tail, tail * fmaf(-a, rest, 1.0f)};
}

template <Activation kActivation>
__device__ __forceinline__ Tail TailOf(float x) {
  constexpr float kLargest = kActivation == Activation::kSilu ? 88.0f : 14.0f;
  const float magnitude = fabsf(x);
  const float a = magnitude > kLargest ? kLargest : magnitude;  // NaN stays
  if constexpr (kActivation == Activation::kSilu) {
    return SiluTail(a);
  } else {
    return kActivation == Activation::kGeluTanh ? TanhTail(a) : ErfTail(a);
  }
}

// f(x) and f'(x).
__device__ __forceinline__ float ValueOf(float x, const Tail& tail) {
  return fmaf(-tail.magnitude, tail.tail, x > 0.0f ? x : 0.0f);
}

__device__ __forceinline__ float SlopeOf(float x, const Tail& tail) {
  return x < 0.0f ? tail.slope : 1.0f - tail.slope;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_CUH_
