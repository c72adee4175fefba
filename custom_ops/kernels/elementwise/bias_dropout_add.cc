#include "custom_ops/kernels/elementwise/bias_dropout_add.h"

#include "custom_ops/kernels/common/row_chunks.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/elementwise/bias_dropout_add-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const BiasDropoutAddForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunBiasDropoutAdd(args, parallel_for));
}

void Launch(const BiasDropoutAddBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunBiasDropoutAdd(args, parallel_for));
}

}  // namespace tftrain
