// GeLU as plain loops in fp64: the specification that the kernels of gelu.h and glu.h are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_REFERENCE_H_

#include <cmath>
#include <cstdint>

namespace tftrain {

struct GeluValue {
  double value;
  double slope;
};

inline GeluValue ReferenceGelu(double x, bool approximate) {
  if (!approximate) {
    const double below = std::erfc(-x * std::sqrt(0.5)) / 2;
    return {x * below, below + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI)};
  }
  const double scale = 2 * std::sqrt(2 / M_PI);
  const double below = 1 / (1 + std::exp(-scale * (x + 0.044715 * x * x * x)));
  const double above = 1 / (1 + std::exp(scale * (x + 0.044715 * x * x * x)));
  return {x * below, below + x * below * above * scale * (1 + 3 * 0.044715 * x * x)};
}

inline void ReferenceGelu(const double* x, const double* bias, int64_t rows, int64_t columns, bool approximate,
                          double* y) {
  for (int64_t i = 0; i < rows * columns; ++i) y[i] = ReferenceGelu(x[i] + bias[i % columns], approximate).value;
}

// dbias is added to.
inline void ReferenceGeluGradient(const double* dy, const double* x, const double* bias, int64_t rows, int64_t columns,
                                  bool approximate, double* dx, double* dbias) {
  for (int64_t i = 0; i < rows * columns; ++i) {
    dx[i] = dy[i] * ReferenceGelu(x[i] + bias[i % columns], approximate).slope;
    dbias[i % columns] += dx[i];
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_REFERENCE_H_
