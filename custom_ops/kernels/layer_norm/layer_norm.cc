#include "custom_ops/kernels/layer_norm/layer_norm.h"

#include "custom_ops/kernels/common/row_chunks.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/layer_norm/layer_norm-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const LayerNormForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLayerNorm(args, parallel_for));
}

void Launch(const LayerNormBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLayerNorm(args, parallel_for));
}

}  // namespace tftrain
