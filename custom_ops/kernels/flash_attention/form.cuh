// How the kernels of flash attention divide a head. The numbers follow from the registers of a thread, 255, and the shared
// memory of a block: 163 KiB on A100, 227 KiB on H100, 99 KiB on GPUs of compute capability 8.6 and 8.9.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FORM_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FORM_CUH_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "custom_ops/kernels/flash_attention/flash_attention.h"
#include "custom_ops/kernels/flash_attention/mask.cuh"
#include "custom_ops/kernels/flash_attention/product.cuh"

namespace tftrain::cuda {

constexpr int64_t kLeastSharedBytes = 99 << 10;  // of a block, on the GPUs of compute capability 8.6 and 8.9

enum class FlashPass { kForward, kQueryGradient, kKeyGradient, kAllGradients };

template <FlashPass kPass>
constexpr bool kRowsAreKeys = kPass == FlashPass::kKeyGradient || kPass == FlashPass::kAllGradients;

// For rows of T that are padded to kHead numbers. The narrow form is for GPUs with less shared memory than the other takes.
template <FlashPass kPass, typename T, int kHead, bool kNarrow = false>
struct FlashForm {
  static constexpr bool kTensorCores = !std::is_same_v<T, float>;
  static constexpr bool kIsForward = kPass == FlashPass::kForward;

  // Tiles of 16 rows of a warp. With two, what it reads of a column serves twice as many products, and shared memory is no
  // limit to tensor cores.
  static constexpr int kMostOfTwo = kIsForward ? 96 : kPass == FlashPass::kQueryGradient ? 64 : 32;
  static constexpr int kRowTiles = kTensorCores && kHead <= kMostOfTwo ? 2 : 1;
  // Columns that a warp computes at once, and columns that are copied at once.
  static constexpr int kStep = kIsForward && kTensorCores && (kHead <= 64 || kHead == 128) ? 64 : 32;
  static constexpr bool kOneStep = kIsForward || kPass == FlashPass::kAllGradients ||
                                   (kPass == FlashPass::kKeyGradient && kHead <= 64);
  static constexpr int kTile = kOneStep ? kStep : kTensorCores && kHead < 128 ? 64 : 32;
  // Tiles in shared memory: with two, one is copied while the other is computed with.
  static constexpr int kStages = kTensorCores ? 2 : 1;
  // 8 warps share what is copied. They are as many as registers allow on a multiprocessor, so they need not fit twice.
  static constexpr int kLeastWide = kPass == FlashPass::kAllGradients ? 64 : 128;
  static constexpr bool kIsWide = kTensorCores && !kNarrow && kHead >= kLeastWide && kHead <= 128;
  static constexpr int kWarps = kIsWide ? 8 : !kTensorCores && kHead > 128 ? 2 : 4;
  static constexpr int kThreads = kWarps * kWarp;
  static constexpr int kWarpRows = 16 * kRowTiles;
  static constexpr int kRows = kWarps * kWarpRows;
  // Left operands in registers: as many as the sums leave.
  static constexpr bool kHoldsRows = kTensorCores && kHead <= (kRowTiles == 2 ? 32 : 64);
  // Columns of the results that a block sums up. With a larger head, several blocks compute the same scores.
  static constexpr int kMostOut = kTensorCores && !kRowsAreKeys<kPass> ? 256 : 128;
  static constexpr int kOut = kHead > 128 && !kTensorCores ? 64 : std::min(kHead, kMostOut);
};

// The least number of blocks that a multiprocessor is to hold, which bounds the registers of a thread: with a smaller number
// nvcc spills to hold more. Where dropout makes most of the work, more warps hide more of it.
template <FlashPass kPass, typename T, int kHead, bool kDropout, bool kNarrow = false>
constexpr int FlashBlocks = FlashForm<kPass, T, kHead, kNarrow>::kWarps == 8 ? 1
                            : kPass == FlashPass::kKeyGradient && sizeof(T) == 2 && kHead == 64 && kDropout ? 3
                                                                                                           : 2;

// What a kernel reads of the columns of a tile beside their rows.
template <int kTile>
struct FlashColumns {
  int32_t code[kTile];
  float log_sum_exp[kTile];  // to base 2; this and the others are there only where columns are queries
  float dot[kTile];
  int64_t element;  // of the first query among those that dropout draws
  int head;         // of these queries
  float slope;
  int first;  // this and the next are the tile's
  bool is_full;
};

// The shared memory of a block: two sets of own rows (in forward one), two of columns for each stage, what is known of them;
// with all gradients at once those of the scores, a row for each key.
template <FlashPass kPass, typename T, int kHead, bool kNarrow = false>
struct FlashShared {
  using Form = FlashForm<kPass, T, kHead, kNarrow>;
  using Rows = HeadRows<T, kHead>;
  static constexpr int kSets = Form::kIsForward ? 1 : 2;
  static constexpr int64_t kRowBytes = Rows::Bytes(Form::kRows), kTileBytes = Rows::Bytes(Form::kTile);
  static constexpr int64_t kColumnsAt = kSets * kRowBytes + 2 * Form::kStages * kTileBytes;
  using Scores = HeadRows<T, Form::kStep>;
  static constexpr int64_t kScoresAt = kColumnsAt + 2 * static_cast<int64_t>(sizeof(FlashColumns<Form::kTile>));
  static constexpr int64_t kBytes =
      kScoresAt + (kPass == FlashPass::kAllGradients ? Scores::Bytes(Form::kRows) : 0);
  static_assert(kScoresAt % 16 == 0);

  __device__ static Rows rows(int set) { return {reinterpret_cast<T*>(DynamicShared() + set * kRowBytes)}; }
  __device__ static Rows tile(int stage, int set) {
    const int turn = Form::kStages == 1 ? set : 2 * stage + set;
    return {reinterpret_cast<T*>(DynamicShared() + kSets * kRowBytes + turn * kTileBytes)};
  }
  __device__ static FlashColumns<Form::kTile>& columns(int turn) {
    return reinterpret_cast<FlashColumns<Form::kTile>*>(DynamicShared() + kColumnsAt)[turn];
  }

  __device__ static Scores scores() { return {reinterpret_cast<T*>(DynamicShared() + kScoresAt)}; }

  // Those of the calling warp.
  __device__ static Rows warp_rows(int set) { return {rows(set).at(FirstOfWarp(), 0)}; }
  __device__ static Scores warp_scores() { return {scores().at(FirstOfWarp(), 0)}; }
  __device__ static int FirstOfWarp() { return static_cast<int>(threadIdx.x) / kWarp * Form::kWarpRows; }
};

// Calls run(Number<head>()) with the padded head size of the narrowest kernel.
template <typename Run>
void WithHead(int64_t head_size, const Run& run) {
  if (head_size <= 32) return run(Number<32>());
  if (head_size <= 64) return run(Number<64>());
  if (head_size <= 80) return run(Number<80>());
  if (head_size <= 96) return run(Number<96>());
  if (head_size <= 128) return run(Number<128>());
  run(Number<256>());
}

// Whether the kernels can copy these tensors.
template <typename... Pointers>
CudaError CheckFlash(const FlashShape& shape, Pointers... pointers) {
  if (!Aligned16(0, pointers...)) return "flash attention expects tensors that are aligned to 16 bytes";
  if (shape.length > INT32_MAX / 2) return "flash attention expects a length below 2^30";
  return nullptr;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FORM_CUH_
