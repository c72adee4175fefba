// Attention without a tensor of length x length elements (Dao et al., "FlashAttention", arXiv 2205.14135):
//
//   context = dropout(softmax(scale * query key' + bias)) value     for each head
//
// in tiles of queries and keys. The softmax is online: each row has its largest score so far and the sum of exponentials
// relative to it, in fp32. Backward computes the tiles again from the log-sum-exp of each row.
//
// A query attends to the keys of its sample that the mask leaves; if it is causal, only to those up to its own position;
// with sequence ids, only to those with its own id; with a window, only to those no further away than that. A query
// without keys has the context zero, and no gradient. Several heads of queries may share a head of keys and values: head
// h has number h / group. The bias of a head is its slope times (key - query). The draws of the dropout are those of
// attention_softmax.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_H_

#include <cstdint>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/philox.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

constexpr int64_t kFlashHeadMultiple = 8;  // the head size is a multiple of this
constexpr int64_t kFlashMostHeadSize = 256;

struct FlashShape {
  int64_t batch;
  int64_t length;
  int64_t heads;
  int64_t head_size;
  int64_t first_head;   // of these heads among all
  int64_t total_heads;  // at least first_head + heads
  bool causal = false;
  int64_t window = -1;  // the largest distance from a query to a key that it attends to; negative: any
  int64_t group = 1;     // heads of queries that share a head of keys and values, a divisor of heads
  int64_t kv_heads = heads / group;  // follows from the others

  TFTRAIN_HOST_DEVICE int64_t row_stride() const { return heads * head_size; }  // from a token to the next
  TFTRAIN_HOST_DEVICE int64_t Offset(int64_t sample, int64_t head, int64_t token) const {
    return (sample * length + token) * row_stride() + head * head_size;
  }
  TFTRAIN_HOST_DEVICE int64_t kv_stride() const { return kv_heads * head_size; }
  TFTRAIN_HOST_DEVICE int64_t KvOffset(int64_t sample, int64_t kv_head, int64_t token) const {
    return (sample * length + token) * kv_stride() + kv_head * head_size;
  }
  TFTRAIN_HOST_DEVICE int64_t LseOffset(int64_t sample, int64_t head) const {
    return (sample * heads + head) * length;
  }
  TFTRAIN_HOST_DEVICE int64_t ElementsPerSample() const { return total_heads * length * length; }
  // A query at i attends to the keys from i - before() to i + after(), as far as they exist.
  TFTRAIN_HOST_DEVICE int64_t before() const { return window < 0 || window > length ? length : window; }
  TFTRAIN_HOST_DEVICE int64_t after() const { return causal ? 0 : before(); }
  // A query's first element in its sample.
  TFTRAIN_HOST_DEVICE int64_t ElementOf(int64_t head, int64_t query) const {
    return ((first_head + head) * length + query) * length;
  }
};

struct FlashMask {
  const int32_t* keys;      // [batch, length]: positive for a key, else padding
  const int32_t* sequence_ids;  // [batch, length]; null: a sample is one sequence
  const float* slopes;      // [heads]; null: no bias
};

struct FlashAttentionForward {
  FlashShape shape;
  float scale;
  Dropout dropout;
  DType dtype;        // of query, key, value and context
  const void* query;  // [batch, length, heads, head_size]
  const void* key;    // [batch, length, kv_heads, head_size]
  const void* value;
  FlashMask mask;
  void* context;        // like query
  float* log_sum_exp;   // [batch, heads, length]; minus infinity for a query without keys
};

// With p the probabilities, and g = (dcontext value') / keep rate where kept, else 0:
//   dvalue = dropout(p)' dcontext
//   dscores = p * (g - sum over keys of p * g), where the sum is also that of dcontext * context over the head
//   dquery = scale * dscores key;  dkey = scale * dscores' query.
// The gradients of shared keys and values are sums over their heads of queries, in the order of these.
struct FlashAttentionBackward {
  FlashShape shape;
  float scale;
  Dropout dropout;
  DType dtype;           // of all tensors but log_sum_exp
  const void* dcontext;  // like query
  const void* query;
  const void* key;
  const void* value;
  FlashMask mask;
  const void* context;  // as forward has made them
  const float* log_sum_exp;
  void* dquery;  // like query
  void* dkey;    // like key
  void* dvalue;
  // On a GPU, whether the gradients of queries of 16 bits are added up by atomic additions, in any order.
  bool atomic = false;
};

void Launch(const FlashAttentionForward& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const FlashAttentionBackward& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const FlashAttentionForward& args, const CudaStream& stream);
CudaError Launch(const FlashAttentionBackward& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_FLASH_ATTENTION_H_
