// The end of each sub-layer of a block: y = residual + dropout(x + bias). Backward draws the mask again.
//
// Element e of a sample, for the draws, is its place in the sample's [rows, hidden], the rows counted over all ranks
// that share the sample.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/philox.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

// Which rows of its samples a rank has.
struct RowRange {
  int64_t first = 0;
  int64_t total = 0;  // at least first + rows; 0: these rows are all
};

// The element of row `row`, counted over all samples, at which the row begins in its sample.
template <typename Args>
TFTRAIN_HOST_DEVICE int64_t FirstElement(const Args& args, int64_t row) {
  return (args.range.first + row % args.rows) * args.hidden;
}

template <typename Args>
TFTRAIN_HOST_DEVICE int64_t ElementsPerSample(const Args& args) {
  return (args.range.total ? args.range.total : args.rows) * args.hidden;
}

struct BiasDropoutAddForward {
  int64_t samples;
  int64_t rows;  // of a sample
  int64_t hidden;
  Dropout dropout;
  DType dtype;            // of x, residual and y
  DType parameter_dtype;  // of bias
  const void* x;          // [samples, rows, hidden]
  const void* bias;       // [hidden]
  const void* residual;   // like x
  void* y;                // like x
  RowRange range;
};

// dx = dy / keep rate where kept, else 0;  dbias = sum over rows of dx. The residual's gradient is dy.
struct BiasDropoutAddBackward {
  int64_t samples;
  int64_t rows;
  int64_t hidden;
  Dropout dropout;
  DType dtype;            // of dy and dx
  DType parameter_dtype;  // of dbias
  const void* dy;         // [samples, rows, hidden]
  void* dx;               // like dy
  void* dbias;            // [hidden]
  RowRange range;
};

// Bitwise the same for any number of threads.
void Launch(const BiasDropoutAddForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const BiasDropoutAddBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const BiasDropoutAddForward& args, const CudaStream& stream);
CudaError Launch(const BiasDropoutAddBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_BIAS_DROPOUT_ADD_H_
