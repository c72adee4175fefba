// The handlers of all ops on an NVIDIA GPU: C functions that end in _cuda. They only launch kernels on the stream that they
// are given, so XLA may record them in a CUDA graph.
#include "custom_ops/ffi/handler.h"
#include "custom_ops/interface/all_ops.h"
#include "custom_ops/kernels/cuda_kernels.h"

namespace tftrain {
namespace {

constexpr size_t kWorkspaceAlignment = 256;

template <typename Op>
xla::ffi::Error HandleOnCuda(void* stream, xla::ffi::ScratchAllocator scratch, xla::ffi::RemainingArgs args,
                             xla::ffi::RemainingRets rets, xla::ffi::Dictionary attributes) {
  const CudaStream device{stream,
                          [&scratch](int64_t bytes) { return scratch.Allocate(bytes, kWorkspaceAlignment).value_or(nullptr); }};
  return Handle<Op>(device, args, rets, attributes);
}

}  // namespace
}  // namespace tftrain

#define TFTRAIN_CUDA(Op, symbol)                                                                             \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol##_cuda(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol##_cuda, ::tftrain::HandleOnCuda<tftrain::Op>,                         \
                                xla::ffi::Ffi::Bind()                                                        \
                                    .Ctx<xla::ffi::PlatformStream<void*>>()                                  \
                                    .Ctx<xla::ffi::ScratchAllocator>()                                       \
                                    .RemainingArgs()                                                         \
                                    .RemainingRets()                                                         \
                                    .Attrs(),                                                                \
                                {xla::ffi::Traits::kCmdBufferCompatible});

TFTRAIN_FOR_EACH_OP(TFTRAIN_CUDA)
