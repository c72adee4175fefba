// What the two passes of flash attention's gradients share. Both compute each score again. One has a range of queries in
// each block and sums up their gradients over the keys; the other has keys and sums up over the queries. So each sum is in
// one thread and in one order, for 7 products of a tile where atomic additions would need 5.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_

#include "custom_ops/kernels/flash_attention/block.cuh"

namespace tftrain::cuda {

// The pass over queries: writes dquery, and for each query the sum of dcontext * context to `dot`, [batch, heads, length].
CudaError LaunchQueryGradient(const FlashAttentionBackward& args, float* dot, const CudaStream& stream);

// The pass over keys: writes dkey and dvalue.
CudaError LaunchKeyGradient(const FlashAttentionBackward& args, const float* dot, const CudaStream& stream);

// A query's log-sum-exp to base 2. Behind the end it is so large that all probabilities are zero; without keys it does not
// matter, but infinity less infinity would be no number.
__device__ __forceinline__ float LogSumExpOf(const float* of_head, int query, int length) {
  if (query >= length) return INFINITY;
  return of_head[query] == -INFINITY ? 0.0f : of_head[query] * kLog2E;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_
