#include "custom_ops/kernels/elementwise/geglu.h"

#include <type_traits>

#include "custom_ops/kernels/common/row_chunks.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/elementwise/geglu-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const GegluForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGeglu(args, parallel_for));
}

void Launch(const GegluBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunGeglu(args, parallel_for));
}

}  // namespace tftrain
