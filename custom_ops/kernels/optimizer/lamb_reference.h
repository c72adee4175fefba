// One update of one parameter in fp64: the specification that the kernels are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_REFERENCE_H_

#include <cmath>

#include "custom_ops/kernels/optimizer/lamb.h"

namespace tftrain {

struct ReferenceParameter {
  double weight;
  double m;
  double v;
};

inline void ReferenceMoments(const UpdateScalars& at, double gradient, ReferenceParameter* parameter) {
  const double g = gradient * at.gradient_factor;
  parameter->m = at.beta1 * parameter->m - at.minus_one_minus_beta1 * g;
  parameter->v = at.beta2 * parameter->v + at.one_minus_beta2 * g * g;
}

inline double ReferenceUpdate(const UpdateScalars& at, double epsilon, double weight_decay,
                              const ReferenceParameter& parameter) {
  return parameter.m * at.m_correction / (std::sqrt(parameter.v * at.v_correction) + epsilon) +
         weight_decay * parameter.weight;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_REFERENCE_H_
