#include "custom_ops/kernels/flash_attention/flash_attention.h"

#define TFTRAIN_KERNEL_FILE "custom_ops/kernels/flash_attention/flash_attention-inl.h"
#include "custom_ops/kernels/common/foreach_target.h"

namespace tftrain {

void Launch(const FlashAttentionForward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunFlashAttention(args, parallel_for));
}

void Launch(const FlashAttentionBackward& args, const ParallelFor& parallel_for, Target target) {
  TFTRAIN_DISPATCH(target, RunFlashAttention(args, parallel_for));
}

}  // namespace tftrain
