// How a sum over rows is cut for threads: into chunks that depend on the number of rows alone, each summed in order and
// then added in order. So the result is bitwise the same for any number of threads, and a long sum loses less precision.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_ROW_CHUNKS_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_ROW_CHUNKS_H_

#include <algorithm>
#include <cstdint>

namespace tftrain {

struct RowChunks {
  explicit RowChunks(int64_t rows) : rows(rows), size(std::max<int64_t>(32, (rows + 63) / 64)) {}

  int64_t count() const { return (rows + size - 1) / size; }
  int64_t begin(int64_t chunk) const { return chunk * size; }
  int64_t end(int64_t chunk) const { return std::min(rows, (chunk + 1) * size); }

  int64_t rows;
  int64_t size;  // rows in a chunk, fewer in the last
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_ROW_CHUNKS_H_
