// How much device memory a CUDA kernel takes for parts of sums. The sizes follow from the shapes alone, because XLA plans
// the memory of a call when it compiles it, perhaps on a machine without a GPU. A launcher makes no more parts than these.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_WORKSPACE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_WORKSPACE_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/kernels/common/tensor_chunks.h"

namespace tftrain {

// The kernels access 16 bytes at once. XLA aligns all memory of a call to 16 bytes or more, TensorFlow to 64.
constexpr int64_t kWorkspaceAlignment = 16;

// Sums over rows fill a GPU of this size, larger than any of today. On a larger GPU some multiprocessors would stay idle.
constexpr int64_t kMostMultiprocessors = 192;

// The most blocks of a kernel whose blocks process whole rows: two on each multiprocessor, and more of narrow rows.
inline int64_t MostRowParts(int64_t rows, int64_t columns) {
  constexpr int64_t kNumbers = 1 << 20;
  const int64_t most =
      std::clamp(kNumbers / std::max<int64_t>(1, columns), 2 * kMostMultiprocessors, 32 * kMostMultiprocessors);
  return std::clamp<int64_t>(rows, 1, most);
}

// The most blocks, one below the other, of a kernel whose blocks process the rows of a tile of columns: so many that the
// blocks of all tiles fill every multiprocessor with its 2048 threads.
inline int64_t MostTileParts(int64_t rows, int64_t columns) {
  constexpr int64_t kWidestTile = 256;
  constexpr int64_t kBlocks = kMostMultiprocessors * 2048 / 256;
  const int64_t tiles = std::max<int64_t>(1, (columns + kWidestTile - 1) / kWidestTile);
  return std::clamp<int64_t>(rows, 1, std::max<int64_t>(1, kBlocks / tiles));
}

// The most chunks of so many tensors (tensor_chunks.h) with so many elements together.
inline int64_t MostChunks(int64_t tensors, int64_t elements) { return elements / kChunkElements + tensors; }

// Bytes for `sums` sums over the rows of [rows, columns]: at most 4 MiB for each sum, or 1.5 KiB for each column if that is
// more.
inline int64_t RowSumsBytes(int64_t rows, int64_t columns, int64_t sums) {
  return MostRowParts(rows, columns) * columns * sums * static_cast<int64_t>(sizeof(float));
}

// The same for tiles of columns: at most 1.5 MiB for each sum, or a row of fp32 if that is more.
inline int64_t TileSumsBytes(int64_t rows, int64_t columns, int64_t sums) {
  return MostTileParts(rows, columns) * columns * sums * static_cast<int64_t>(sizeof(float));
}

// Bytes for `sums` sums over each of several tensors: 4 for each sum of a tensor, and 4 more for every 32768 elements.
inline int64_t ChunkSumsBytes(int64_t tensors, int64_t elements, int64_t sums) {
  return MostChunks(tensors, elements) * sums * static_cast<int64_t>(sizeof(float));
}

// Bytes for a number for each query of each head, which flash attention's gradient subtracts; if it adds up the gradients of
// queries atomically, for these sums too.
inline int64_t FlashGradientBytes(int64_t batch, int64_t length, int64_t heads, int64_t head_size, bool atomic) {
  return batch * length * heads * (1 + (atomic ? head_size : 0)) * static_cast<int64_t>(sizeof(float));
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_WORKSPACE_H_
