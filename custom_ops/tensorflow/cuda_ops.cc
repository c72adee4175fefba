// Every op on an NVIDIA GPU: kernels for eager and graph mode, and the FFI handlers for XLA.
#include <cstdint>

#include "custom_ops/interface/all_ops.h"
#include "custom_ops/tensorflow/op_kernel.h"
#include "custom_ops/tensorflow/xla_ffi.h"
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

#define TFTRAIN_GPU_KERNEL(Op, symbol) \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_GPU), Kernel<Op, GpuDevice>);

TFTRAIN_FOR_EACH_OP(TFTRAIN_GPU_KERNEL)

}  // namespace
}  // namespace tftrain

#define TFTRAIN_DECLARE_CUDA(Op, symbol) extern "C" XLA_FFI_Error* symbol##_cuda(XLA_FFI_CallFrame* frame);
#define TFTRAIN_REGISTER_CUDA(Op, symbol) \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), tftrain::Op::kName, "CUDA", symbol##_cuda);

TFTRAIN_FOR_EACH_OP(TFTRAIN_DECLARE_CUDA)
TFTRAIN_FOR_EACH_OP(TFTRAIN_REGISTER_CUDA)
