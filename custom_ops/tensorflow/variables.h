// The variables among the inputs of a kernel.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_VARIABLES_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_VARIABLES_H_

#include <algorithm>
#include <vector>

#include "custom_ops/interface/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/platform/mutex.h"

namespace tftrain {

// Nobody else reads or writes the variables while this lives.
class Variables {
 public:
  explicit Variables(tensorflow::OpKernelContext* context) {
    std::vector<tensorflow::mutex*> mutexes;
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (context->input_dtype(i) != tensorflow::DT_RESOURCE) continue;
      variables_.resize(context->num_inputs());
      status_ = tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, i), &variables_[i]);
      if (!status_.ok()) return;
      mutexes.push_back(variables_[i]->mu());
    }
    if (variables_.empty()) return;
    // In the order of addresses, so that two such kernels cannot wait for each other.
    std::sort(mutexes.begin(), mutexes.end());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    locks_.reserve(mutexes.size());
    for (tensorflow::mutex* mutex : mutexes) locks_.emplace_back(*mutex);
    for (int i = 0; i < context->num_inputs(); ++i) {
      if (variables_[i] == nullptr || variables_[i]->is_initialized) continue;
      status_ = tensorflow::errors::FailedPrecondition(context->op_kernel().name(), ": the variable of input ", i,
                                                       " has no value yet");
      return;
    }
  }

  const absl::Status& status() const { return status_; }

  // The value of the variable that is input `i`; null if that is none.
  tensorflow::Tensor* value(int64_t i) const {
    return variables_.empty() || variables_[i] == nullptr ? nullptr : variables_[i]->tensor();
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>> variables_;  // empty where no input is one
  std::vector<tensorflow::mutex_lock> locks_;  // released before the variables
  absl::Status status_;
};

// Makes a variable's value the only reader of its memory: an earlier reader keeps its values.
template <typename Device>
absl::Status MakeOwnMemory(tensorflow::OpKernelContext* context, const Device& device, tensorflow::Tensor* value) {
  if (value->RefCountIsOne()) return absl::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(value->dtype(), value->shape(), &copy));
  CopyBytes(copy.data(), value->data(), value->TotalBytes(), device);
  *value = copy;
  return absl::OkStatus();
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_VARIABLES_H_
