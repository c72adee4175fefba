#include <atomic>
#include <cstdint>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tftrain {

// Forwards tensors and increments a counter of the host, when the host has put what computes them on the device's
// stream. It touches no stream itself: a counter that is a variable on the host would make a copy from the device, and
// so wait for all that is on it. The counter is memory of this process, so the op belongs in no saved graph.
REGISTER_OP("TftrainCount")
    .Input("tensors: T")
    .Output("same: T")
    .Attr("T: list(type) >= 1")
    .Attr("counter: int")  // its address
    .SetIsStateful()       // neither pruned, nor merged with another, nor run while a graph is optimized
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

class CountKernel : public tensorflow::OpKernel {
 public:
  explicit CountKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    int64_t address = 0;
    OP_REQUIRES_OK(context, context->GetAttr("counter", &address));
    counter_ = reinterpret_cast<std::atomic<int64_t>*>(address);
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    counter_->fetch_add(1);
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  }

 private:
  std::atomic<int64_t>* counter_;
};

REGISTER_KERNEL_BUILDER(Name("TftrainCount").Device(tensorflow::DEVICE_CPU), CountKernel);
REGISTER_KERNEL_BUILDER(Name("TftrainCount").Device(tensorflow::DEVICE_GPU), CountKernel);

}  // namespace tftrain
