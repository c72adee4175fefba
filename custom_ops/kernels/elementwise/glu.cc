#include "custom_ops/kernels/elementwise/glu.h"

#include <type_traits>

#include "custom_ops/kernels/common/row_chunks.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/elementwise/glu-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const GluForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGlu(args, parallel_for));
}

void Launch(const GluBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGlu(args, parallel_for));
}

}  // namespace tftrain
