// The ops `TftrainGelu` and `TftrainGeluGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_GELU_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_GELU_H_

#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/elementwise/activation.h"
#include "custom_ops/kernels/elementwise/gelu.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// Common to GeLU and GeGLU in both directions.
struct GeluAttributes {
  int64_t approximate = 0;  // 1 for the tanh form

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("approximate", &approximate);
  }

  Activation activation() const { return GeluForm(approximate != 0); }
};

// x [..., columns], and none or one bias [columns] -> y like x.
struct GeluOp : GeluAttributes {
  static constexpr char kName[] = "TftrainGelu";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(!in.empty(), "expected x");
    if (!check.problem().empty()) return check.problem();
    check.AtMost("bias", in.size() - 1, 1);
    const Spec& x = in[0];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    Dims columns{true, {LastDim(x.dims)}};
    if (in.size() > 1) {
      check.Storage("bias", in[1]);
      columns = check.Shape("bias", in[1], columns);
    }
    if (!check.problem().empty()) return check.problem();
    Dims shape = x.dims;
    if (shape.known_rank) shape.sizes.back() = columns[0];
    *out = {{x.element, shape}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const bool has_bias = in.size() > 1;
    const Dims& dims = in[0].dims;
    return Launch(GeluForward{dims.Product(0, dims.rank() - 1), dims[-1], approximate != 0, StorageType(in[0].element),
                              has_bias ? StorageType(in[1].element) : DType::kFloat32, in[0].data,
                              has_bias ? in[1].data : nullptr, out[0].data},
                  device);
  }
};

// dy, x [..., columns], and none or one bias [columns] -> dx like x, and dbias like the bias if there is one.
struct GeluGradOp : GeluAttributes {
  static constexpr char kName[] = "TftrainGeluGrad";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() >= 2, "expected dy and x");
    if (!check.problem().empty()) return check.problem();
    check.AtMost("bias", in.size() - 2, 1);
    const Spec &dy = in[0], &x = in[1];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Element("dy", dy, x.element);
    Dims shape = check.Shape("dy", dy, x.dims);
    Dims columns{true, {LastDim(shape)}};
    if (in.size() > 2) {
      check.Storage("bias", in[2]);
      columns = check.Shape("bias", in[2], columns);
    }
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    *out = {{x.element, shape}};
    if (in.size() > 2) out->push_back({in[2].element, columns});
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    const Dims& dims = in[1].dims;
    const bool has_bias = in.size() > 2;
    return has_bias ? TileSumsBytes(dims.Product(0, dims.rank() - 1), dims[-1], 1) : 0;
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const bool has_bias = in.size() > 2;
    const Dims& dims = in[1].dims;
    return Launch(GeluBackward{dims.Product(0, dims.rank() - 1), dims[-1], approximate != 0,
                               StorageType(in[1].element), has_bias ? StorageType(in[2].element) : DType::kFloat32,
                               in[0].data, in[1].data, has_bias ? in[2].data : nullptr, out[0].data,
                               has_bias ? out[1].data : nullptr},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_GELU_H_
