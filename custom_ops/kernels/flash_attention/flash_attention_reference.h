// Attention as plain loops in fp64, with all scores of a row: the specification that the flash kernels are tested against.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_REFERENCE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "custom_ops/kernels/flash_attention/flash_attention.h"

namespace tftrain {

struct FlashReference {
  FlashShape shape;
  double scale;
  Dropout dropout;
  FlashMask mask;
  const double* query;  // [batch, length, heads, head_size]
  const double* key;    // [batch, length, kv_heads, head_size], and so is value
  const double* value;

  bool Attends(int64_t sample, int64_t q, int64_t k) const {
    const int64_t tokens = sample * shape.length;
    if (mask.keys[tokens + k] <= 0 || (shape.causal && k > q)) return false;
    if (shape.window >= 0 && std::abs(q - k) > shape.window) return false;
    return mask.sequence_ids == nullptr || mask.sequence_ids[tokens + q] == mask.sequence_ids[tokens + k];
  }

  // Of a key that a head of queries reads.
  int64_t KeyOffset(int64_t sample, int64_t head, int64_t k) const {
    return shape.KvOffset(sample, head / shape.group, k);
  }

  // Of a tensor like queries and one like keys.
  double Dot(const double* a, int64_t q, const double* b, int64_t k, int64_t sample, int64_t head) const {
    const double* const x = a + shape.Offset(sample, head, q);
    const double* const y = b + KeyOffset(sample, head, k);
    double sum = 0;
    for (int64_t i = 0; i < shape.head_size; ++i) sum += x[i] * y[i];
    return sum;
  }

  // The probabilities of a query before dropout, and the factor that dropout gives each; returns the log-sum-exp.
  double Row(int64_t sample, int64_t head, int64_t q, std::vector<double>* p, std::vector<double>* factor) const {
    const ProbabilityDraws draws(dropout, sample, shape.ElementsPerSample());
    p->assign(shape.length, 0);
    factor->assign(shape.length, 0);
    double largest = -INFINITY;
    for (int64_t k = 0; k < shape.length; ++k) {
      if (!Attends(sample, q, k)) continue;
      const double bias = mask.slopes == nullptr ? 0 : mask.slopes[head] * static_cast<double>(k - q);
      (*p)[k] = scale * Dot(query, q, key, k, sample, head) + bias;
      largest = std::max(largest, (*p)[k]);
    }
    double sum = 0;
    for (int64_t k = 0; k < shape.length; ++k) {
      if (!Attends(sample, q, k)) continue;
      (*p)[k] = std::exp((*p)[k] - largest);
      sum += (*p)[k];
      if (draws.Of(shape.ElementOf(head, q) + k) < static_cast<uint32_t>(dropout.drop_below)) continue;
      (*factor)[k] = 65536.0 / (65536 - dropout.drop_below);
    }
    for (double& each : *p) each /= sum > 0 ? sum : 1;
    return largest + std::log(sum);
  }

  void Forward(double* context, double* log_sum_exp) const {
    std::vector<double> p, factor;
    for (int64_t sample = 0; sample < shape.batch; ++sample) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t q = 0; q < shape.length; ++q) {
          log_sum_exp[shape.LseOffset(sample, head) + q] = Row(sample, head, q, &p, &factor);
          double* const row = context + shape.Offset(sample, head, q);
          std::fill(row, row + shape.head_size, 0.0);
          for (int64_t k = 0; k < shape.length; ++k) {
            if (p[k] != 0) AddScaled(p[k] * factor[k], value + KeyOffset(sample, head, k), row);
          }
        }
      }
    }
  }

  // Adds to dquery, dkey and dvalue.
  void Backward(const double* dcontext, double* dquery, double* dkey, double* dvalue) const {
    std::vector<double> p, factor;
    for (int64_t sample = 0; sample < shape.batch; ++sample) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t q = 0; q < shape.length; ++q) {
          Row(sample, head, q, &p, &factor);
          const int64_t row = shape.Offset(sample, head, q);
          double sum = 0;
          for (int64_t k = 0; k < shape.length; ++k) {
            if (p[k] == 0) continue;  // most keys of a window
            AddScaled(p[k] * factor[k], dcontext + row, dvalue + KeyOffset(sample, head, k));
            factor[k] *= Dot(dcontext, q, value, k, sample, head);
            sum += p[k] * factor[k];
          }
          for (int64_t k = 0; k < shape.length; ++k) {
            if (p[k] == 0) continue;
            const double dscore = scale * p[k] * (factor[k] - sum);
            AddScaled(dscore, key + KeyOffset(sample, head, k), dquery + row);
            AddScaled(dscore, query + row, dkey + KeyOffset(sample, head, k));
          }
        }
      }
    }
  }

  void AddScaled(double factor, const double* from, double* to) const {
    for (int64_t i = 0; i < shape.head_size; ++i) to[i] += factor * from[i];
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_REFERENCE_H_
