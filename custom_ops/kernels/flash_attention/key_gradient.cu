// The gradients of flash attention's keys and values on the GPU; see gradient.cuh.
#include "custom_ops/kernels/flash_attention/key_gradient.cuh"

namespace tftrain::cuda {

CudaError LaunchKeyGradient(const FlashAttentionBackward& args, const float* dot, const CudaStream& stream) {
  const auto kernel_of = [](auto t, auto head, auto dropout, auto narrow) {
    return FlashKeyGradientKernel<FlashPass::kKeyGradient, decltype(t), head, dropout, narrow>;
  };
  float* const no_dquery = nullptr;
  return LaunchFlash<FlashPass::kKeyGradient>(args, stream, kernel_of, dot, no_dquery);
}

}  // namespace tftrain::cuda
