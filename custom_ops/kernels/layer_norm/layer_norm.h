// Layer normalization (Ba et al., arXiv 1607.06450) of rows:
//
//   y = (x - mean(x)) * rstd * gamma + beta,  rstd = 1 / sqrt(variance(x) + epsilon)
//
// and RMSNorm (Zhang and Sennrich, arXiv 1910.07467), which neither centres nor shifts:
//
//   y = x * rstd * gamma,  rstd = 1 / sqrt(mean(x^2) + epsilon)
//
// Statistics are fp32 for every storage type. A second pass over the row computes the variance. The backward pass uses
// the statistics of the forward pass. The kernels are templates of `centred`, so that RMSNorm does nothing in vain.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

struct LayerNormForward {
  int64_t rows;
  int64_t hidden;
  bool centred;  // layer normalization; without it RMSNorm, which has no beta and no mean
  float epsilon;
  DType dtype;            // of x and y
  DType parameter_dtype;  // of gamma and beta
  const void* x;          // [rows, hidden]
  const void* gamma;      // [hidden]
  const void* beta;       // [hidden]
  void* y;                // [rows, hidden]
  float* mean;            // [rows]
  float* rstd;            // [rows]
};

// With n = (x - mean) * rstd and g = dy * gamma:
//   dx = rstd * (g - mean(g) - n * mean(g * n)),  dgamma = sum over rows of dy * n,  dbeta = sum over rows of dy;
// with n = x * rstd in RMSNorm:
//   dx = rstd * (g - n * mean(g * n)),  dgamma = sum over rows of dy * n.
struct LayerNormBackward {
  int64_t rows;
  int64_t hidden;
  bool centred;  // see LayerNormForward; without it there is no mean and no dbeta
  DType dtype;            // of dy, x and dx
  DType parameter_dtype;  // of gamma, dgamma and dbeta
  const void* dy;         // [rows, hidden]
  const void* x;          // [rows, hidden]
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
CudaError Launch(const LayerNormForward& args, const CudaStream& stream);
CudaError Launch(const LayerNormBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_LAYER_NORM_LAYER_NORM_H_
