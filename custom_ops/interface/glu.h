// The ops `TftrainGeglu` and `TftrainSwiglu` and their gradients: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_GLU_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_GLU_H_

#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/gelu.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/elementwise/glu.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// Checks gate and up, and the biases of both if there are any, which are all inputs from `first` on. Returns the common
// shape of gate and up.
inline Dims CheckGluInputs(Check& check, const std::vector<Spec>& in, size_t first, Dims shape) {
  const Spec &gate = in[first], &up = in[first + 1];
  const size_t biases = in.size() - first - 2;
  check.Storage("gate", gate);
  check.RankAtLeast("gate", gate, 1);
  check.Element("up", up, gate.element);
  shape = check.Shape("gate", gate, shape);
  shape = check.Shape("up", up, shape);
  check.That(biases == 0 || biases == 2,
             "biases holds " + std::to_string(biases) + " tensors, expected none, or gate_bias and up_bias");
  if (!check.problem().empty() || biases == 0) return shape;
  const Spec &gate_bias = in[first + 2], &up_bias = in[first + 3];
  check.Storage("gate_bias", gate_bias);
  Dims columns = check.Shape("gate_bias", gate_bias, {true, {LastDim(shape)}});
  check.Element("up_bias", up_bias, gate_bias.element);
  columns = check.Shape("up_bias", up_bias, columns);
  if (check.problem().empty() && shape.known_rank) shape.sizes.back() = columns[0];
  return shape;
}

// SwiGLU has no attributes.
struct SiluAttributes {
  template <typename Visitor>
  void VisitAttributes(Visitor&) {}

  Activation activation() const { return Activation::kSilu; }
};

// gate, up [..., columns], and none or two biases [columns], the gate's and up's -> y like gate.
template <typename Attributes>
struct GluOp : Attributes {
  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() >= 2, "expected gate and up");
    if (!check.problem().empty()) return check.problem();
    const Dims shape = CheckGluInputs(check, in, 0, UnknownDims());
    if (!check.problem().empty()) return check.problem();
    *out = {{in[0].element, shape}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const bool has_biases = in.size() > 2;
    const Dims& dims = in[0].dims;
    return Launch(GluForward{dims.Product(0, dims.rank() - 1), dims[-1], this->activation(),
                             StorageType(in[0].element), has_biases ? StorageType(in[2].element) : DType::kFloat32,
                             in[0].data, in[1].data, has_biases ? in[2].data : nullptr,
                             has_biases ? in[3].data : nullptr, out[0].data},
                  device);
  }
};

// dy, gate, up [..., columns], and none or two biases [columns] -> dgate and dup like gate, and the gradients of the
// biases like these if there are any.
template <typename Attributes>
struct GluGradOp : Attributes {
  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() >= 3, "expected dy, gate and up");
    if (!check.problem().empty()) return check.problem();
    check.Element("dy", in[0], in[1].element);
    const Dims shape = CheckGluInputs(check, in, 1, in[0].dims);
    if (!check.problem().empty()) return check.problem();
    *out = {{in[1].element, shape}, {in[1].element, shape}};
    const Dims columns{true, {LastDim(shape)}};
    for (size_t i = 3; i < in.size(); ++i) out->push_back({in[i].element, columns});
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    const Dims& dims = in[1].dims;
    const bool has_biases = in.size() > 3;
    return has_biases ? TileSumsBytes(dims.Product(0, dims.rank() - 1), dims[-1], 2) : 0;
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const bool has_biases = in.size() > 3;
    const Dims& dims = in[1].dims;
    return Launch(GluBackward{dims.Product(0, dims.rank() - 1), dims[-1], this->activation(),
                              StorageType(in[1].element), has_biases ? StorageType(in[3].element) : DType::kFloat32,
                              in[0].data, in[1].data, in[2].data, has_biases ? in[3].data : nullptr,
                              has_biases ? in[4].data : nullptr, out[0].data, out[1].data,
                              has_biases ? out[2].data : nullptr, has_biases ? out[3].data : nullptr},
                  device);
  }
};

struct GegluOp : GluOp<GeluAttributes> {
  static constexpr char kName[] = "TftrainGeglu";
};

struct GegluGradOp : GluGradOp<GeluAttributes> {
  static constexpr char kName[] = "TftrainGegluGrad";
};

struct SwigluOp : GluOp<SiluAttributes> {
  static constexpr char kName[] = "TftrainSwiglu";
};

struct SwigluGradOp : GluGradOp<SiluAttributes> {
  static constexpr char kName[] = "TftrainSwigluGrad";
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_GLU_H_
