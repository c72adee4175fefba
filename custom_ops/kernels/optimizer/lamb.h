// LAMB (arXiv 1904.00962) and AdamW (arXiv 1711.05101) over many tensors at once, in place. With g = gradient * factor:
//
//   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//   u = (m * m_correction) / (sqrt(v * v_correction) + epsilon) + weight_decay * w,   w = w - rate * u
//
// The factor unscales and clips. AdamW's rate is the learning rate, one pass of 28 bytes for each parameter. LAMB's is that
// times |w| / |u| of each tensor, which is known only when all u are; u is then computed twice rather than stored, and the
// two passes move 24 + 16 bytes. With the global norm of the gradients before them, that is 44. A caller that holds shards
// of tensors sums the squares over ranks between the passes.
//
// Gradients are of any storage type, and are read as they are. Weights and moments are fp32. If a tensor has a copy of 16
// bits, the weights' update writes its rounded weights there, so that no other pass reads them.
//
// A factor of 0 skips the update: no weight and no moment changes, for any gradients.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_H_

#include <cstdint>
#include <vector>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/target.h"
#include "custom_ops/kernels/cuda/stream.h"

namespace tftrain {

// The scalars of one update, which all its tensors share, in their order in memory.
struct UpdateScalars {
  float gradient_factor;
  float learning_rate;
  float beta1;
  float beta2;
  float minus_one_minus_beta1;  // beta1 - 1
  float one_minus_beta2;
  float m_correction;  // 1 / (1 - beta1^t)
  float v_correction;
};

constexpr int64_t kUpdateScalars = sizeof(UpdateScalars) / sizeof(float);

// One tensor, or the part of one that a rank holds.
struct UpdateTensor {
  int64_t size;
  const void* gradient;  // not read by LambWeights
  float* m;              // updated, but by LambWeights
  float* v;              // updated, but by LambWeights
  float* weight;         // updated, but by LambMoments
  DType gradient_dtype = DType::kFloat32;
  DType copy_dtype = DType::kBFloat16;  // of 16 bits
  void* copy = nullptr;                 // written, but by LambMoments; null: none
};

// The first pass of LAMB: moments, and the sums of squares for the trust ratios.
struct LambMoments {
  std::vector<UpdateTensor> tensors;
  float epsilon;
  const UpdateScalars* scalars;
  const float* weight_decays;  // one for each tensor
  float* weight_squares;       // one for each tensor
  float* update_squares;       // one for each tensor
};

// The second pass of LAMB.
struct LambWeights {
  std::vector<UpdateTensor> tensors;
  float epsilon;
  const UpdateScalars* scalars;
  const float* weight_decays;  // one for each tensor
  const float* rates;          // one for each tensor: learning rate times trust ratio
};

// AdamW in one pass.
struct AdamW {
  std::vector<UpdateTensor> tensors;
  float epsilon;
  const UpdateScalars* scalars;
  const float* weight_decays;  // one for each tensor
};

struct SquaredNorms {
  std::vector<int64_t> sizes;
  std::vector<const void*> tensors;
  std::vector<DType> dtypes;
  float* squares;  // one for each tensor
};

// Bitwise the same for any number of threads.
void Launch(const LambMoments& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const LambWeights& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const AdamW& args, const ParallelFor& parallel_for, Target target = BestTarget());
void Launch(const SquaredNorms& args, const ParallelFor& parallel_for, Target target = BestTarget());
CudaError Launch(const LambMoments& args, const CudaStream& stream);
CudaError Launch(const LambWeights& args, const CudaStream& stream);
CudaError Launch(const AdamW& args, const CudaStream& stream);
CudaError Launch(const SquaredNorms& args, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_OPTIMIZER_LAMB_H_
