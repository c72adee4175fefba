// Gated linear units (Shazeer, arXiv 2002.05202) of rows, with optional biases added first:
//
//   y = f(gate + gate_bias) * (up + up_bias)
//
// where f is gelu, in one of its forms, in GeGLU, and silu in SwiGLU. The sums are fp32 and nowhere stored: backward makes
// them again from gate and up.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"
#include "custom_ops/kernels/elementwise/activation.h"

namespace tftrain {

struct GluForward {
  int64_t rows;
  int64_t columns;
  Activation activation;  // f
  DType dtype;            // of gate, up and y
  DType parameter_dtype;  // of the biases
  const void* gate;       // [rows, columns]
  const void* up;         // [rows, columns]
  const void* gate_bias;  // [columns], or null
  const void* up_bias;    // [columns]; null exactly where gate_bias is
  void* y;                // [rows, columns]
};

// With z = gate + gate_bias:
//   dgate = dy * (up + up_bias) * f'(z),  dup = dy * f(z);
// the biases' gradients are their sums over rows, in fp32 before they are rounded.
struct GluBackward {
  int64_t rows;
  int64_t columns;
  Activation activation;  // f
  DType dtype;            // of dy, gate, up, dgate and dup
  DType parameter_dtype;  // of the biases and their gradients
  const void* dy;         // [rows, columns]
  const void* gate;       // [rows, columns]
  const void* up;         // [rows, columns]
  const void* gate_bias;  // [columns], or null, as the three others of the biases
  const void* up_bias;    // [columns]
  void* dgate;            // [rows, columns]
  void* dup;              // [rows, columns]
  void* dgate_bias;       // [columns]
  void* dup_bias;         // [columns]
};

// Bitwise the same for any number of threads.
void Launch(const GluForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const GluBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const GluForward& args, const CudaStream& stream);
CudaError Launch(const GluBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GLU_H_
