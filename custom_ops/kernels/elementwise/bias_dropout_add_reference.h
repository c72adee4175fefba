// The mask of bias_dropout_add by its definition, one element at a time.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_REFERENCE_H_

#include <cstdint>

#include "custom_ops/kernels/common/philox.h"

namespace tftrain {

// Factor of element `index` of [samples, elements].
inline double ReferenceKeepFactor(const Dropout& dropout, int64_t elements, int64_t index) {
  const SampleDraws<uint16_t> draws(dropout, index / elements, elements);
  const bool kept = draws.Of(index % elements) >= static_cast<uint32_t>(dropout.drop_below);
  return kept ? 65536.0 / (65536 - dropout.drop_below) : 0;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_REFERENCE_H_
