// Layer normalization, and RMSNorm where it is not centred, as plain loops in fp64: the specification that the kernels are
// tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_REFERENCE_H_

#include <cmath>
#include <cstdint>
#include <vector>

namespace tftrain {

struct LayerNormStatistics {
  double mean;
  double rstd;
};

inline LayerNormStatistics ReferenceStatistics(const double* x, int64_t hidden, bool centred, double epsilon) {
  double mean = 0;
  for (int64_t i = 0; centred && i < hidden; ++i) mean += x[i] / hidden;
  double variance = 0;
  for (int64_t i = 0; i < hidden; ++i) variance += (x[i] - mean) * (x[i] - mean) / hidden;
  return {mean, 1 / std::sqrt(variance + epsilon)};
}

inline void ReferenceLayerNorm(const double* x, const double* gamma, const double* beta, int64_t rows, int64_t hidden,
                               bool centred, double epsilon, double* y) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, y += hidden) {
    const auto [mean, rstd] = ReferenceStatistics(x, hidden, centred, epsilon);
    for (int64_t i = 0; i < hidden; ++i) y[i] = (x[i] - mean) * rstd * gamma[i] + (centred ? beta[i] : 0);
  }
}

// dgamma is added to, and dbeta if the rows are centred.
inline void ReferenceLayerNormGradient(const double* dy, const double* x, const double* gamma, int64_t rows,
                                       int64_t hidden, bool centred, double epsilon, double* dx, double* dgamma,
                                       double* dbeta) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, dy += hidden, dx += hidden) {
    const auto [mean, rstd] = ReferenceStatistics(x, hidden, centred, epsilon);
    double mean_g = 0;
    double mean_gn = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const double normal = (x[i] - mean) * rstd;
      dgamma[i] += dy[i] * normal;
      if (centred) dbeta[i] += dy[i];
      if (centred) mean_g += dy[i] * gamma[i] / hidden;
      mean_gn += dy[i] * gamma[i] * normal / hidden;
    }
    for (int64_t i = 0; i < hidden; ++i) {
      dx[i] = rstd * (dy[i] * gamma[i] - mean_g - (x[i] - mean) * rstd * mean_gn);
    }
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_REFERENCE_H_
