// The pass of flash attention's gradients whose blocks have a range of keys of a head; see gradient.cuh. A block walks down
// the tiles of queries, of one head that shares the keys after the other. Rows of scores are keys here, so that weights and
// gradients of scores are left operands in registers once more.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_KEY_GRADIENT_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_KEY_GRADIENT_CUH_

#include "custom_ops/kernels/flash_attention/gradient.cuh"

namespace tftrain::cuda {
namespace {  // kernels are of one file

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

// Adds scores' * keys, over all keys of the block, to `rows` rows of `sums`. A warp has 16 columns of the head and one or two
// tiles of 16 queries at once.
template <typename Form, typename T, int kHead, int kQueries>
__device__ __forceinline__ void AddQueryGradients(HeadRows<T, kQueries> scores, HeadRows<T, kHead> keys, int first_out,
                                                  int rows, int head_size, float* sums, int64_t stride) {
  constexpr int kColumnParts = Form::kOut / 16;
  constexpr int kTiles = kColumnParts >= Form::kWarps / 2 + 1 ? 2 : 1;  // of queries, so that most warps have work
  constexpr int kParts = kColumnParts * (kQueries / 16 / kTiles);
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int part = warp; part < kParts; part += Form::kWarps) {
    const int column = first_out + part % kColumnParts * 16, query = part / kColumnParts * 16 * kTiles;
    const SharedAddress left = AddressOf(scores.at(lane % 8 + lane / 16 * 8, query + lane / 8 % 2 * 8));
    const SharedAddress right = AddressOf(keys.at(lane % 16, column + lane / 16 * 8));
    float sum[kTiles][2][4] = {};
#pragma unroll
    for (int k = 0; k < Form::kRows; k += 16) {
      uint32_t b[4];
      LoadMatricesTransposed(b, right + HeadRows<T, kHead>::BytesTo(k, 0));
#pragma unroll
      for (int r = 0; r < kTiles; ++r) {
        uint32_t a[4];
        LoadMatricesTransposed(a, left + HeadRows<T, kQueries>::BytesTo(k, 16 * r));
        Multiply16x8x16(sum[r][0], a, b[0], b[1], T());
        Multiply16x8x16(sum[r][1], a, b[2], b[3], T());
      }
    }
#pragma unroll
    for (int r = 0; r < kTiles; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = query + 16 * r + 8 * half + LaneGroup();
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int at = column + 8 * n + LaneColumn();
          if (row < rows && at < head_size) AddAtomically(sums + row * stride + at, sum[r][n][2 * half], sum[r][n][2 * half + 1]);
        }
      }
    }
  }
}

// With kAllGradients, the gradients of the queries but for the scale are added to `dquery`, fp32 and else like args.dquery.
template <FlashPass kPass, typename T, int kHead, bool kDropout, bool kNarrow>
__global__ void __launch_bounds__(FlashForm<kPass, T, kHead, kNarrow>::kThreads,
                                  FlashBlocks<kPass, T, kHead, kDropout, kNarrow>)
    FlashKeyGradientKernel(const __grid_constant__ FlashAttentionBackward args, const float* dots, float* dquery,
                           float keep_scale) {
  using Form = FlashForm<kPass, T, kHead, kNarrow>;
  using Shared = FlashShared<kPass, T, kHead, kNarrow>;
  constexpr int kRowTiles = Form::kRowTiles, kTile = Form::kTile, kStep = Form::kStep, kOut = Form::kOut;
  const FlashShape& shape = args.shape;
  const FlashBlock<kPass, T, kHead, kNarrow> block(args);
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
      if constexpr (kPass == FlashPass::kAllGradients) {
        StoreToRows(gradients, Shared::warp_scores(), [](int, int, float v) { return v; });
        __syncthreads();
        AddQueryGradients<Form>(Shared::scores(), Shared::rows(0), block.first_out, block.length - columns.first,
                                block.head_size, dquery + shape.Offset(block.place.sample, columns.head, columns.first),
                                shape.row_stride());
      }
    }

    if (has_next) store_columns(next);
    if (Form::kStages == 1 && has_next) {
      __syncthreads();
      block.CopyTile(next.first, args.query, args.dcontext, 0, next.head);
    }
    has_tile = has_next;
  }

  if (kPass == FlashPass::kAllGradients) __syncthreads();  // all warps have done with all keys
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

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_KEY_GRADIENT_CUH_
