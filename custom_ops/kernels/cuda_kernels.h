// All kernels on an NVIDIA GPU; each op's own header says what the arguments are. The calls return at once; the work is done
// in the stream's order, without a round trip to the host, and bitwise the same in every run on one kind of GPU.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_KERNELS_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_KERNELS_H_

#include "custom_ops/kernels/attention_softmax.h"
#include "custom_ops/kernels/bias_dropout_add.h"
#include "custom_ops/kernels/cuda_stream.h"
#include "custom_ops/kernels/flash_attention.h"
#include "custom_ops/kernels/geglu.h"
#include "custom_ops/kernels/gelu.h"
#include "custom_ops/kernels/lamb.h"
#include "custom_ops/kernels/layer_norm.h"

namespace tftrain {

CudaError Launch(const LayerNormForward& args, const CudaStream& stream);
CudaError Launch(const LayerNormBackward& args, const CudaStream& stream);
CudaError Launch(const AttentionSoftmaxForward& args, const CudaStream& stream);
CudaError Launch(const AttentionSoftmaxBackward& args, const CudaStream& stream);
CudaError Launch(const GeluForward& args, const CudaStream& stream);
CudaError Launch(const GeluBackward& args, const CudaStream& stream);
CudaError Launch(const GegluForward& args, const CudaStream& stream);
CudaError Launch(const GegluBackward& args, const CudaStream& stream);
CudaError Launch(const BiasDropoutAddForward& args, const CudaStream& stream);
CudaError Launch(const BiasDropoutAddBackward& args, const CudaStream& stream);
CudaError Launch(const LambMoments& args, const CudaStream& stream);
CudaError Launch(const LambWeights& args, const CudaStream& stream);
CudaError Launch(const AdamW& args, const CudaStream& stream);
CudaError Launch(const SquaredNorms& args, const CudaStream& stream);
CudaError Launch(const FlashAttentionForward& args, const CudaStream& stream);
CudaError Launch(const FlashAttentionBackward& args, const CudaStream& stream);

// From device memory to device memory.
void CopyBytes(void* to, const void* from, int64_t bytes, const CudaStream& stream);

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_KERNELS_H_
