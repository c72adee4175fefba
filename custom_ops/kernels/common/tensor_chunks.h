// How many tensors are cut for threads at once: into chunks of one tensor each, by sizes alone. Sums over a tensor add up
// its chunks' sums in order, so they are bitwise the same for any number of threads.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TENSOR_CHUNKS_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TENSOR_CHUNKS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tftrain {

struct TensorChunk {
  int64_t tensor;
  int64_t begin;
  int64_t end;
};

constexpr int64_t kChunkElements = 1 << 15;

// `sizes[i]` elements in tensor i.
inline std::vector<TensorChunk> CutTensors(const std::vector<int64_t>& sizes) {
  std::vector<TensorChunk> chunks;
  for (size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (int64_t begin = 0; begin < sizes[tensor]; begin += kChunkElements) {
      chunks.push_back({static_cast<int64_t>(tensor), begin, std::min(sizes[tensor], begin + kChunkElements)});
    }
  }
  return chunks;
}

// Adds up one number of each chunk, over the chunks of each tensor.
inline void SumChunks(const std::vector<TensorChunk>& chunks, const std::vector<double>& parts, int64_t tensors,
                      float* sums) {
  std::vector<double> totals(tensors);
  for (size_t i = 0; i < chunks.size(); ++i) totals[chunks[i].tensor] += parts[i];
  for (int64_t tensor = 0; tensor < tensors; ++tensor) sums[tensor] = static_cast<float>(totals[tensor]);
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TENSOR_CHUNKS_H_
