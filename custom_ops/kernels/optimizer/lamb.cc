#include "custom_ops/kernels/optimizer/lamb.h"

#include "custom_ops/kernels/common/tensor_chunks.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/optimizer/lamb-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const LambMoments& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLamb(args, parallel_for));
}

void Launch(const LambWeights& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLamb(args, parallel_for));
}

void Launch(const AdamW& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLamb(args, parallel_for));
}

void Launch(const SquaredNorms& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunLamb(args, parallel_for));
}

}  // namespace tftrain
