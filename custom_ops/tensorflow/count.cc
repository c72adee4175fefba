#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>

#include "absl/status/status.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tftrain {
namespace {

// The counters of this process, by number. They are never deleted, so a kernel may keep the address of one.
class Counters {
 public:
  static Counters& Get() {
    static Counters* const counters = new Counters;
    return *counters;
  }

  int64_t Add() {
    std::lock_guard<std::mutex> lock(mutex_);
    counters_.emplace_back(0);
    return static_cast<int64_t>(counters_.size()) - 1;
  }

  // Null if there is no counter with this number.
  std::atomic<int64_t>* At(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    return number >= 0 && number < static_cast<int64_t>(counters_.size()) ? &counters_[number] : nullptr;
  }

 private:
  std::mutex mutex_;
  std::deque<std::atomic<int64_t>> counters_;
};

}  // namespace

// For Python, which reads a counter while a function runs.
extern "C" __attribute__((visibility("default"))) int64_t tftrain_add_counter() { return Counters::Get().Add(); }

// Returns -1 if there is no counter with this number.
extern "C" __attribute__((visibility("default"))) int64_t tftrain_counter_value(int64_t number) {
  const std::atomic<int64_t>* const counter = Counters::Get().At(number);
  return counter == nullptr ? -1 : counter->load();
}

// Forwards tensors and increments a counter of the host, when the host has put what computes them on the device's
// stream. It touches no stream itself: a counter that is a variable on the host would make a copy from the device, and
// so wait for all that is on it. The counters belong to this process, so the op belongs in no saved graph.
REGISTER_OP("TftrainCount")
    .Input("tensors: T")
    .Output("same: T")
    .Attr("T: list(type) >= 1")
    .Attr("counter: int")  // its number, from tftrain_add_counter
    .SetIsStateful()       // neither pruned, nor merged with another, nor run while a graph is optimized
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
      return absl::OkStatus();
    });

class CountKernel : public tensorflow::OpKernel {
 public:
  explicit CountKernel(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    int64_t number = 0;
    OP_REQUIRES_OK(context, context->GetAttr("counter", &number));
    counter_ = Counters::Get().At(number);
    OP_REQUIRES(context, counter_ != nullptr,
                tensorflow::errors::InvalidArgument("counter is ", number, ", expected the number of a counter of this process"));
  }

  void Compute(tensorflow::OpKernelContext* context) override {
    counter_->fetch_add(1);
    for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  }

 private:
  std::atomic<int64_t>* counter_ = nullptr;
};

REGISTER_KERNEL_BUILDER(Name("TftrainCount").Device(tensorflow::DEVICE_CPU), CountKernel);
REGISTER_KERNEL_BUILDER(Name("TftrainCount").Device(tensorflow::DEVICE_GPU), CountKernel);

}  // namespace tftrain
