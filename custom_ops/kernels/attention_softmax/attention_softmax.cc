#include "custom_ops/kernels/attention_softmax/attention_softmax.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/attention_softmax/attention_softmax-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const AttentionSoftmaxForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunAttentionSoftmax(args, parallel_for));
}

void Launch(const AttentionSoftmaxBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunAttentionSoftmax(args, parallel_for));
}

}  // namespace tftrain
