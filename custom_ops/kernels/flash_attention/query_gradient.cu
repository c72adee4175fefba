// The gradient of flash attention's queries on the GPU; see gradient.cuh. As in forward, a block has a range of
// queries of a head and walks down the tiles of keys.
#include "custom_ops/kernels/flash_attention/gradient.cuh"

namespace tftrain::cuda {
namespace {

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

template <typename T, int kHead, bool kDropout>
__global__ void __launch_bounds__(FlashForm<FlashPass::kQueryGradient, T, kHead>::kThreads,
                                  FlashBlocks<FlashPass::kQueryGradient, T, kHead, kDropout>)
    FlashQueryGradientKernel(const __grid_constant__ FlashAttentionBackward args, float* dots, float keep_scale) {
  using Form = FlashForm<FlashPass::kQueryGradient, T, kHead>;
  using Shared = FlashShared<FlashPass::kQueryGradient, T, kHead>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile, kStep = Form::kStep;
  const FlashShape& shape = args.shape;
  const FlashPlace place(shape, Form::kRows, shape.causal);
  const SampleTokens tokens(shape, args.mask, place.sample);
  const ScoreRule rule(shape, args.mask, args.scale, place.head);
  const FlashDraws draws = DrawsOf<kDropout>(args.dropout, place.sample, shape.ElementsPerSample());
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int length = tokens.length, head_size = static_cast<int>(shape.head_size);
  const int first_out = static_cast<int>(blockIdx.y) * Form::kOut;
  const int64_t stride = shape.row_stride();
  const int64_t offset = shape.Offset(place.sample, place.head, 0);
  TileWalk<true, Form::kRows, kTile> walk(shape, args.mask, args.scale, tokens, place.first_row);

  const auto copy_tile = [&](const FlashTile<kTile>& tile, int stage) {
    const int64_t at = offset + tile.first * stride;
    CopyRows<kTile, Form::kThreads>(static_cast<const T*>(args.key) + at, stride, length - tile.first, head_size,
                                    Shared::tile(stage, 0));
    CopyRows<kTile, Form::kThreads>(static_cast<const T*>(args.value) + at, stride, length - tile.first, head_size,
                                    Shared::tile(stage, 1));
    CommitCopies();
  };
  const auto store_codes = [&](const FlashTile<kTile>& tile, int turn) {
    if (warp != 0) return;
#pragma unroll
    for (int i = 0; i < kTile / kWarp; ++i) Shared::columns(turn).code[i * kWarp + lane] = tile.code[i];
  };

  FlashTile<kTile> tile, next;
  bool has_tile = walk.Next(&tile);
  const int64_t own = offset + place.first_row * stride;
  CopyRows<Form::kRows, Form::kThreads>(static_cast<const T*>(args.query) + own, stride, length - place.first_row,
                                        head_size, Shared::rows(0));
  CopyRows<Form::kRows, Form::kThreads>(static_cast<const T*>(args.dcontext) + own, stride, length - place.first_row,
                                        head_size, Shared::rows(1));
  CommitCopies();
  if (has_tile) {
    copy_tile(tile, 0);
    store_codes(tile, 0);
  }

  const int first_query = place.first_row + warp * Form::kWarpRows + LaneGroup();
  const int64_t numbers = shape.LseOffset(place.sample, place.head);
  int32_t row_codes[kRowTiles][2];
  float log_sum_exp[kRowTiles][2], dot[kRowTiles][2], factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * r + 8 * half;
      row_codes[r][half] = tokens.template Code<false>(query);
      log_sum_exp[r][half] = LogSumExpOf(args.log_sum_exp + numbers, query, length);
      const int64_t at = offset + query * stride;
      const int columns = query < length ? head_size : 0;
      dot[r][half] =
          DotOfQuery(static_cast<const T*>(args.dcontext) + at, static_cast<const T*>(args.context) + at, columns);
      if (query < length && lane % 4 == 0 && first_out == 0) dots[numbers + query] = dot[r][half];
      factors[r][half] = args.scale;
    }
  }

  WaitForCopies();
  __syncthreads();
  const RowOperand<T, kHead, kRowTiles, Form::kHoldsRows> queries(Shared::warp_rows(0)), dcontext(Shared::warp_rows(1));
  Fragments<kRowTiles, Form::kOut> dquery = {};
  for (int turn = 0; has_tile; turn ^= 1) {
    WaitForCopies();
    __syncthreads();  // the tile is there, and all warps have done with the other one
    const bool has_next = walk.Next(&next);
    if (Form::kStages == 2 && has_next) copy_tile(next, turn ^ 1);
    const auto keys = Shared::tile(turn, 0), values = Shared::tile(turn, 1);

#pragma unroll 1
    for (int step = 0; step < kTile; step += kStep) {
      Fragments<kRowTiles, kStep> scores, gradients;
      MultiplyOverHead<kStep>(queries, {keys.at(step, 0)}, scores);
      MultiplyOverHead<kStep>(dcontext, {values.at(step, 0)}, gradients);
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const int query = first_query + 16 * r;
        if (!tile.is_full) {
          MaskTile(true, rule, row_codes[r], Shared::columns(turn).code + step, tile.first + step - query, scores[r]);
        }
        if constexpr (kDropout) {
          const int64_t begin = shape.ElementOf(place.head, query) + tile.first + step;
          const KeptOfRows<kStep> kept(draws, {begin, begin + 8 * shape.length});
#pragma unroll
          for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) gradients[r][j][i] = kept(j, i) ? gradients[r][j][i] * keep_scale : 0.0f;
          }
        }
#pragma unroll
        for (int j = 0; j < kStep / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float p = Exp2Approx(rule.Less(scores[r][j][i], log_sum_exp[r][i / 2]));
            scores[r][j][i] = p * (gradients[r][j][i] - dot[r][i / 2]);
          }
        }
      }
      MultiplyOverRows<T>(scores, HeadRows<T, kHead>{keys.at(step, 0)}, first_out, dquery);
    }

    if (has_next) store_codes(next, turn ^ 1);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      copy_tile(next, 0);
    }
    tile = next;
    has_tile = has_next;
  }
  const int first_row = place.first_row + warp * Form::kWarpRows;
  StoreFragments(dquery, factors, Shared::warp_rows(0), length - first_row, head_size - first_out,
                 static_cast<T*>(args.dquery) + offset + first_row * stride + first_out, stride);
}

}  // namespace

CudaError LaunchQueryGradient(const FlashAttentionBackward& args, float* dot, const CudaStream& stream) {
  CudaError error = nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithHead(args.shape.head_size, [&](auto head) {
      using Form = FlashForm<FlashPass::kQueryGradient, T, head>;
      const auto kernel =
          args.dropout.drop_below > 0 ? FlashQueryGradientKernel<T, head, true> : FlashQueryGradientKernel<T, head, false>;
      error = LaunchFlash<Form>(FlashShared<FlashPass::kQueryGradient, T, head>::kBytes, kernel, args.shape, stream, args,
                                dot, KeepScale(args.dropout));
    });
  });
  return error;
}

}  // namespace tftrain::cuda

namespace tftrain {

CudaError Launch(const FlashAttentionBackward& args, const CudaStream& stream) {
  const FlashShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.length == 0) return nullptr;
  if (CudaError error = cuda::CheckFlash(shape, args.dcontext, args.query, args.key, args.value, args.context, args.dquery,
                                         args.dkey, args.dvalue)) {
    return error;
  }
  float* dot = nullptr;
  if (CudaError error = TakeWorkspace(stream, shape.batch * shape.heads * shape.length, &dot)) return error;
  if (CudaError error = cuda::LaunchQueryGradient(args, dot, stream)) return error;
  return cuda::LaunchKeyGradient(args, dot, stream);
}

}  // namespace tftrain
