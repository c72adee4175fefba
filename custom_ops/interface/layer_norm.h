// The ops `TftrainLayerNorm` and `TftrainLayerNormGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_

#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/layer_norm/layer_norm.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// x [..., hidden], gamma, beta [hidden] -> y like x, mean, rstd fp32 [...].
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
    check.That(in.size() == 3, "expected x, gamma and beta");
    if (!check.problem().empty()) return check.problem();
    const Spec &x = in[0], &gamma = in[1], &beta = in[2];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Storage("gamma", gamma);
    check.Element("beta", beta, gamma.element);
    Dims columns = check.Shape("gamma", gamma, {true, {LastDim(x.dims)}});
    columns = check.Shape("beta", beta, columns);
    Dims shape = x.dims;
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    const Dims rows = AllButLast(shape);
    *out = {{x.element, shape}, {Element::kFloat32, rows}, {Element::kFloat32, rows}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[0].dims;
    return Launch(
        LayerNormForward{dims.Product(0, dims.rank() - 1), dims[-1], epsilon, StorageType(in[0].element),
                         StorageType(in[1].element), in[0].data, in[1].data, in[2].data, out[0].data,
                         out[1].as<float>(), out[2].as<float>()},
        device);
  }
};

// dy, x [..., hidden], gamma [hidden], mean, rstd fp32 [...] -> dx like x, dgamma and dbeta like gamma.
struct LayerNormGradOp {
  static constexpr char kName[] = "TftrainLayerNormGrad";

  template <typename Visitor>
  void VisitAttributes(Visitor&) {}

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == 5, "expected dy, x, gamma, mean and rstd");
    if (!check.problem().empty()) return check.problem();
    const Spec &dy = in[0], &x = in[1], &gamma = in[2], &mean = in[3], &rstd = in[4];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 1);
    check.Element("dy", dy, x.element);
    Dims shape = check.Shape("dy", dy, x.dims);
    check.Storage("gamma", gamma);
    const Dims columns = check.Shape("gamma", gamma, {true, {LastDim(shape)}});
    check.Element("mean", mean, Element::kFloat32);
    check.Element("rstd", rstd, Element::kFloat32);
    check.Shape("mean", mean, AllButLast(shape));
    check.Shape("rstd", rstd, AllButLast(shape));
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    *out = {{x.element, shape}, {gamma.element, columns}, {gamma.element, columns}};
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    const Dims& dims = in[1].dims;
    return RowSumsBytes(dims.Product(0, dims.rank() - 1), dims[-1], 2);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[1].dims;
    return Launch(LayerNormBackward{dims.Product(0, dims.rank() - 1), dims[-1], StorageType(in[1].element),
                                    StorageType(in[2].element), in[0].data, in[1].data, in[2].data,
                                    in[3].as<float>(), in[4].as<float>(), out[0].data, out[1].data, out[2].data},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_LAYER_NORM_H_
