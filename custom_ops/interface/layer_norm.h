// The ops `TftrainLayerNorm` and `TftrainRmsNorm` and their gradients: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_

#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/layer_norm/layer_norm.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// x [..., hidden], gamma [hidden] -> y like x, rstd fp32 [...]. If centred, with beta [hidden] after gamma, and with mean
// fp32 [...] before rstd.
template <bool kCentred>
struct NormOp {
  float epsilon = 0;

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("epsilon", &epsilon);
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(epsilon > 0, "epsilon is " + std::to_string(epsilon) + ", expected a positive number");
    check.That(in.size() == (kCentred ? 3 : 2), kCentred ? "expected x, gamma and beta" : "expected x and gamma");
    if (!check.problem().empty()) return check.problem();
    const Spec &x = in[0], &gamma = in[1];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Storage("gamma", gamma);
    Dims columns = check.Shape("gamma", gamma, {true, {LastDim(x.dims)}});
    if (kCentred) {
      check.Element("beta", in[2], gamma.element);
      columns = check.Shape("beta", in[2], columns);
    }
    Dims shape = x.dims;
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    out->assign(kCentred ? 3 : 2, {Element::kFloat32, AllButLast(shape)});
    (*out)[0] = {x.element, shape};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[0].dims;
    return Launch(LayerNormForward{dims.Product(0, dims.rank() - 1), dims[-1], kCentred, epsilon,
                                   StorageType(in[0].element), StorageType(in[1].element), in[0].data, in[1].data,
                                   kCentred ? in[2].data : nullptr, out[0].data,
                                   kCentred ? out[1].as<float>() : nullptr, out.back().as<float>()},
                  device);
  }
};

struct LayerNormOp : NormOp<true> {
  static constexpr char kName[] = "TftrainLayerNorm";
};

struct RmsNormOp : NormOp<false> {
  static constexpr char kName[] = "TftrainRmsNorm";
};

// dy, x [..., hidden], gamma [hidden], rstd fp32 [...] -> dx like x, dgamma like gamma. If centred, with mean fp32 [...]
// before rstd, and with dbeta like gamma.
template <bool kCentred>
struct NormGradOp {
  template <typename Visitor>
  void VisitAttributes(Visitor&) {}

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == (kCentred ? 5 : 4),
               kCentred ? "expected dy, x, gamma, mean and rstd" : "expected dy, x, gamma and rstd");
    if (!check.problem().empty()) return check.problem();
    const Spec &dy = in[0], &x = in[1], &gamma = in[2];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Element("dy", dy, x.element);
    Dims shape = check.Shape("dy", dy, x.dims);
    check.Storage("gamma", gamma);
    const Dims columns = check.Shape("gamma", gamma, {true, {LastDim(shape)}});
    for (size_t i = 3; i < in.size(); ++i) {
      const char* const name = i + 1 == in.size() ? "rstd" : "mean";
      check.Element(name, in[i], Element::kFloat32);
      check.Shape(name, in[i], AllButLast(shape));
    }
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    out->assign(kCentred ? 3 : 2, {gamma.element, columns});
    (*out)[0] = {x.element, shape};
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    const Dims& dims = in[1].dims;
    return RowSumsBytes(dims.Product(0, dims.rank() - 1), dims[-1], kCentred ? 2 : 1);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[1].dims;
    return Launch(LayerNormBackward{dims.Product(0, dims.rank() - 1), dims[-1], kCentred, StorageType(in[1].element),
                                    StorageType(in[2].element), in[0].data, in[1].data, in[2].data,
                                    kCentred ? in[3].as<float>() : nullptr, in.back().as<float>(), out[0].data,
                                    out[1].data, kCentred ? out[2].data : nullptr},
                  device);
  }
};

struct LayerNormGradOp : NormGradOp<true> {
  static constexpr char kName[] = "TftrainLayerNormGrad";
};

struct RmsNormGradOp : NormGradOp<false> {
  static constexpr char kName[] = "TftrainRmsNormGrad";
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
