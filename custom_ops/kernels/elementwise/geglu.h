// GeGLU (Shazeer, arXiv 2002.05202) of rows, with optional biases added in front:
//
//   y = gelu(gate + gate_bias) * (up + up_bias)
//
// The sums are fp32 and nowhere stored: backward makes them again from gate and up. See gelu.h for gelu.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

struct GegluForward {
  int64_t rows;
  int64_t columns;
  bool approximate;       // the tanh form
  DType dtype;            // of gate, up and y
  DType parameter_dtype;  // of the biases
  const void* gate;       // [rows, columns]
  const void* up;         // [rows, columns]
  const void* gate_bias;  // [columns], or null
  const void* up_bias;    // [columns]; null exactly where gate_bias is
  void* y;                // [rows, columns]
};

// With z = gate + gate_bias:
//   dgate = dy * (up + up_bias) * gelu'(z),  dup = dy * gelu(z);
// the biases' gradients are their sums over rows, in fp32 before they are rounded.
struct GegluBackward {
  int64_t rows;
  int64_t columns;
  bool approximate;
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
void Launch(const GegluForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const GegluBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const GegluForward& args, const CudaStream& stream);
CudaError Launch(const GegluBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_GEGLU_H_
