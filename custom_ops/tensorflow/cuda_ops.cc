// Every op on an NVIDIA GPU: kernels for eager and graph mode, and the FFI handlers for XLA.
#include <cstdint>

#include "custom_ops/interface/all_ops.h"
#include "custom_ops/tensorflow/op_kernel.h"
#include "custom_ops/tensorflow/update_kernel.h"
#include "xla/ffi/api/ffi.h"
#include "xla/ffi/ffi_api.h"
#include "xla/stream_executor/stream.h"

namespace tftrain {
namespace {

// The stream that the kernel's neighbours run on. The workspace goes back to the allocator when the kernel returns, which
// gives it away only to work that comes later on the same stream.
class GpuDevice {
 public:
  explicit GpuDevice(tensorflow::OpKernelContext* context)
      : context_(context),
        stream_{context->op_device_context()->stream()->platform_specific_handle().stream} {}

  absl::Status AllocateWorkspace(int64_t bytes) {
    if (bytes == 0) return absl::OkStatus();
    TF_RETURN_IF_ERROR(
        context_->allocate_temp(tensorflow::DT_UINT8, tensorflow::TensorShape({bytes}), &workspace_));
    stream_.workspace = workspace_.data();
    stream_.workspace_bytes = bytes;
    return absl::OkStatus();
  }

  const CudaStream& get() const { return stream_; }

 private:
  tensorflow::OpKernelContext* context_;
  CudaStream stream_;
  tensorflow::Tensor workspace_;
};

#define TFTRAIN_GPU_KERNEL(Op) \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_GPU), Kernel<Op, GpuDevice>)

// Handles of variables are in the host's memory, and the variables' values on the device.
#define TFTRAIN_GPU_UPDATE_KERNEL(Op)                       \
  REGISTER_KERNEL_BUILDER(Name(Op::kName)                   \
                              .Device(tensorflow::DEVICE_GPU) \
                              .HostMemory("m")              \
                              .HostMemory("v")              \
                              .HostMemory("weights"),       \
                          UpdateKernel<Op, GpuDevice>)

TFTRAIN_GPU_KERNEL(AttentionSoftmaxOp);
TFTRAIN_GPU_KERNEL(AttentionSoftmaxGradOp);
TFTRAIN_GPU_KERNEL(BiasDropoutAddOp);
TFTRAIN_GPU_KERNEL(BiasDropoutAddGradOp);
TFTRAIN_GPU_KERNEL(FlashAttentionOp);
TFTRAIN_GPU_KERNEL(FlashAttentionGradOp);
TFTRAIN_GPU_KERNEL(GegluOp);
TFTRAIN_GPU_KERNEL(GegluGradOp);
TFTRAIN_GPU_KERNEL(GeluOp);
TFTRAIN_GPU_KERNEL(GeluGradOp);
TFTRAIN_GPU_KERNEL(LayerNormOp);
TFTRAIN_GPU_KERNEL(LayerNormGradOp);
TFTRAIN_GPU_KERNEL(SquaredNormsOp);
TFTRAIN_GPU_UPDATE_KERNEL(AdamWOp);
TFTRAIN_GPU_UPDATE_KERNEL(LambMomentsOp);
TFTRAIN_GPU_UPDATE_KERNEL(LambWeightsOp);

}  // namespace
}  // namespace tftrain

#define TFTRAIN_DECLARE_CUDA(Op, symbol) extern "C" XLA_FFI_Error* symbol##_cuda(XLA_FFI_CallFrame* frame);
#define TFTRAIN_REGISTER_CUDA(Op, symbol) \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), tftrain::Op::kName, "CUDA", symbol##_cuda);

TFTRAIN_FOR_EACH_OP(TFTRAIN_DECLARE_CUDA)
TFTRAIN_FOR_EACH_OP(TFTRAIN_REGISTER_CUDA)
