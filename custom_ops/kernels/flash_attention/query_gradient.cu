// The gradient of flash attention's queries on the GPU; see gradient.cuh. As in forward, a block has a range of
// queries of a head and walks down the tiles of keys.
#include "custom_ops/kernels/flash_attention/gradient.cuh"

namespace tftrain::cuda {
namespace {

template <typename T, int kHead, bool kDropout, bool kNarrow>
__global__ void __launch_bounds__(FlashForm<FlashPass::kQueryGradient, T, kHead, kNarrow>::kThreads,
                                  FlashBlocks<FlashPass::kQueryGradient, T, kHead, kDropout, kNarrow>)
    FlashQueryGradientKernel(const __grid_constant__ FlashAttentionBackward args, float* dots, float keep_scale) {
  using Form = FlashForm<FlashPass::kQueryGradient, T, kHead, kNarrow>;
  using Shared = FlashShared<FlashPass::kQueryGradient, T, kHead, kNarrow>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile, kStep = Form::kStep;
  const FlashShape& shape = args.shape;
  const FlashBlock<FlashPass::kQueryGradient, T, kHead, kNarrow> block(args);
  const int head = block.FirstHead();
  auto walk = block.Walk(args);
  const FlashDraws draws = DrawsOf<kDropout>(args.dropout, block.place.sample, shape.ElementsPerSample());

  FlashTile<kTile> tile, next;
  bool has_tile = walk.Next(&tile);
  block.CopyOwnRows(args.query, 0);
  block.CopyOwnRows(args.dcontext, 1);
  CommitCopies();
  if (has_tile) {
    block.CopyTile(tile.first, args.key, args.value, 0, head);
    block.StoreCodes(tile, 0);
  }

  const int first_query = block.first_row() + LaneGroup();
  const int64_t numbers = block.numbers(head);
  int32_t row_codes[kRowTiles][2];
  float log_sum_exp[kRowTiles][2], dot[kRowTiles][2], factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int query = first_query + 16 * r + 8 * half;
      row_codes[r][half] = block.tokens.template Code<false>(query);
      log_sum_exp[r][half] = LogSumExpOf(args.log_sum_exp + numbers, query, block.length);
      const int64_t at = block.own.offset + query * block.own.stride;
      const int columns = query < block.length ? block.head_size : 0;
      dot[r][half] =
          DotOfQuery(static_cast<const T*>(args.dcontext) + at, static_cast<const T*>(args.context) + at, columns);
      if (query < block.length && block.lane % 4 == 0 && block.first_out == 0) dots[numbers + query] = dot[r][half];
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
    if (Form::kStages == 2 && has_next) block.CopyTile(next.first, args.key, args.value, turn ^ 1, head);
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
          MaskTile(true, block.rule, block.rule.slope, row_codes[r], Shared::columns(turn).code + step, tile.first + step - query, scores[r]);
        }
        if constexpr (kDropout) {
          const int64_t begin = shape.ElementOf(head, query) + tile.first + step;
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
            const float p = Exp2Approx(block.rule.Less(scores[r][j][i], log_sum_exp[r][i / 2]));
            scores[r][j][i] = p * (gradients[r][j][i] - dot[r][i / 2]);
          }
        }
      }
      MultiplyOverRows<T>(scores, HeadRows<T, kHead>{keys.at(step, 0)}, block.first_out, dquery);
    }

    if (has_next) block.StoreCodes(next, turn ^ 1);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      block.CopyTile(next.first, args.key, args.value, 0, head);
    }
    tile = next;
    has_tile = has_next;
  }
  block.Store(dquery, factors, 0, args.dquery);
}

}  // namespace

CudaError LaunchQueryGradient(const FlashAttentionBackward& args, float* dot, const CudaStream& stream) {
  const auto kernel_of = [](auto t, auto head, auto dropout, auto narrow) {
    return FlashQueryGradientKernel<decltype(t), head, dropout, narrow>;
  };
  return LaunchFlash<FlashPass::kQueryGradient>(args, stream, kernel_of, dot);
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
  if (args.atomic) return cuda::LaunchAllGradients(args, stream);
  float* dot = nullptr;
  if (CudaError error = TakeWorkspace(stream, shape.batch * shape.heads * shape.length, &dot)) return error;
  if (CudaError error = cuda::LaunchQueryGradient(args, dot, stream)) return error;
  return cuda::LaunchKeyGradient(args, dot, stream);
}

}  // namespace tftrain
