// GeGLU as plain loops in fp64: the specification that the kernels are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_REFERENCE_H_

#include <cstdint>

#include "custom_ops/kernels/elementwise/gelu_reference.h"

namespace tftrain {

inline void ReferenceGeglu(const double* gate, const double* up, const double* gate_bias, const double* up_bias,
                           int64_t rows, int64_t columns, bool approximate, double* y) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t column = i % columns;
    y[i] = ReferenceGelu(gate[i] + gate_bias[column], approximate).value * (up[i] + up_bias[column]);
  }
}

// dgate_bias and dup_bias are added to.
inline void ReferenceGegluGradient(const double* dy, const double* gate, const double* up, const double* gate_bias,
                                   const double* up_bias, int64_t rows, int64_t columns, bool approximate,
                                   double* dgate, double* dup, double* dgate_bias, double* dup_bias) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t column = i % columns;
    const GeluValue gelu = ReferenceGelu(gate[i] + gate_bias[column], approximate);
    dgate[i] = dy[i] * (up[i] + up_bias[column]) * gelu.slope;
    dup[i] = dy[i] * gelu.value;
    dgate_bias[column] += dgate[i];
    dup_bias[column] += dup[i];
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_REFERENCE_H_
