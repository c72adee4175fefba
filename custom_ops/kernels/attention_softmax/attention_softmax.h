// The softmax of attention scores, with scale, padding mask and dropout in one pass over each row of keys:
//
//   probabilities = softmax(scale * scores) over the keys that the mask leaves; zeros where it leaves none
//   dropped = probabilities / keep rate where the element is kept, else 0
//
// If it is causal, a query has only the keys up to its own position. Nothing is computed for the keys after it: what the
// inputs hold there does not matter, and all results are zero there.
//
// Element e of a sample, for the draws of its dropout, is (head * queries + query) * keys + key, the head counted over
// all ranks that share the heads.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/philox.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

struct AttentionShape {
  int64_t batch;
  int64_t heads;
  int64_t queries;
  int64_t keys;
  int64_t first_head;   // of these heads among all
  int64_t total_heads;  // at least first_head + heads
  bool causal = false;  // the last query has all keys, and each one before it a key less; needs queries <= keys

  TFTRAIN_HOST_DEVICE int64_t rows() const { return batch * heads * queries; }
  TFTRAIN_HOST_DEVICE int64_t SampleOf(int64_t row) const { return row / (heads * queries); }
  // The number of keys up to the position of a query, or of a row's query; all keys if it is not causal.
  TFTRAIN_HOST_DEVICE int64_t KeyEnd(int64_t query) const { return causal ? keys - queries + query + 1 : keys; }
  TFTRAIN_HOST_DEVICE int64_t KeyEndOfRow(int64_t row) const { return causal ? KeyEnd(row % queries) : keys; }
  TFTRAIN_HOST_DEVICE int64_t ElementsPerSample() const { return total_heads * queries * keys; }
  // The row's first element in its sample.
  TFTRAIN_HOST_DEVICE int64_t ElementOf(int64_t row) const {
    return (first_head * queries + row % (heads * queries)) * keys;
  }
};

struct AttentionSoftmaxForward {
  AttentionShape shape;
  float scale;
  Dropout dropout;
  DType dtype;              // of scores, probabilities and dropped
  const void* scores;       // [batch, heads, queries, keys]
  const int32_t* key_mask;  // [batch, keys]: positive for a key, else padding
  void* probabilities;      // like scores
  void* dropped;            // like scores; null exactly where there is no dropout
};

// With g = ddropped / keep rate where kept, else 0:
//   dscores = scale * probabilities * (g - sum over keys of probabilities * g).
// Backward computes dropped again, for the gradient of the values, so that it need not be stored.
struct AttentionSoftmaxBackward {
  AttentionShape shape;
  float scale;
  Dropout dropout;
  DType dtype;                // of all tensors
  const void* ddropped;       // [batch, heads, queries, keys]
  const void* probabilities;  // as forward has made them
  void* dscores;
  void* dropped;  // null exactly where there is no dropout
};

void Launch(const AttentionSoftmaxForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const AttentionSoftmaxBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const AttentionSoftmaxForward& args, const CudaStream& stream);
CudaError Launch(const AttentionSoftmaxBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ATTENTION_SOFTMAX_ATTENTION_SOFTMAX_H_
