// Gated linear units as plain loops in fp64: the specification that the kernels are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_REFERENCE_H_

#include <cmath>
#include <cstdint>

#include "custom_ops/kernels/elementwise/activation.h"
#include "custom_ops/kernels/elementwise/gelu_reference.h"

namespace tftrain {

inline GeluValue ReferenceActivation(double x, Activation activation) {
  if (activation != Activation::kSilu) return ReferenceGelu(x, activation == Activation::kGeluTanh);
  const double below = 1 / (1 + std::exp(-x));
  const double above = 1 / (1 + std::exp(x));
  return {x * below, below + x * below * above};
}

inline void ReferenceGlu(const double* gate, const double* up, const double* gate_bias, const double* up_bias,
                         int64_t rows, int64_t columns, Activation activation, double* y) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t column = i % columns;
    y[i] = ReferenceActivation(gate[i] + gate_bias[column], activation).value * (up[i] + up_bias[column]);
  }
}

// dgate_bias and dup_bias are added to.
inline void ReferenceGluGradient(const double* dy, const double* gate, const double* up, const double* gate_bias,
                                 const double* up_bias, int64_t rows, int64_t columns, Activation activation,
                                 double* dgate, double* dup, double* dgate_bias, double* dup_bias) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t column = i % columns;
    const GeluValue f = ReferenceActivation(gate[i] + gate_bias[column], activation);
    dgate[i] = dy[i] * (up[i] + up_bias[column]) * f.slope;
    dup[i] = dy[i] * f.value;
    dgate_bias[column] += dgate[i];
    dup_bias[column] += dup[i];
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_REFERENCE_H_
