// Attention softmax as plain loops in fp64: the specification that the kernels are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "custom_ops/kernels/attention_softmax/attention_softmax.h"

namespace tftrain {

inline bool ReferenceKept(const AttentionShape& shape, const Dropout& dropout, int64_t row, int64_t key) {
  const ProbabilityDraws draws(dropout, shape.SampleOf(row), shape.ElementsPerSample());
  return draws.Of(shape.ElementOf(row) + key) >= static_cast<uint32_t>(dropout.drop_below);
}

// Whether the query comes before the key, in a causal attention.
inline bool ReferenceBefore(const AttentionShape& shape, int64_t row, int64_t key) {
  return shape.causal && row % shape.queries + (shape.keys - shape.queries) < key;
}

inline double ReferenceKeepScale(const Dropout& dropout) { return 65536.0 / (65536 - dropout.drop_below); }

inline void ReferenceAttentionSoftmax(const AttentionShape& shape, double scale, const Dropout& dropout,
                                      const double* scores, const int32_t* key_mask, double* probabilities,
                                      double* dropped) {
  for (int64_t row = 0; row < shape.rows(); ++row) {
    const int32_t* mask = key_mask + shape.SampleOf(row) * shape.keys;
    const auto attended = [&](int64_t k) { return mask[k] > 0 && !ReferenceBefore(shape, row, k); };
    const int64_t begin = row * shape.keys;
    double largest = -INFINITY;
    for (int64_t k = 0; k < shape.keys; ++k) {
      if (attended(k)) largest = std::max(largest, scale * scores[begin + k]);
    }
    double sum = 0;
    for (int64_t k = 0; k < shape.keys; ++k) {
      probabilities[begin + k] = attended(k) ? std::exp(scale * scores[begin + k] - largest) : 0;
      sum += probabilities[begin + k];
    }
    for (int64_t k = 0; k < shape.keys; ++k) {
      if (sum > 0) probabilities[begin + k] /= sum;
      const bool kept = ReferenceKept(shape, dropout, row, k);
      dropped[begin + k] = kept ? probabilities[begin + k] * ReferenceKeepScale(dropout) : 0;
    }
  }
}

inline void ReferenceAttentionSoftmaxGradient(const AttentionShape& shape, double scale, const Dropout& dropout,
                                              const double* ddropped, const double* probabilities, double* dscores) {
  for (int64_t row = 0; row < shape.rows(); ++row) {
    const int64_t begin = row * shape.keys;
    double sum = 0;
    for (int64_t k = 0; k < shape.keys; ++k) {
      if (ReferenceBefore(shape, row, k)) continue;
      const bool kept = ReferenceKept(shape, dropout, row, k);
      dscores[begin + k] = kept ? ddropped[begin + k] * ReferenceKeepScale(dropout) : 0;
      sum += dscores[begin + k] * probabilities[begin + k];
    }
    for (int64_t k = 0; k < shape.keys; ++k) {
      dscores[begin + k] = ReferenceBefore(shape, row, k)
                               ? 0
                               : scale * probabilities[begin + k] * (dscores[begin + k] - sum);
    }
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_REFERENCE_H_
