// The interface of an op, defined once for TensorFlow's kernels, for XLA's handlers and for shape inference:
//
//   struct XOp {
//     static constexpr char kName[] = "TftrainX";              // in both frameworks
//     float epsilon;                                           // its attributes: float, int64_t or std::vector<int64_t>
//     template <typename Visitor>
//     void VisitAttributes(Visitor& visit) { visit("epsilon", &epsilon); }
//     // Specs of the outputs, or the problem with the inputs in words that name the argument.
//     std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const;
//     // Inputs and outputs as Infer has passed them. The device is a ParallelFor, or a CUDA stream.
//     template <typename Device>
//     auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const;
//   };
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_

#include <string>
#include <vector>

#include "custom_ops/interface/tensor.h"

namespace tftrain {

// Infers the outputs once more where they already exist, and returns the problem with inputs or outputs.
template <typename Op>
std::string CheckCall(const Op& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out) {
  std::vector<Spec> given;
  given.reserve(in.size());
  for (const Tensor& tensor : in) given.push_back({tensor.element, tensor.dims});
  std::vector<Spec> expected;
  if (std::string problem = op.Infer(given, &expected); !problem.empty()) return problem;
  if (out.size() != expected.size()) {
    return std::to_string(out.size()) + " outputs, expected " + std::to_string(expected.size());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].element != expected[i].element || out[i].dims.sizes != expected[i].dims.sizes) {
      return "output " + std::to_string(i) + " is " + Name(out[i].element) + " " + out[i].dims.ToString() +
             ", expected " + Name(expected[i].element) + " " + expected[i].dims.ToString();
    }
  }
  return "";
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_
