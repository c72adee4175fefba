// What the blocks of all passes of flash attention begin with: the part of the scores that a block computes, its own rows in
// shared memory, and the walk down the tiles of columns. Rows are queries and columns keys, or in the gradients of keys and
// values the other way round.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_BLOCK_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_BLOCK_CUH_

#include <cstdint>
#include <string>

#include "custom_ops/kernels/flash_attention/dropout.cuh"
#include "custom_ops/kernels/flash_attention/form.cuh"

namespace tftrain::cuda {

// Where a head's tokens are in queries or in keys.
struct HeadAddress {
  int64_t offset;
  int64_t stride;  // from a token to the next
};

// How many heads the rows of a pass have.
template <FlashPass kPass>
TFTRAIN_HOST_DEVICE int64_t RowHeads(const FlashShape& shape) {
  return kRowsAreKeys<kPass> ? shape.kv_heads : shape.heads;
}

template <FlashPass kPass, typename T, int kHead, bool kNarrow = false>
struct FlashBlock {
  using Form = FlashForm<kPass, T, kHead, kNarrow>;
  using Shared = FlashShared<kPass, T, kHead, kNarrow>;
  using Tile = FlashTile<Form::kTile>;
  static constexpr bool kColumnsAreKeys = !kRowsAreKeys<kPass>;

  template <typename Args>
  __device__ __forceinline__ explicit FlashBlock(const Args& args)
      : shape(args.shape),
        place(shape, RowHeads<kPass>(shape), Form::kRows, kColumnsAreKeys && shape.causal),
        tokens(shape, args.mask, place.sample),
        rule(shape, args.mask, args.scale, FirstHead()),
        warp(threadIdx.x / kWarp),
        lane(threadIdx.x % kWarp),
        length(tokens.length),
        head_size(static_cast<int>(shape.head_size)),
        first_out(static_cast<int>(blockIdx.y) * Form::kOut),
        own(kColumnsAreKeys ? HeadAddress{shape.Offset(place.sample, place.head, 0), shape.row_stride()}
                            : HeadAddress{shape.KvOffset(place.sample, place.head, 0), shape.kv_stride()}) {}

  // The walk down the tiles of columns. It changes, and nothing else here does, so that all else can be computed again where
  // registers are scarce.
  template <typename Args>
  __device__ __forceinline__ TileWalk<kColumnsAreKeys, Form::kRows, Form::kTile> Walk(const Args& args) const {
    return {shape, args.mask, args.scale, tokens, place.first_row};
  }

  // The first row of the warp.
  __device__ __forceinline__ int first_row() const { return place.first_row + warp * Form::kWarpRows; }

  // The offset of the head where a query has one number.
  __device__ __forceinline__ int64_t numbers(int head) const { return shape.LseOffset(place.sample, head); }

  // The first head of queries that the block computes with; where rows are keys, the others that share them follow.
  __device__ __forceinline__ int FirstHead() const {
    return static_cast<int>(kColumnsAreKeys ? place.head : place.head * shape.group);
  }

  // Where the columns are that belong to a head of queries.
  __device__ __forceinline__ HeadAddress Columns(int head) const {
    if (!kColumnsAreKeys) return {shape.Offset(place.sample, head, 0), shape.row_stride()};
    return {shape.KvOffset(place.sample, head / static_cast<int>(shape.group), 0), shape.kv_stride()};
  }

  // Begins to copy the block's rows of a tensor.
  __device__ __forceinline__ void CopyOwnRows(const void* from, int set) const {
    CopyRows<Form::kRows, Form::kThreads>(static_cast<const T*>(from) + own.offset + place.first_row * own.stride,
                                          own.stride, length - place.first_row, head_size, Shared::rows(set));
  }

  // Begins to copy the columns of a tile of two tensors, from `column` on, that belong to a head of queries.
  __device__ __forceinline__ void CopyTile(int column, const void* first, const void* second, int stage, int head) const {
    const auto [offset, stride] = Columns(head);
    const int64_t at = offset + column * stride;
    CopyRows<Form::kTile, Form::kThreads>(static_cast<const T*>(first) + at, stride, length - column, head_size,
                                          Shared::tile(stage, 0));
    CopyRows<Form::kTile, Form::kThreads>(static_cast<const T*>(second) + at, stride, length - column, head_size,
                                          Shared::tile(stage, 1));
    CommitCopies();
  }

  // Writes the codes of a tile's columns to shared memory, in the first warp.
  __device__ __forceinline__ void StoreCodes(const Tile& tile, int turn) const {
    if (warp != 0) return;
#pragma unroll
    for (int i = 0; i < Form::kTile / kWarp; ++i) Shared::columns(turn).code[i * kWarp + lane] = tile.code[i];
  }

  // Writes the results of the warp's rows, times their factors; they pass through the set's rows in shared memory.
  template <int kOutTiles>
  __device__ __forceinline__ void Store(const float (&fragments)[Form::kRowTiles][kOutTiles][4],
                                        const float (&factors)[Form::kRowTiles][2], int set, void* to) const {
    StoreFragments(fragments, factors, Shared::warp_rows(set), length - first_row(), head_size - first_out,
                   static_cast<T*>(to) + own.offset + first_row() * own.stride + first_out, own.stride);
  }

  const FlashShape& shape;
  const FlashPlace place;
  const SampleTokens tokens;
  const ScoreRule rule;
  const int warp, lane;
  const int length, head_size;
  const int first_out;    // the first column of the results
  const HeadAddress own;  // of the rows
};

// The problem with a GPU whose blocks have less shared memory than the kernel takes, in words that last until the next one.
inline CudaError TooLittleShared(int64_t head_size, int64_t bytes) {
  thread_local std::string message;
  message = "flash attention with heads of " + std::to_string(head_size) + " takes " + std::to_string(bytes) +
            " bytes of shared memory, and " + GpuName() + " has " + std::to_string(MostSharedBytes()) +
            " for a block; choose another --attn_impl than flash";
  return message.c_str();
}

// Launches the kernel that kernel_of(T(), Number<head>(), Number<dropout>(), Number<narrow>()) returns, with the arguments
// args, extra..., and the factor of kept weights: a block for each range of rows of each head, and of the columns of its
// results.
template <FlashPass kPass, typename Args, typename KernelOf, typename... Extra>
CudaError LaunchFlash(const Args& args, const CudaStream& stream, const KernelOf& kernel_of, const Extra&... extra) {
  CudaError error = nullptr;
  const FlashShape& shape = args.shape;
  const auto launch = [&](auto t, auto head, auto narrow) {
    using Form = FlashForm<kPass, decltype(t), head, narrow>;
    constexpr int64_t kBytes = FlashShared<kPass, decltype(t), head, narrow>::kBytes;
    if (kBytes > kLeastSharedBytes && kBytes > MostSharedBytes()) {  // a launch asks the driver only if it must
      error = TooLittleShared(shape.head_size, kBytes);
      return;
    }
    const auto kernel =
        args.dropout.drop_below > 0 ? kernel_of(t, head, Number<1>(), narrow) : kernel_of(t, head, Number<0>(), narrow);
    const int64_t blocks = shape.batch * RowHeads<kPass>(shape) * DivideUp(shape.length, Form::kRows);
    if (blocks > INT32_MAX) {
      error = "flash attention has more blocks than a launch may have";
      return;
    }
    const int parts = DivideUp(shape.head_size, Form::kOut);
    LaunchSharing(kBytes, kernel, {static_cast<int>(blocks), parts}, Form::kThreads, stream.handle, args, extra...,
                  KeepScale(args.dropout));
    error = LastError();
  };
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithHead(shape.head_size, [&](auto head) {
      if constexpr (kPass == FlashPass::kAllGradients && std::is_same_v<T, float>) {
        error = "flash attention's gradients of fp32 are not added up atomically";
      } else if constexpr (FlashShared<kPass, T, head>::kBytes > kLeastSharedBytes &&
                           FlashShared<kPass, T, head, true>::kBytes <= kLeastSharedBytes) {
        const bool is_narrow = FlashShared<kPass, T, head>::kBytes > MostSharedBytes();
        is_narrow ? launch(T(), head, Number<1>()) : launch(T(), head, Number<0>());
      } else {
        launch(T(), head, Number<0>());
      }
    });
  });
  return error;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_BLOCK_CUH_
