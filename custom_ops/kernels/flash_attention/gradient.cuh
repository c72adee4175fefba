// What the passes of flash attention's gradients share. There are two ways, and both compute each score again:
// - Two passes. One has a range of queries in each block and sums up their gradients over the keys; the other has keys and
//   sums up over the queries. So each sum is in one thread and in one order, for 7 products of a tile.
// - One pass, whose blocks have keys and add what they know of the queries' gradients to sums in memory. That takes 5
//   products, but the sums are in any order.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_

#include "custom_ops/kernels/flash_attention/block.cuh"

namespace tftrain::cuda {

// The pass over queries: writes dquery, and for each query the sum of dcontext * context to `dot`, [batch, heads, length].
CudaError LaunchQueryGradient(const FlashAttentionBackward& args, float* dot, const CudaStream& stream);

// The pass over keys: writes dkey and dvalue.
CudaError LaunchKeyGradient(const FlashAttentionBackward& args, const float* dot, const CudaStream& stream);

// The pass over keys that makes all gradients, with what comes before and after it.
CudaError LaunchAllGradients(const FlashAttentionBackward& args, const CudaStream& stream);

// A query's log-sum-exp to base 2. Behind the end it is so large that all probabilities are zero; without keys it does not
// matter, but infinity less infinity would be no number.
__device__ __forceinline__ float LogSumExpOf(const float* of_head, int query, int length) {
  if (query >= length) return INFINITY;
  return of_head[query] == -INFINITY ? 0.0f : of_head[query] * kLog2E;
}

// The sum over the head of dcontext * context of a query, in all lanes of the quad.
template <typename T>
__device__ __forceinline__ float DotOfQuery(const T* dcontext, const T* context, int head_size) {
  constexpr int kSize = kWidest<T>;
  float sum = 0;
  for (int i = threadIdx.x % 4 * kSize; i < head_size; i += 4 * kSize) {
    float a[kSize], b[kSize];
    Pack<T, kSize>::Load(dcontext + i).Decode(a);
    Pack<T, kSize>::Load(context + i).Decode(b);
#pragma unroll
    for (int x = 0; x < kSize; ++x) sum = fmaf(a[x], b[x], sum);
  }
  return SumOfQuad(sum);
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_GRADIENT_CUH_
