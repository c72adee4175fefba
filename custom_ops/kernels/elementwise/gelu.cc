#include "custom_ops/kernels/elementwise/gelu.h"

#include <type_traits>

#include "custom_ops/kernels/common/row_chunks.h"
#include "custom_ops/kernels/elementwise/activation.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/elementwise/gelu-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const GeluForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGelu(args, parallel_for));
}

void Launch(const GeluBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGelu(args, parallel_for));
}

}  // namespace tftrain
