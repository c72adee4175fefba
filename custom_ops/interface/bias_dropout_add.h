// The ops `TftrainBiasDropoutAdd` and `TftrainBiasDropoutAddGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_BIAS_DROPOUT_ADD_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_BIAS_DROPOUT_ADD_H_

#include <string>
#include <vector>

#include "custom_ops/interface/dropout.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/elementwise/bias_dropout_add.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// Common to both directions.
struct BiasDropoutAddAttributes {
  DropoutAttributes dropout;
  int64_t first_row = 0;
  int64_t total_rows = 0;  // of a sample over all ranks that share it; 0: those of the tensor

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    dropout.Visit(visit);
    visit("first_row", &first_row);
    visit("total_rows", &total_rows);
  }

  void CheckWith(Check& check, const Dims& shape, const Spec& position) const {
    dropout.CheckWith(check, position);
    if (total_rows == 0 && first_row == 0) return;
    int64_t rows = 1;
    for (int axis = 1; axis + 1 < (shape.known_rank ? shape.rank() : 0); ++axis) {
      if (shape[axis] == kUnknown) rows = kUnknown;
      if (rows != kUnknown) rows *= shape[axis];
    }
    check.Within("first_row", first_row, rows == kUnknown ? 0 : rows, "total_rows", total_rows, kMostRows);
  }
};

// x [batch, ..., hidden], bias [hidden], residual like x, position int64 [2] -> y like x.
struct BiasDropoutAddOp : BiasDropoutAddAttributes {
  static constexpr char kName[] = "TftrainBiasDropoutAdd";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == 4, "expected x, bias, residual and position");
    if (!check.problem().empty()) return check.problem();
    const Spec &x = in[0], &bias = in[1], &residual = in[2];
    check.Storage("x", x);
    check.RankAtLeast("x", x, 2);
    check.Element("residual", residual, x.element);
    Dims shape = check.Shape("residual", residual, x.dims);
    check.Storage("bias", bias);
    const Dims columns = check.Shape("bias", bias, {true, {LastDim(shape)}});
    CheckWith(check, x.dims, in[3]);
    if (!check.problem().empty()) return check.problem();
    if (shape.known_rank) shape.sizes.back() = columns[0];
    *out = {{x.element, shape}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[0].dims;
    return Launch(BiasDropoutAddForward{dims[0], dims.Product(1, dims.rank() - 1), dims[-1], dropout.With(in[3]),
                                        StorageType(in[0].element), StorageType(in[1].element), in[0].data, in[1].data,
                                        in[2].data, out[0].data, {first_row, total_rows}},
                  device);
  }
};

// dy [batch, ..., hidden], bias [hidden] for its dtype, position int64 [2] -> dx like dy, dbias like bias.
struct BiasDropoutAddGradOp : BiasDropoutAddAttributes {
  static constexpr char kName[] = "TftrainBiasDropoutAddGrad";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == 3, "expected dy, bias and position");
    if (!check.problem().empty()) return check.problem();
    const Spec &dy = in[0], &bias = in[1];
    check.Storage("dy", dy);
    check.RankAtLeast("dy", dy, 2);
    check.Storage("bias", bias);
    const Dims columns = check.Shape("bias", bias, {true, {LastDim(dy.dims)}});
    CheckWith(check, dy.dims, in[2]);
    if (!check.problem().empty()) return check.problem();
    *out = {dy, {bias.element, columns}};
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    const Dims& dims = in[0].dims;
    return TileSumsBytes(dims.Product(0, dims.rank() - 1), dims[-1], 1);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    const Dims& dims = in[0].dims;
    return Launch(BiasDropoutAddBackward{dims[0], dims.Product(1, dims.rank() - 1), dims[-1], dropout.With(in[2]),
                                         StorageType(in[0].element), StorageType(in[1].element), in[0].data,
                                         out[0].data, out[1].data, {first_row, total_rows}},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_BIAS_DROPOUT_ADD_H_
