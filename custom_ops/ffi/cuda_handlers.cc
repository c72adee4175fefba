// The handlers of all ops on an NVIDIA GPU: C functions that end in _cuda. XLA may record them in a CUDA graph, which it
// replays without calling them again. So they launch kernels on the stream that they are given and do nothing else. The
// kernels use no memory but the arguments and results of the call: the workspace is a result too, the last one.
#include <cstdint>
#include <string_view>
#include <vector>

#include "custom_ops/ffi/handler.h"
#include "custom_ops/interface/all_ops.h"

namespace tftrain {
namespace {

template <typename Op>
xla::ffi::Error HandleOnCuda(void* stream, xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets,
                             xla::ffi::Dictionary attributes) {
  const auto device_of = [stream](const Tensor& workspace) {
    return CudaStream{stream, workspace.data, workspace.dims.count()};
  };
  return Handle<Op>(/*on_gpu=*/true, device_of, args, rets, attributes);
}

// Sets the attribute `atomic`, the one that a size follows from.
struct AtomicSetter {
  void operator()(const char* name, bool* value) {
    if (std::string_view(name) == "atomic") *value = atomic;
  }
  template <typename T>
  void operator()(const char* /*name*/, T* /*value*/) {}

  bool atomic;
};

template <typename Op>
int64_t WorkspaceBytesOfShapes(int64_t inputs, const int64_t* ranks, const int64_t* dims, bool atomic) {
  std::vector<Spec> in;
  for (int64_t i = 0; i < inputs; dims += ranks[i++]) {
    in.push_back({Element::kFloat32, {true, {dims, dims + ranks[i]}}});  // the element types do not matter
  }
  Op op;
  AtomicSetter setter{atomic};
  op.VisitAttributes(setter);
  return WorkspaceBytesOf(op, in);
}

}  // namespace
}  // namespace tftrain

#define TFTRAIN_CUDA(Op, symbol)                                                                             \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol##_cuda(XLA_FFI_CallFrame* frame); \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(symbol##_cuda, ::tftrain::HandleOnCuda<tftrain::Op>,                         \
                                xla::ffi::Ffi::Bind()                                                        \
                                    .Ctx<xla::ffi::PlatformStream<void*>>()                                  \
                                    .RemainingArgs()                                                         \
                                    .RemainingRets()                                                         \
                                    .Attrs(),                                                                \
                                {xla::ffi::Traits::kCmdBufferCompatible});                                   \
  /* The bytes of the workspace for inputs of these ranks, and dims in one list; for programs without TensorFlow. */ \
  extern "C" __attribute__((visibility("default"))) int64_t symbol##_workspace_bytes(                        \
      int64_t inputs, const int64_t* ranks, const int64_t* dims, bool atomic) {                              \
    return ::tftrain::WorkspaceBytesOfShapes<tftrain::Op>(inputs, ranks, dims, atomic);                      \
  }

TFTRAIN_FOR_EACH_OP(TFTRAIN_CUDA)
