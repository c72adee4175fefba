// The ops `TftrainLayerNorm` and `TftrainLayerNormGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_

#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/layer_norm.h"

namespace tftrain {

// x [..., hidden], gamma, beta [hidden], and none or one residual like x
// -> y like x, mean, rstd fp32 [...], and the sum like x if there is a residual.
struct LayerNormOp {
  static constexpr char kName[] = "TftrainLayerNorm";

  float epsilon = 0;

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("epsilon", &epsilon);
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(epsilon > 0, "epsilon is " + std::to_string(epsilon) + ", expected a positive number");
    check.That(in.size() >= 3, "expected x, gamma and beta");
    if (!check.problem().empty()) return check.problem();
    check.AtMost("residual", in.size() - 3, 1);
    const Spec &x = in[0], &gamma = in[1], &beta = in[2];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Storage("gamma", gamma);
    check.Element("beta", beta, gamma.element);
    Dims columns = check.Shape("gamma", gamma, {true, {LastDim(x.dims)}});
    columns = check.Shape("beta", beta, columns);
    Dims shape = x.dims;
    if (in.size() > 3) {
      check.Element("residual", in[3], x.element);
      shape = check.Shape("residual", in[3], shape);
    }
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    const Dims rows = AllButLast(shape);
    *out = {{x.element, shape}, {Element::kFloat32, rows}, {Element::kFloat32, rows}};
    if (in.size() > 3) out->push_back({x.element, shape});
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const bool has_residual = in.size() > 3;
    const Dims& dims = in[0].dims;
    return Launch(
        LayerNormForward{dims.Product(0, dims.rank() - 1), dims[-1], epsilon, StorageType(in[0].element),
                         StorageType(in[1].element), in[0].data, has_residual ? in[3].data : nullptr, in[1].data,
                         in[2].data, out[0].data, has_residual ? out[3].data : nullptr, out[1].as<float>(),
                         out[2].as<float>()},
        device);
  }
};

// dy, x [..., hidden] (x being what was normalized), gamma [hidden], mean, rstd fp32 [...], and none or one dsum like x
// -> dx like x, dgamma and dbeta like gamma.
struct LayerNormGradOp {
  static constexpr char kName[] = "TftrainLayerNormGrad";

  template <typename Visitor>
  void VisitAttributes(Visitor&) {}

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() >= 5, "expected dy, x, gamma, mean and rstd");
    if (!check.problem().empty()) return check.problem();
    check.AtMost("dsum", in.size() - 5, 1);
    const Spec &dy = in[0], &x = in[1], &gamma = in[2], &mean = in[3], &rstd = in[4];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Element("dy", dy, x.element);
    Dims shape = check.Shape("dy", dy, x.dims);
    check.Storage("gamma", gamma);
    const Dims columns = check.Shape("gamma", gamma, {true, {LastDim(shape)}});
    if (in.size() > 5) {
      check.Element("dsum", in[5], x.element);
      shape = check.Shape("dsum", in[5], shape);
    }
    check.Element("mean", mean, Element::kFloat32);
    check.Element("rstd", rstd, Element::kFloat32);
    check.Shape("mean", mean, AllButLast(shape));
    check.Shape("rstd", rstd, AllButLast(shape));
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    *out = {{x.element, shape}, {gamma.element, columns}, {gamma.element, columns}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[1].dims;
    return Launch(LayerNormBackward{dims.Product(0, dims.rank() - 1), dims[-1], StorageType(in[1].element),
                                    StorageType(in[2].element), in[0].data, in.size() > 5 ? in[5].data : nullptr,
                                    in[1].data, in[2].data, in[3].as<float>(), in[4].as<float>(), out[0].data,
                                    out[1].data, out[2].data},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
