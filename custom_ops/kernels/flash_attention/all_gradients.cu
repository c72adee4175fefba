// All gradients of flash attention on the GPU in one pass over the keys; see gradient.cuh. Before it, a kernel makes the sums of
// the queries' gradients zero, and after it another rounds them.
#include "custom_ops/kernels/flash_attention/key_gradient.cuh"

namespace tftrain::cuda {
namespace {

constexpr int kQuadsOfBlock = 64;

// A quad has a query of a head: writes the sum of dcontext * context to `dots`, and zeros to `sums`, which is like dquery.
template <typename T>
__global__ void BeginGradientsKernel(const __grid_constant__ FlashAttentionBackward args, float* sums, float* dots) {
  const FlashShape& shape = args.shape;
  const int64_t row = int64_t{blockIdx.x} * kQuadsOfBlock + threadIdx.x / 4;  // [batch, length, heads]
  const bool exists = row < shape.batch * shape.length * shape.heads;
  const int head_size = exists ? static_cast<int>(shape.head_size) : 0;
  const int64_t first = row * shape.head_size;
  const float dot =
      DotOfQuery(static_cast<const T*>(args.dcontext) + first, static_cast<const T*>(args.context) + first, head_size);
  for (int i = threadIdx.x % 4 * 4; i < head_size; i += 16) Pack<float, 4>{}.Store(sums + first + i);
  if (!exists || threadIdx.x % 4 != 0) return;
  const int64_t token = row / shape.heads;
  dots[shape.LseOffset(token / shape.length, row % shape.heads) + token % shape.length] = dot;
}

template <typename T>
__global__ void EndGradientsKernel(const __grid_constant__ FlashAttentionBackward args, const float* sums, int64_t packs) {
  const int64_t pack = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (pack >= packs) return;
  float low[4], high[4], values[8];
  Pack<float, 4>::Load(sums + 8 * pack).Decode(low);
  Pack<float, 4>::Load(sums + 8 * pack + 4).Decode(high);
#pragma unroll
  for (int i = 0; i < 8; ++i) values[i] = args.scale * (i < 4 ? low[i % 4] : high[i % 4]);
  Pack<T, 8>::Encode(values).Store(static_cast<T*>(args.dquery) + 8 * pack);
}

}  // namespace

CudaError LaunchAllGradients(const FlashAttentionBackward& args, const CudaStream& stream) {
  const FlashShape& shape = args.shape;
  const int64_t queries = shape.batch * shape.length * shape.heads, packs = queries * shape.head_size / 8;
  float* sums = nullptr;
  if (CudaError error = TakeWorkspace(stream, 8 * packs + queries, &sums)) return error;
  float* const dots = sums + 8 * packs;
  const int threads = 4 * kQuadsOfBlock;
  if (packs > INT32_MAX) return "flash attention has more blocks than a launch may have";
  const auto with_half = [&](const auto& run) { args.dtype == DType::kFloat16 ? run(Half()) : run(BFloat16()); };
  with_half([&](auto t) {
    LaunchKernel(BeginGradientsKernel<decltype(t)>, {DivideUp(queries, kQuadsOfBlock)}, threads, stream.handle, args, sums,
                 dots);
  });
  if (CudaError error = LastError()) return error;
  const auto kernel_of = [](auto t, auto head, auto dropout, auto narrow) {
    return FlashKeyGradientKernel<FlashPass::kAllGradients, decltype(t), head, dropout, narrow>;
  };
  if (CudaError error = LaunchFlash<FlashPass::kAllGradients>(args, stream, kernel_of, dots, sums)) return error;
  with_half([&](auto t) {
    LaunchKernel(EndGradientsKernel<decltype(t)>, {DivideUp(packs, threads)}, threads, stream.handle, args, sums, packs);
  });
  return LastError();
}

}  // namespace tftrain::cuda
