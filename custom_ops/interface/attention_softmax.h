// The ops `TftrainAttentionSoftmax` and `TftrainAttentionSoftmaxGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_ATTENTION_SOFTMAX_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_ATTENTION_SOFTMAX_H_

#include <cmath>
#include <string>
#include <vector>

#include "custom_ops/interface/dropout.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/attention_softmax/attention_softmax.h"

namespace tftrain {

// Common to both directions. The number of outputs is an attribute of its own, because TensorFlow wants the
// length of a list of outputs to be one.
struct AttentionSoftmaxAttributes {
  float scale = 1;
  bool causal = false;
  DropoutAttributes dropout;
  int64_t first_head = 0;
  int64_t total_heads = 0;
  int64_t dropouts = 0;  // 1 with dropout, else 0

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("scale", &scale);
    visit("causal", &causal);
    dropout.Visit(visit);
    visit("first_head", &first_head);
    visit("total_heads", &total_heads);
    visit("dropouts", &dropouts);
  }

  void CheckWith(Check& check, const Dims& shape, const Spec& position) const {
    check.That(std::isfinite(scale), "scale is " + std::to_string(scale) + ", expected a finite number");
    dropout.CheckOfProbabilities(check, position);
    check.That(dropouts == (dropout.drop_below > 0 ? 1 : 0),
               "dropouts is " + std::to_string(dropouts) + ", expected 1 with dropout and 0 without");
    const int64_t heads = shape.known_rank && shape.rank() == 4 ? shape[1] : kUnknown;
    check.Within("first_head", first_head, heads == kUnknown ? 0 : heads, "total_heads", total_heads, kMostHeads);
  }

  void CheckPositions(Check& check, const char* name, const Dims& shape) const {
    if (!causal || !shape.known_rank || shape.rank() != 4 || shape[2] == kUnknown || shape[3] == kUnknown) return;
    check.That(shape[2] == shape[3], std::string(name) + " has shape " + shape.ToString() +
                                         ", expected as many queries as keys where causal is true");
  }

  AttentionShape ShapeOf(const Dims& dims) const {
    return {dims[0], dims[1], dims[2], dims[3], first_head, total_heads, causal};
  }
};

inline Dims FourUnknown() { return {true, {kUnknown, kUnknown, kUnknown, kUnknown}}; }

// scores [batch, heads, queries, keys], key_mask int32 [batch, keys], position int64 [2]
// -> probabilities, and dropped if there is dropout; both like scores.
struct AttentionSoftmaxOp : AttentionSoftmaxAttributes {
  static constexpr char kName[] = "TftrainAttentionSoftmax";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == 3, "expected scores, key_mask and position");
    if (!check.problem().empty()) return check.problem();
    const Spec &scores = in[0], &key_mask = in[1], &position = in[2];
    check.Storage("scores", scores);
    Dims shape = check.Shape("scores", scores, FourUnknown());
    check.Element("key_mask", key_mask, Element::kInt32);
    CheckWith(check, shape, position);
    if (!check.problem().empty()) return check.problem();
    const Dims mask = check.Shape("key_mask", key_mask, {true, {shape[0], shape[3]}});
    if (!check.problem().empty()) return check.problem();
    shape.sizes[0] = mask[0];
    shape.sizes[3] = mask[1];
    CheckPositions(check, "scores", shape);
    if (!check.problem().empty()) return check.problem();
    out->assign(1 + dropouts, {scores.element, shape});
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    return Launch(AttentionSoftmaxForward{ShapeOf(in[0].dims), scale, dropout.With(in[2]), StorageType(in[0].element),
                                          in[0].data, in[1].as<const int32_t>(), out[0].data,
                                          dropouts > 0 ? out[1].data : nullptr},
                  device);
  }
};

// ddropped, probabilities [batch, heads, queries, keys], position int64 [2]
// -> dscores, and dropped once more if there is dropout; both like probabilities.
struct AttentionSoftmaxGradOp : AttentionSoftmaxAttributes {
  static constexpr char kName[] = "TftrainAttentionSoftmaxGrad";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    check.That(in.size() == 3, "expected ddropped, probabilities and position");
    if (!check.problem().empty()) return check.problem();
    const Spec &ddropped = in[0], &probabilities = in[1], &position = in[2];
    check.Storage("probabilities", probabilities);
    check.Element("ddropped", ddropped, probabilities.element);
    Dims shape = check.Shape("probabilities", probabilities, FourUnknown());
    shape = check.Shape("ddropped", ddropped, shape);
    CheckWith(check, shape, position);
    CheckPositions(check, "probabilities", shape);
    if (!check.problem().empty()) return check.problem();
    out->assign(1 + dropouts, {probabilities.element, shape});
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    return Launch(AttentionSoftmaxBackward{ShapeOf(in[1].dims), scale, dropout.With(in[2]), StorageType(in[1].element),
                                           in[0].data, in[1].data, out[0].data, dropouts > 0 ? out[1].data : nullptr},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_ATTENTION_SOFTMAX_H_
