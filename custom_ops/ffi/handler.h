// An XLA FFI handler for any op of custom_ops/interface. It needs XLA's FFI headers and nothing else of XLA or TensorFlow,
// so the library loads wherever such handlers are registered: here by custom_ops/tensorflow, in JAX by jax.ffi.
#ifndef TFTRAIN_CUSTOM_OPS_FFI_HANDLER_H_
#define TFTRAIN_CUSTOM_OPS_FFI_HANDLER_H_

#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "custom_ops/ffi/thread_pool.h"
#include "custom_ops/interface/op.h"
#include "xla/ffi/api/ffi.h"

namespace tftrain {

inline Element ElementOf(xla::ffi::DataType type) {
  switch (type) {
    case xla::ffi::DataType::F32:
      return Element::kFloat32;
    case xla::ffi::DataType::F16:
      return Element::kFloat16;
    case xla::ffi::DataType::BF16:
      return Element::kBFloat16;
    case xla::ffi::DataType::S32:
      return Element::kInt32;
    case xla::ffi::DataType::S64:
      return Element::kInt64;
    case xla::ffi::DataType::U8:
      return Element::kUint8;
    default:
      return Element::kOther;
  }
}

inline Tensor TensorOf(const xla::ffi::AnyBuffer& buffer) {
  const auto dims = buffer.dimensions();
  return {ElementOf(buffer.element_type()), {true, {dims.begin(), dims.end()}}, buffer.untyped_data()};
}

// Reads an op's attributes from those of the custom call.
class AttributeReader {
 public:
  explicit AttributeReader(const xla::ffi::Dictionary& attributes) : attributes_(attributes) {}

  template <typename T>
  void operator()(const char* name, T* value) {
    auto given = attributes_.get<T>(name);
    if (given.has_value()) {
      *value = given.value();
    } else {
      problem_ = std::string("no attribute ") + name;
    }
  }

  void operator()(const char* name, std::vector<int64_t>* values) {
    auto given = attributes_.get<xla::ffi::Span<const int64_t>>(name);
    if (given.has_value()) {
      values->assign(given.value().begin(), given.value().end());
    } else {
      problem_ = std::string("no attribute ") + name;
    }
  }

  const std::string& problem() const { return problem_; }

 private:
  const xla::ffi::Dictionary& attributes_;
  std::string problem_;
};

// Reads, checks and runs one call on the device that `device_of` returns for the call's workspace: the last result on a
// GPU, or of 0 bytes where the call needs none.
template <typename Op, typename DeviceOf>
xla::ffi::Error Handle(bool on_gpu, const DeviceOf& device_of, xla::ffi::RemainingArgs args,
                       xla::ffi::RemainingRets rets, const xla::ffi::Dictionary& attributes) {
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  for (size_t i = 0; i < args.size(); ++i) in.push_back(TensorOf(args.get<xla::ffi::AnyBuffer>(i).value()));
  for (size_t i = 0; i < rets.size(); ++i) out.push_back(TensorOf(*rets.get<xla::ffi::AnyBuffer>(i).value()));
  Op op;
  AttributeReader reader(attributes);
  op.VisitAttributes(reader);
  std::string problem = reader.problem();
  if (problem.empty()) problem = CheckCall(op, in, out, on_gpu);
  if (!problem.empty()) return xla::ffi::Error::InvalidArgument(std::string(Op::kName) + ": " + problem);
  Tensor workspace = {Element::kUint8, {true, {0}}, nullptr};
  if (on_gpu && WorkspaceBytesOf(op, SpecsOf(in)) > 0) {
    workspace = out.back();
    out.pop_back();
  }
  const auto device = device_of(workspace);
  if constexpr (std::is_void_v<decltype(op.Run(in, out, device))>) {
    op.Run(in, out, device);
  } else if (const char* error = op.Run(in, out, device); error != nullptr) {
    return xla::ffi::Error::Internal(std::string(Op::kName) + ": " + error);
  }
  return xla::ffi::Error::Success();
}

template <typename Op>
xla::ffi::Error HandleOnHost(xla::ffi::ThreadPool pool, xla::ffi::RemainingArgs args, xla::ffi::RemainingRets rets,
                             xla::ffi::Dictionary attributes) {
  return Handle<Op>(
      /*on_gpu=*/false, [&pool](const Tensor&) { return OnThreadPool(pool); }, args, rets, attributes);
}

}  // namespace tftrain

// Defines the C function `symbol`, which handles the op on the host.
#define TFTRAIN_HOST_HANDLER(symbol, Op)                                                                       \
  extern "C" __attribute__((visibility("default"))) XLA_FFI_Error* symbol(XLA_FFI_CallFrame* frame);           \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                                                               \
      symbol, ::tftrain::HandleOnHost<Op>,                                                                     \
      xla::ffi::Ffi::Bind().Ctx<xla::ffi::ThreadPool>().RemainingArgs().RemainingRets().Attrs())

#endif  // TFTRAIN_CUSTOM_OPS_FFI_HANDLER_H_
