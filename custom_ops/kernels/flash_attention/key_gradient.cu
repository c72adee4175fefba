// The gradients of flash attention's keys and values on the GPU; see gradient.cuh. A block has a range of keys of a head
// and walks down the tiles of queries, of one head that shares the keys after the other. Rows of scores are keys here, so
// that weights and gradients of scores are left operands in registers once more.
#include "custom_ops/kernels/flash_attention/gradient.cuh"

namespace tftrain::cuda {
namespace {

// Puts the dropped probabilities, but for their factor, in place of the products of keys and queries, and the gradients of
// the scores, but for the scale, in place of those of the dropped probabilities.
template <int kTiles, typename Kept>
__device__ __forceinline__ void GradientsOfColumns(const ScoreRule& rule, const float* log_sum_exp, const float* dot,
                                                   const Kept& kept, float keep_scale, float (&scores)[kTiles][4],
                                                   float (&gradients)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = 8 * j + LaneColumn() + i % 2;
      const bool is_kept = kept(j, i);
      const float p = Exp2Approx(rule.Less(scores[j][i], log_sum_exp[query]));
      scores[j][i] = is_kept ? p : 0.0f;
      gradients[j][i] = p * ((is_kept ? gradients[j][i] * keep_scale : 0.0f) - dot[query]);
    }
  }
}

template <typename T, int kHead, bool kDropout>
__global__ void __launch_bounds__(FlashForm<FlashPass::kKeyGradient, T, kHead>::kThreads,
                                  FlashBlocks<FlashPass::kKeyGradient, T, kHead, kDropout>)
    FlashKeyGradientKernel(const __grid_constant__ FlashAttentionBackward args, const float* dots, float keep_scale) {
  using Form = FlashForm<FlashPass::kKeyGradient, T, kHead>;
  using Shared = FlashShared<FlashPass::kKeyGradient, T, kHead>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile, kStep = Form::kStep, kOut = Form::kOut;
  const FlashShape& shape = args.shape;
  const FlashBlock<FlashPass::kKeyGradient, T, kHead> block(args);
  auto walk = block.Walk(args);

  // Walks to the next tile, from one of this head, and may begin to copy it. What is known of it goes to shared memory at
  // once, because the products need almost all registers.
  const auto next_tile = [&](int turn, int head, bool copies) {
    FlashTile<kTile> tile;
    if (!walk.Next(&tile, block.FirstHead() + static_cast<int>(shape.group) - 1, &head)) return false;
    if (copies) block.CopyTile(tile.first, args.query, args.dcontext, turn, head);
    FlashColumns<kTile>& columns = Shared::columns(turn);
    if (block.warp == 0) {
      block.StoreCodes(tile, turn);
      columns.first = tile.first;
      columns.is_full = tile.is_full;
      columns.head = head;
    }
    return true;
  };
  // The rest passes through the registers of the first warp, so that nobody waits for it.
  float log_sum_exp[kTile / kWarp] = {}, dot[kTile / kWarp] = {};
  const auto read_columns = [&](const FlashColumns<kTile>& columns) {
    if (block.warp != 0) return;
    const int64_t numbers = block.numbers(columns.head);
#pragma unroll
    for (int i = 0; i < kTile / kWarp; ++i) {
      const int query = columns.first + i * kWarp + block.lane;
      log_sum_exp[i] = LogSumExpOf(args.log_sum_exp + numbers, query, block.length);
      dot[i] = query < block.length ? dots[numbers + query] : 0.0f;
    }
  };
  const auto store_columns = [&](FlashColumns<kTile>& columns) {
    if (block.warp != 0) return;
#pragma unroll
    for (int i = 0; i < kTile / kWarp; ++i) {
      columns.log_sum_exp[i * kWarp + block.lane] = log_sum_exp[i];
      columns.dot[i * kWarp + block.lane] = dot[i];
    }
    columns.slope = ScoreRule::SlopeOf(args.mask, args.scale, columns.head);
    if (kDropout) columns.element = shape.ElementOf(columns.head, columns.first);
  };

  block.CopyOwnRows(args.key, 0);
  block.CopyOwnRows(args.value, 1);
  CommitCopies();
  bool has_tile = next_tile(0, block.FirstHead(), true);
  if (has_tile) {
    read_columns(Shared::columns(0));
    store_columns(Shared::columns(0));
  }
  WaitForCopies();
  __syncthreads();
  // With three blocks, a thread has no registers for both.
  constexpr bool kHoldsValues = Form::kHoldsRows && FlashBlocks<FlashPass::kKeyGradient, T, kHead, kDropout> < 3;
  const RowOperand<T, kHead, kRowTiles, Form::kHoldsRows> keys(Shared::warp_rows(0));
  const RowOperand<T, kHead, kRowTiles, kHoldsValues> values(Shared::warp_rows(1));

  const int first_row = block.first_row();
  const int first_key = first_row + LaneGroup();
  Fragments<kRowTiles, kOut> dkey = {}, dvalue = {};

  for (int turn = 0; has_tile; turn ^= 1) {
    WaitForCopies();
    __syncthreads();  // the tile is there, and all warps have done with the other one
    FlashColumns<kTile>&columns = Shared::columns(turn), &next = Shared::columns(turn ^ 1);
    const bool has_next = next_tile(turn ^ 1, columns.head, Form::kStages == 2);
    const auto queries = Shared::tile(turn, 0), dcontext = Shared::tile(turn, 1);

#pragma unroll 1
    for (int step = 0; step < kTile; step += kStep) {
      Fragments<kRowTiles, kStep> weights, gradients;
      MultiplyOverHead<kStep>(keys, {queries.at(step, 0)}, weights);
      MultiplyOverHead<kStep>(values, {dcontext.at(step, 0)}, gradients);
      // What is needed only now is read only now, because the products need almost all registers.
      if (step + kStep == kTile && has_next) read_columns(next);
      const FlashDraws draws = DrawsOf<kDropout>(args.dropout, block.place.sample, shape.ElementsPerSample());
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
        if (!columns.is_full) {
          const int key = first_key + 16 * r;
          const int32_t row_codes[2] = {block.tokens.template Code<true>(key), block.tokens.template Code<true>(key + 8)};
          MaskTile(false, block.rule, columns.slope, row_codes, columns.code + step, columns.first + step - key, weights[r]);
        }
        const float *const log_sum_exps = columns.log_sum_exp + step, *const dots_of_tile = columns.dot + step;
        if constexpr (kDropout) {
          const int64_t begin = columns.element + step * shape.length + first_row + 16 * r;
          const KeptOfColumns<kStep> kept(draws, begin, block.length);
          GradientsOfColumns(block.rule, log_sum_exps, dots_of_tile, kept, keep_scale, weights[r], gradients[r]);
        } else {
          GradientsOfColumns(block.rule, log_sum_exps, dots_of_tile, AllKept(), 1.0f, weights[r], gradients[r]);
        }
      }
      MultiplyOverRows<T>(weights, HeadRows<T, kHead>{dcontext.at(step, 0)}, block.first_out, dvalue);
      MultiplyOverRows<T>(gradients, HeadRows<T, kHead>{queries.at(step, 0)}, block.first_out, dkey);
    }

    if (has_next) store_columns(next);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      block.CopyTile(next.first, args.query, args.dcontext, 0, next.head);
    }
    has_tile = has_next;
  }

  float key_factors[kRowTiles][2], value_factors[kRowTiles][2];
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    key_factors[r][0] = key_factors[r][1] = args.scale;
    value_factors[r][0] = value_factors[r][1] = keep_scale;
  }
  block.Store(dkey, key_factors, 0, args.dkey);
  block.Store(dvalue, value_factors, 1, args.dvalue);
}

}  // namespace

CudaError LaunchKeyGradient(const FlashAttentionBackward& args, const float* dot, const CudaStream& stream) {
  const auto kernel_of = [](auto t, auto head, auto dropout) {
    return FlashKeyGradientKernel<decltype(t), head, dropout>;
  };
  return LaunchFlash<FlashPass::kKeyGradient>(args, stream, kernel_of, dot);
}

}  // namespace tftrain::cuda
