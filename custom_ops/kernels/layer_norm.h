// Layer normalization (Ba et al., arXiv 1607.06450) of rows, with an optional residual added in front:
//
//   sum = x + residual;  y = (sum - mean(sum)) * rstd * gamma + beta,  rstd = 1 / sqrt(variance(sum) + epsilon)
//
// Statistics are fp32 whatever the storage type, with the variance of a second pass over the row, and are kept for the
// backward pass. The sum is rounded to the storage type first, so that both passes normalize the same numbers.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_H_

#include <cstdint>

#include "custom_ops/kernels/dtype.h"
#include "custom_ops/kernels/parallel.h"
#include "custom_ops/kernels/target.h"

namespace tftrain {

struct LayerNormForward {
  int64_t rows;
  int64_t hidden;
  float epsilon;
  DType dtype;            // of x, residual, y and sum
  DType parameter_dtype;  // of gamma and beta
  const void* x;          // [rows, hidden]
  const void* residual;   // [rows, hidden], or null
  const void* gamma;      // [hidden]
  const void* beta;       // [hidden]
  void* y;                // [rows, hidden]
  void* sum;              // [rows, hidden]; null exactly where residual is
  float* mean;            // [rows]
  float* rstd;            // [rows]
};

// With n = (sum - mean) * rstd and g = dy * gamma:
//   dx = rstd * (g - mean(g) - n * mean(g * n)) + dsum,  dgamma = sum over rows of dy * n,  dbeta = sum over rows of dy.
// The residual's gradient is dx too.
struct LayerNormBackward {
  int64_t rows;
  int64_t hidden;
  DType dtype;            // of dy, dsum, sum and dx
  DType parameter_dtype;  // of gamma, dgamma and dbeta
  const void* dy;         // [rows, hidden]
  const void* dsum;       // [rows, hidden], the gradient that reaches the sum by other ways, or null
  const void* sum;        // [rows, hidden], what was normalized
  const void* gamma;      // [hidden]
  const float* mean;      // [rows]
  const float* rstd;      // [rows]
  void* dx;               // [rows, hidden]
  void* dgamma;           // [hidden]
  void* dbeta;            // [hidden]
};

// Bitwise the same for any number of threads.
void Launch(const LayerNormForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const LayerNormBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_H_
