// GeLU (Hendrycks and Gimpel, arXiv 1606.08415) of rows, with an optional bias added first:
//
//   y = gelu(x + bias),  gelu(z) = z Phi(z), or its tanh form z sigmoid(2 sqrt(2 / pi) (z + 0.044715 z^3))
//
// The sum x + bias is fp32 and nowhere stored: backward makes it again from x.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

struct GeluForward {
  int64_t rows;
  int64_t columns;
  bool approximate;       // the tanh form
  DType dtype;            // of x and y
  DType parameter_dtype;  // of bias
  const void* x;          // [rows, columns]
  const void* bias;       // [columns], or null
  void* y;                // [rows, columns]
};

// dx = dy * gelu'(x + bias),  dbias = sum over rows of dx, in fp32 before dx is rounded.
struct GeluBackward {
  int64_t rows;
  int64_t columns;
  bool approximate;
  DType dtype;            // of dy, x and dx
  DType parameter_dtype;  // of bias and dbias
  const void* dy;         // [rows, columns]
  const void* x;          // [rows, columns]
  const void* bias;       // [columns], or null
  void* dx;               // [rows, columns]
  void* dbias;            // [columns]; null exactly where bias is
};

// Bitwise the same for any number of threads.
void Launch(const GeluForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const GeluBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const GeluForward& args, const CudaStream& stream);
CudaError Launch(const GeluBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GELU_H_
