// A TensorFlow kernel for any device, for any op of custom_ops/interface. The inputs that an op updates are resource variables,
// and the kernel writes to their memory.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_

#include <string>
#include <type_traits>
#include <vector>

#include "custom_ops/interface/op.h"
#include "custom_ops/tensorflow/convert.h"
#include "custom_ops/tensorflow/variables.h"
#include "tensorflow/core/framework/op_kernel.h"
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
    OP_REQUIRES_OK(context, ReadAttributes(context, &op_));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    const Variables variables(context);
    OP_REQUIRES_OK(context, variables.status());
    std::vector<Tensor> in;
    std::vector<Spec> in_specs;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const tensorflow::Tensor* variable = variables.value(i);
      in.push_back(TensorOf(variable != nullptr ? *variable : context->input(i)));
      in_specs.push_back({in[i].element, in[i].dims});
    }
    std::vector<Spec> out_specs;
    const std::string problem = op_.Infer(in_specs, &out_specs);
    OP_REQUIRES(context, problem.empty(),
                tensorflow::errors::InvalidArgument(name(), " (", Op::kName, "): ", problem));

    Device device(context);
    OP_REQUIRES_OK(context, device.AllocateWorkspace(WorkspaceBytesOf(op_, in_specs)));
    std::vector<Tensor> out(out_specs.size(), Tensor{});
    for (const Update& update : UpdatesOf(op_)) {
      OP_REQUIRES_OK(context, MakeOwnMemory(context, device.get(), variables.value(update.in)));
      in[update.in] = out[update.out] = TensorOf(*variables.value(update.in));
    }
    for (int i = 0; i < context->num_outputs(); ++i) {
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, tensorflow::TensorShape(out_specs[i].dims.sizes), &output));
      out[i] = TensorOf(*output);
    }
    OP_REQUIRES_OK(context, RunOp(op_, in, out, device.get()));
  }

 private:
  Op op_;
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_OP_KERNEL_H_
