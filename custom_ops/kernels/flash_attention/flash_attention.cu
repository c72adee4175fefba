// The forward pass of flash attention on the GPU, in the form of FlashAttention-2 (Dao, arXiv 2307.08691); see
// flash_attention.h. A block has a range of queries of a head, a warp 16 or 32 of them. It walks down the tiles of keys:
// while it computes with one, the next is copied. Scores and weights stay in registers.
#include "custom_ops/kernels/flash_attention/dropout.cuh"
#include "custom_ops/kernels/flash_attention/form.cuh"

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

template <typename T, int kHead, bool kDropout>
__global__ void __launch_bounds__(FlashForm<FlashPass::kForward, T, kHead>::kThreads,
                                  FlashBlocks<FlashPass::kForward, T, kHead, kDropout>)
    FlashForwardKernel(const __grid_constant__ FlashAttentionForward args, float keep_scale) {
  using Form = FlashForm<FlashPass::kForward, T, kHead>;
  using Shared = FlashShared<FlashPass::kForward, T, kHead>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile;
  static_assert(Form::kStep == kTile);
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
  CopyRows<Form::kRows, Form::kThreads>(static_cast<const T*>(args.query) + offset + place.first_row * stride, stride,
                                        length - place.first_row, head_size, Shared::rows(0));
  CommitCopies();
  if (has_tile) {
    copy_tile(tile, 0);
    store_codes(tile, 0);
  }
  WaitForCopies();
  __syncthreads();
  const RowOperand<T, kHead, kRowTiles, Form::kHoldsRows> queries(Shared::warp_rows(0));

  const int first_query = place.first_row + warp * Form::kWarpRows + LaneGroup();
  int32_t row_codes[kRowTiles][2];
  RowStates<kRowTiles> states;
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_codes[r][half] = tokens.template Code<false>(first_query + 16 * r + 8 * half);
      states.largest[r][half] = -INFINITY;
      states.sum[r][half] = 0;
    }
  }
  Fragments<kRowTiles, Form::kOut> context = {};

  for (int turn = 0; has_tile; turn ^= 1) {
    WaitForCopies();
    __syncthreads();  // the tile is there, and all warps have done with the other one
    const bool has_next = walk.Next(&next);
    if (Form::kStages == 2 && has_next) copy_tile(next, turn ^ 1);

    Fragments<kRowTiles, kTile> scores;
    MultiplyOverHead<kTile>(queries, Shared::tile(turn, 0), scores);
    if (!tile.is_full) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        MaskTile(true, rule, row_codes[r], Shared::columns(turn).code, tile.first - first_query - 16 * r, scores[r]);
      }
    }
    SoftmaxOfTile(rule, scores, states, context);
    if constexpr (kDropout) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        const int64_t begin = shape.ElementOf(place.head, first_query + 16 * r) + tile.first;
        const KeptOfRows<kTile> kept(draws, {begin, begin + 8 * shape.length});
#pragma unroll
        for (int j = 0; j < kTile / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) scores[r][j][i] = kept(j, i) ? scores[r][j][i] : 0.0f;
        }
      }
    }
    MultiplyOverRows<T>(scores, Shared::tile(turn, 1), first_out, context);

    if (has_next) store_codes(next, turn ^ 1);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      copy_tile(next, 0);
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
      if (query < length && lane % 4 == 0 && first_out == 0) {
        args.log_sum_exp[shape.LseOffset(place.sample, place.head) + query] =
            has_keys ? fmaf(states.largest[r][half], kLn2, logf(sum)) : -INFINITY;
      }
    }
  }
  const int first_row = place.first_row + warp * Form::kWarpRows;
  StoreFragments(context, factors, Shared::warp_rows(0), length - first_row, head_size - first_out,
                 static_cast<T*>(args.context) + offset + first_row * stride + first_out, stride);
}

}  // namespace

CudaError Launch(const FlashAttentionForward& args, const CudaStream& stream) {
  const FlashShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.length == 0) return nullptr;
  if (CudaError error = CheckFlash(shape, args.query, args.key, args.value, args.context)) return error;
  CudaError error = nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithHead(shape.head_size, [&](auto head) {
      using Form = FlashForm<FlashPass::kForward, T, head>;
      const auto kernel =
          args.dropout.drop_below > 0 ? FlashForwardKernel<T, head, true> : FlashForwardKernel<T, head, false>;
      error = LaunchFlash<Form>(FlashShared<FlashPass::kForward, T, head>::kBytes, kernel, shape, stream, args,
                                KeepScale(args.dropout));
    });
  });
  return error;
}

}  // namespace tftrain
