// The forward pass of flash attention on the GPU, in the form of FlashAttention-2 (Dao, arXiv 2307.08691); see
// flash_attention.h. A block has a range of queries of a head, a warp 16 or 32 of them. It walks down the tiles of keys:
// while it computes with one, the next is copied. Scores and weights stay in registers.
#include "custom_ops/kernels/flash_attention/block.cuh"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

__device__ __forceinline__ float LargestOfQuad(float value) {
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// The online softmax of the rows of a thread, g and g + 8 of each tile of rows.
template <int kRowTiles>
struct RowStates {
  float largest[kRowTiles][2];
  float sum[kRowTiles][2];  // over the columns of this thread alone
};

// Turns the scores of a tile into exponentials relative to each row's largest score so far, and scales what has been summed
// up by the factor that this takes.
template <int kRowTiles, int kTiles, int kOut>
__device__ __forceinline__ void SoftmaxOfTile(const ScoreRule& rule, float (&scores)[kRowTiles][kTiles][4],
                                              RowStates<kRowTiles>& states, float (&context)[kRowTiles][kOut][4]) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        largest = fmaxf(largest, fmaxf(scores[r][j][2 * half], scores[r][j][2 * half + 1]));
      }
      const float before = states.largest[r][half];
      largest = fmaxf(LargestOfQuad(largest) * rule.outer, before);
      states.largest[r][half] = largest;
      const float reference = largest == -INFINITY ? 0.0f : largest;
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[r][j][i] = Exp2Approx(rule.Less(scores[r][j][i], reference));
          sum += scores[r][j][i];
        }
      }
      const float factor = Exp2Approx(before - reference);
      states.sum[r][half] = fmaf(states.sum[r][half], factor, sum);
#pragma unroll
      for (int n = 0; n < kOut; ++n) {
        context[r][n][2 * half] *= factor;
        context[r][n][2 * half + 1] *= factor;
      }
    }
  }
}

template <typename T, int kHead, bool kDropout, bool kNarrow>
__global__ void __launch_bounds__(FlashForm<FlashPass::kForward, T, kHead, kNarrow>::kThreads,
                                  FlashBlocks<FlashPass::kForward, T, kHead, kDropout, kNarrow>)
    FlashForwardKernel(const __grid_constant__ FlashAttentionForward args, float keep_scale) {
  using Form = FlashForm<FlashPass::kForward, T, kHead, kNarrow>;
  using Shared = FlashShared<FlashPass::kForward, T, kHead, kNarrow>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile;
  static_assert(Form::kStep == kTile);
  const FlashShape& shape = args.shape;
  const FlashBlock<FlashPass::kForward, T, kHead, kNarrow> block(args);
  const int head = block.FirstHead();
  auto walk = block.Walk(args);
  const FlashDraws draws = DrawsOf<kDropout>(args.dropout, block.place.sample, shape.ElementsPerSample());

  FlashTile<kTile> tile, next;
  bool has_tile = walk.Next(&tile);
  block.CopyOwnRows(args.query, 0);
  CommitCopies();
  if (has_tile) {
    block.CopyTile(tile.first, args.key, args.value, 0, head);
    block.StoreCodes(tile, 0);
  }
  WaitForCopies();
  __syncthreads();
  const RowOperand<T, kHead, kRowTiles, Form::kHoldsRows> queries(Shared::warp_rows(0));

  const int first_query = block.first_row() + LaneGroup();
  int32_t row_codes[kRowTiles][2];
  RowStates<kRowTiles> states;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_codes[r][half] = block.tokens.template Code<false>(first_query + 16 * r + 8 * half);
      states.largest[r][half] = -INFINITY;
      states.sum[r][half] = 0;
    }
  }
  Fragments<kRowTiles, Form::kOut> context = {};

  for (int turn = 0; has_tile; turn ^= 1) {
    WaitForCopies();
    __syncthreads();  // the tile is there, and all warps have done with the other one
    const bool has_next = walk.Next(&next);
    if (Form::kStages == 2 && has_next) block.CopyTile(next.first, args.key, args.value, turn ^ 1, head);

    Fragments<kRowTiles, kTile> scores;
    MultiplyOverHead<kTile>(queries, Shared::tile(turn, 0), scores);
    if (!tile.is_full) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MaskTile(true, block.rule, block.rule.slope, row_codes[r], Shared::columns(turn).code, tile.first - first_query - 16 * r, scores[r]);
      }
    }
    SoftmaxOfTile(block.rule, scores, states, context);
    if constexpr (kDropout) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const int64_t begin = shape.ElementOf(head, first_query + 16 * r) + tile.first;
        const KeptOfRows<kTile> kept(draws, {begin, begin + 8 * shape.length});
#pragma unroll
        for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[r][j][i] = kept(j, i) ? scores[r][j][i] : 0.0f;
        }
      }
    }
    MultiplyOverRows<T>(scores, Shared::tile(turn, 1), block.first_out, context);

    if (has_next) block.StoreCodes(next, turn ^ 1);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      block.CopyTile(next.first, args.key, args.value, 0, head);
    }
    tile = next;
    has_tile = has_next;
  }

  constexpr float kLn2 = 0.693147181f;
  float factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOfQuad(states.sum[r][half]);
      const bool has_keys = states.largest[r][half] > -INFINITY;
      factors[r][half] = has_keys ? keep_scale / sum : 0.0f;
      const int query = first_query + 16 * r + 8 * half;
      if (query < block.length && block.lane % 4 == 0 && block.first_out == 0) {
        args.log_sum_exp[block.numbers(head) + query] =
            has_keys ? fmaf(states.largest[r][half], kLn2, logf(sum)) : -INFINITY;
      }
    }
  }
  block.Store(context, factors, 0, args.context);
}

}  // namespace

CudaError Launch(const FlashAttentionForward& args, const CudaStream& stream) {
  const FlashShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.length == 0) return nullptr;
  if (CudaError error = CheckFlash(shape, args.query, args.key, args.value, args.context)) return error;
  return LaunchFlash<FlashPass::kForward>(args, stream, [](auto t, auto head, auto dropout, auto narrow) {
    return FlashForwardKernel<decltype(t), head, dropout, narrow>;
  });
}

}  // namespace tftrain
