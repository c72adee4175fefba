// A TensorFlow kernel for any device, and a shape function, for any op of custom_ops/interface.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_

#include <string>
#include <type_traits>
#include <vector>

#include "custom_ops/interface/op.h"
#include "custom_ops/tensorflow/convert.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/lib/core/threadpool.h"

namespace tftrain {

// The device's own pool, which the caller's thread shares. Its kernels need no workspace.
class CpuDevice {
 public:
  explicit CpuDevice(tensorflow::OpKernelContext* context) {
    auto* workers = context->device()->tensorflow_cpu_worker_threads()->workers;
    parallel_for_ = [workers](int64_t count, int64_t cost, const Range& range) {
      workers->ParallelFor(count, cost, range);
    };
  }

  absl::Status AllocateWorkspace(int64_t /*bytes*/) { return absl::OkStatus(); }

  const ParallelFor& get() const { return parallel_for_; }

 private:
  ParallelFor parallel_for_;
};

template <typename Op, typename Device>
absl::Status RunOp(const Op& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) {
  if constexpr (std::is_void_v<decltype(op.Run(in, out, device))>) {
    op.Run(in, out, device);
  } else if (const char* error = op.Run(in, out, device); error != nullptr) {
    return tensorflow::errors::Internal(Op::kName, ": ", error);
  }
  return absl::OkStatus();
}

template <typename Op, typename Device>
class Kernel : public tensorflow::OpKernel {
 public:
  explicit Kernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    AttributeGetter<tensorflow::OpKernelConstruction> getter(context);
    op_.VisitAttributes(getter);
    OP_REQUIRES_OK(context, getter.status());
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::vector<Tensor> in;
    std::vector<Spec> in_specs;
    for (int i = 0; i < context->num_inputs(); ++i) {
      in.push_back(TensorOf(context->input(i)));
      in_specs.push_back({in[i].element, in[i].dims});
    }
    std::vector<Spec> out_specs;
    const std::string problem = op_.Infer(in_specs, &out_specs);
    OP_REQUIRES(context, problem.empty(),
                tensorflow::errors::InvalidArgument(name(), " (", Op::kName, "): ", problem));
    std::vector<Tensor> out;
    for (int i = 0; i < context->num_outputs(); ++i) {
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK(context,
                     context->allocate_output(i, tensorflow::TensorShape(out_specs[i].dims.sizes), &output));
      out.push_back(TensorOf(*output));
    }
    Device device(context);
    OP_REQUIRES_OK(context, device.AllocateWorkspace(WorkspaceBytesOf<Op>(in_specs)));
    OP_REQUIRES_OK(context, RunOp(op_, in, out, device.get()));
  }

 private:
  Op op_;
};

template <typename Op>
absl::Status InferShapes(tensorflow::shape_inference::InferenceContext* context) {
  Op op;
  AttributeGetter<tensorflow::shape_inference::InferenceContext> getter(context);
  op.VisitAttributes(getter);
  TF_RETURN_IF_ERROR(getter.status());
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(InputTypes(context, Op::kName, &types));
  std::vector<Spec> in;
  for (int i = 0; i < context->num_inputs(); ++i) {
    in.push_back({ElementOf(types[i]), DimsOf(context, context->input(i))});
  }
  std::vector<Spec> out;
  const std::string problem = op.Infer(in, &out);
  if (!problem.empty()) return tensorflow::errors::InvalidArgument(Op::kName, ": ", problem);
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, ShapeOf(context, out[i].dims));
  return absl::OkStatus();
}

}  // namespace tftrain

#define TFTRAIN_CPU_KERNEL(Op) \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_CPU), ::tftrain::Kernel<Op, ::tftrain::CpuDevice>)

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_
