// A TensorFlow kernel for any device for ops that update variables: the inputs that the op updates are resource variables, and
// the kernel writes to their memory.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_UPDATE_KERNEL_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_UPDATE_KERNEL_H_

#include <algorithm>
#include <string>
#include <vector>

#include "custom_ops/interface/lamb.h"
#include "custom_ops/tensorflow/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/mutex.h"

namespace tftrain {

template <typename Op, typename Device>
class UpdateKernel : public tensorflow::OpKernel {
 public:
  explicit UpdateKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    AttributeGetter<tensorflow::OpKernelConstruction> getter(context);
    op_.VisitAttributes(getter);
    OP_REQUIRES_OK(context, getter.status());
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables(context->num_inputs());
    std::vector<tensorflow::mutex*> mutexes;
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_dtype(i) != tensorflow::DT_RESOURCE) continue;
      OP_REQUIRES_OK(context,
                     tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &variables[i]));
      mutexes.push_back(variables[i]->mu());
    }
    // In the order of addresses, so that two such kernels cannot wait for each other.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    std::vector<tensorflow::mutex_lock> locks;
    locks.reserve(mutexes.size());
    for (tensorflow::mutex* mutex : mutexes) locks.emplace_back(*mutex);

    std::vector<Tensor> in;
    std::vector<Spec> in_specs;
    for (int i = 0; i < context->num_inputs(); ++i) {
      const bool is_variable = variables[i] != nullptr;
      OP_REQUIRES(context, !is_variable || variables[i]->is_initialized,
                  tensorflow::errors::FailedPrecondition(name(), ": the variable of input ", i, " has no value yet"));
      in.push_back(TensorOf(is_variable ? *variables[i]->tensor() : context->input(i)));
      in_specs.push_back({in[i].element, in[i].dims});
    }
    std::vector<Spec> out_specs;
    const std::string problem = op_.Infer(in_specs, &out_specs);
    OP_REQUIRES(context, problem.empty(),
                tensorflow::errors::InvalidArgument(name(), " (", Op::kName, "): ", problem));

    Device device(context);
    OP_REQUIRES_OK(context, device.AllocateWorkspace(WorkspaceBytesOf<Op>(in_specs)));
    std::vector<Tensor> out(out_specs.size(), Tensor{});
    for (const Update& update : op_.Updates()) {
      OP_REQUIRES_OK(context, MakeOwnMemory(context, device, variables[update.in]->tensor()));
      in[update.in] = out[update.out] = TensorOf(*variables[update.in]->tensor());
    }
    for (int i = 0; i < context->num_outputs(); ++i) {
      tensorflow::Tensor* output = nullptr;
      OP_REQUIRES_OK(context, context->allocate_output(i, tensorflow::TensorShape(out_specs[i].dims.sizes), &output));
      out[i] = TensorOf(*output);
    }
    OP_REQUIRES_OK(context, RunOp(op_, in, out, device.get()));
  }

 private:
  // An earlier reader of the variable keeps its values.
  static absl::Status MakeOwnMemory(tensorflow::OpKernelContext* context, const Device& device,
                                    tensorflow::Tensor* tensor) {
    if (tensor->RefCountIsOne()) return absl::OkStatus();
    tensorflow::Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(tensor->dtype(), tensor->shape(), &copy));
    CopyBytes(const_cast<char*>(copy.tensor_data().data()), tensor->tensor_data().data(), tensor->TotalBytes(),
              device.get());
    *tensor = copy;
    return absl::OkStatus();
  }

  Op op_;
};

}  // namespace tftrain

#define TFTRAIN_CPU_UPDATE_KERNEL(Op) \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_CPU), ::tftrain::UpdateKernel<Op, ::tftrain::CpuDevice>)

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_UPDATE_KERNEL_H_
