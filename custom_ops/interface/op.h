// The interface of an op, defined once for TensorFlow's kernels, for XLA's handlers and for shape inference:
//
//   struct XOp {
//     static constexpr char kName[] = "TftrainX";              // in both frameworks
//     float epsilon;  // its attributes: float, bool, int64_t or std::vector<int64_t>
//     template <typename Visitor>
//     void VisitAttributes(Visitor& visit) { visit("epsilon", &epsilon); }
//     // Specs of the outputs, or the problem with the inputs in words that name the argument.
//     std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const;
//     // Inputs and outputs as Infer has passed them. The device is a ParallelFor, or a CUDA stream.
//     template <typename Device>
//     auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const;
//     // Only of an op whose CUDA kernels need a workspace: its bytes, from shapes as Infer has passed them, all known, and
//     // from the attributes. Run gets the workspace with the CudaStream.
//     int64_t WorkspaceBytes(const std::vector<Spec>& in) const;
//     // Only of an op that updates some of its inputs, which are variables in TensorFlow.
//     std::vector<Update> Updates() const;
//   };
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_

#include <cstring>
#include <string>
#include <vector>

#include "custom_ops/interface/tensor.h"
#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"

namespace tftrain {

template <typename Op>
auto WorkspaceBytesIfAny(const Op& op, const std::vector<Spec>& in, int) -> decltype(op.WorkspaceBytes(in)) {
  return op.WorkspaceBytes(in);
}
template <typename Op>
int64_t WorkspaceBytesIfAny(const Op&, const std::vector<Spec>&, long) {
  return 0;
}

// The bytes of the workspace that the op's CUDA kernels need with these inputs; 0 if they need none.
template <typename Op>
int64_t WorkspaceBytesOf(const Op& op, const std::vector<Spec>& in) {
  return WorkspaceBytesIfAny(op, in, 0);
}

// Infers the results of a call under XLA: the outputs, and after them on a GPU the workspace as uint8 [bytes], if the call
// needs one. As a result it lives for as long as XLA may repeat the call from a CUDA graph.
template <typename Op>
std::string InferResults(const Op& op, const std::vector<Spec>& in, bool on_gpu, std::vector<Spec>* results) {
  if (std::string problem = op.Infer(in, results); !problem.empty()) return problem;
  const int64_t bytes = on_gpu ? WorkspaceBytesOf(op, in) : 0;
  if (bytes > 0) results->push_back({Element::kUint8, {true, {bytes}}});
  return "";
}

inline std::vector<Spec> SpecsOf(const std::vector<Tensor>& tensors) {
  std::vector<Spec> specs;
  specs.reserve(tensors.size());
  for (const Tensor& tensor : tensors) specs.push_back({tensor.element, tensor.dims});
  return specs;
}

// Infers the results once more where they already exist, and returns the problem with inputs or results.
template <typename Op>
std::string CheckCall(const Op& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out, bool on_gpu) {
  std::vector<Spec> expected;
  if (std::string problem = InferResults(op, SpecsOf(in), on_gpu, &expected); !problem.empty()) return problem;
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

// Output `out` continues input `in`: in the same memory where the caller can arrange it.
struct Update {
  int64_t in;
  int64_t out;
};

template <typename Op>
auto UpdatesIfAny(const Op& op, int) -> decltype(op.Updates()) {
  return op.Updates();
}
template <typename Op>
std::vector<Update> UpdatesIfAny(const Op&, long) {
  return {};
}

// The inputs that the op updates.
template <typename Op>
std::vector<Update> UpdatesOf(const Op& op) {
  return UpdatesIfAny(op, 0);
}

inline void CopyBytes(void* to, const void* from, int64_t bytes, const ParallelFor&) { std::memcpy(to, from, bytes); }

// Where an output did not get the memory of the input that it continues, it starts as a copy.
template <typename Device>
void CopyUpdated(const std::vector<Update>& updates, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                 const Device& device) {
  for (const Update& update : updates) {
    if (in[update.in].data == out[update.out].data) continue;
    const int64_t bytes = in[update.in].dims.count() * SizeOf(StorageType(in[update.in].element));
    CopyBytes(out[update.out].data, in[update.in].data, bytes, device);
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_OP_H_
