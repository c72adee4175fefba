// The ops `TftrainFlashAttention` and `TftrainFlashAttentionGrad`: their arguments, and how these become the kernels'.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_FLASH_ATTENTION_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_FLASH_ATTENTION_H_

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/interface/dropout.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/flash_attention/flash_attention.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// Common to both directions. Each op's last inputs are lists of no tensor or one: int32 sequence_ids [batch, length], then
// fp32 slopes [heads]. The numbers of tensors are attributes of their own, because TensorFlow wants them to be.
struct FlashAttentionAttributes {
  float scale = 1;
  bool causal = false;
  int64_t window = -1;
  DropoutAttributes dropout;
  int64_t first_head = 0;
  int64_t total_heads = 0;
  int64_t sequence_id_lists = 0;
  int64_t slope_lists = 0;

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("scale", &scale);
    visit("causal", &causal);
    visit("window", &window);
    dropout.Visit(visit);
    visit("first_head", &first_head);
    visit("total_heads", &total_heads);
    visit("sequence_id_lists", &sequence_id_lists);
    visit("slope_lists", &slope_lists);
  }

  // The inputs up to the lists are `fixed` ones. The problem with their number; the other checks need the right one.
  std::string NumberProblem(const std::vector<Spec>& in, int64_t fixed, const char* names) const {
    Check check;
    check.AtMost("sequence_ids", sequence_id_lists, 1);
    check.AtMost("slopes", slope_lists, 1);
    if (!check.problem().empty()) return check.problem();
    const int64_t expected = fixed + sequence_id_lists + slope_lists;
    check.That(static_cast<int64_t>(in.size()) == expected, std::string("expected ") + names);
    return check.problem();
  }

  // `shape` is that of the query, as far as it is known; `first` the place of key_mask, which position and lists follow.
  // Returns `shape` with what these know of it.
  Dims CheckWith(Check& check, Dims shape, const std::vector<Spec>& in, int64_t first) const {
    check.That(std::isfinite(scale), "scale is " + std::to_string(scale) + ", expected a finite number");
    check.That(window >= -1, "window is " + std::to_string(window) + ", expected a distance, or -1 for none");
    check.Element("key_mask", in[first], Element::kInt32);
    if (!check.problem().empty()) return shape;
    Dims tokens = check.Shape("key_mask", in[first], {true, {shape[0], shape[1]}});
    dropout.CheckOfProbabilities(check, in[first + 1]);
    if (sequence_id_lists > 0) {
      check.Element("sequence_ids", in[first + 2], Element::kInt32);
      tokens = check.Shape("sequence_ids", in[first + 2], tokens);
    }
    if (slope_lists > 0) {
      check.Element("slopes", in.back(), Element::kFloat32);
      check.Shape("slopes", in.back(), {true, {shape[2]}});
    }
    const int64_t heads = shape[2], size = shape[3];
    check.Within("first_head", first_head, heads == kUnknown ? 0 : heads, "total_heads", total_heads, kMostHeads);
    check.That(size == kUnknown || (size > 0 && size % kFlashHeadMultiple == 0 && size <= kFlashMostHeadSize),
               "the head size is " + std::to_string(size) + ", expected a multiple of " +
                   std::to_string(kFlashHeadMultiple) + " up to " + std::to_string(kFlashMostHeadSize));
    if (check.problem().empty()) std::copy(tokens.sizes.begin(), tokens.sizes.end(), shape.sizes.begin());
    return shape;
  }

  FlashShape ShapeOf(const Dims& query, const Dims& key) const {
    const int64_t group = key[2] > 0 ? query[2] / key[2] : 1;
    return {query[0], query[1], query[2], query[3], first_head, total_heads, causal, window, group};
  }

  FlashMask MaskOf(const std::vector<Tensor>& in, int64_t first) const {
    return {in[first].as<const int32_t>(), sequence_id_lists > 0 ? in[first + 2].as<const int32_t>() : nullptr,
            slope_lists > 0 ? in.back().as<const float>() : nullptr};
  }

  // The shape of the query, checked for all tensors like it, and that of the key: input `key`, and the next is the value.
  static std::pair<Dims, Dims> CommonShapes(Check& check, const std::vector<Spec>& in,
                                            const std::vector<const char*>& names, size_t key) {
    Dims shape = {true, {kUnknown, kUnknown, kUnknown, kUnknown}}, of_keys = shape;
    check.Storage(names[0], in[0]);
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_key = i == key || i == key + 1;
      Dims& expected = is_key ? of_keys : shape;
      if (is_key) expected.sizes = {shape[0], shape[1], of_keys[2], shape[3]};
      check.Element(names[i], in[i], in[0].element);
      expected = check.Shape(names[i], in[i], expected);
      if (!is_key) continue;
      shape.sizes = {of_keys[0], of_keys[1], shape[2], of_keys[3]};
      const int64_t heads = shape[2], shared = of_keys[2];
      check.That(heads == kUnknown || shared == kUnknown || (shared > 0 ? heads % shared == 0 : heads == 0),
                 "key has " + std::to_string(shared) + " heads, expected a divisor of query's " + std::to_string(heads));
    }
    return {shape, of_keys};
  }
};

// query [batch, length, heads, head_size], key, value [batch, length, kv_heads, head_size], key_mask int32 [batch, length],
// position int64 [2], sequence_ids, slopes -> context like query, log_sum_exp fp32 [batch, heads, length].
struct FlashAttentionOp : FlashAttentionAttributes {
  static constexpr char kName[] = "TftrainFlashAttention";

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    if (std::string problem = NumberProblem(in, 5, "query, key, value, key_mask, position, sequence_ids and slopes");
        !problem.empty()) {
      return problem;
    }
    Check check;
    Dims shape = CommonShapes(check, in, {"query", "key", "value"}, 1).first;
    if (!check.problem().empty()) return check.problem();
    shape = CheckWith(check, shape, in, 3);
    if (!check.problem().empty()) return check.problem();
    *out = {{in[0].element, shape}, {Element::kFloat32, {true, {shape[0], shape[2], shape[1]}}}};
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    return Launch(FlashAttentionForward{ShapeOf(in[0].dims, in[1].dims), scale, dropout.With(in[4]),
                                        StorageType(in[0].element), in[0].data, in[1].data, in[2].data, MaskOf(in, 3),
                                        out[0].data, out[1].as<float>()},
                  device);
  }
};

// dcontext, query, key, value, context, log_sum_exp, key_mask, position, sequence_ids, slopes
// -> dquery, dkey, dvalue, like query, key and value.
struct FlashAttentionGradOp : FlashAttentionAttributes {
  static constexpr char kName[] = "TftrainFlashAttentionGrad";
  bool atomic = false;  // see FlashAttentionBackward

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    FlashAttentionAttributes::VisitAttributes(visit);
    visit("atomic", &atomic);
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    if (std::string problem = NumberProblem(
            in, 8, "dcontext, query, key, value, context, log_sum_exp, key_mask, position, sequence_ids and slopes");
        !problem.empty()) {
      return problem;
    }
    Check check;
    auto [shape, keys] = CommonShapes(check, in, {"dcontext", "query", "key", "value", "context"}, 2);
    check.Element("log_sum_exp", in[5], Element::kFloat32);
    check.That(!atomic || in[0].element != Element::kFloat32, "atomic is true, expected false for float32");
    if (!check.problem().empty()) return check.problem();
    check.Shape("log_sum_exp", in[5], {true, {shape[0], shape[2], shape[1]}});
    shape = CheckWith(check, shape, in, 6);
    if (!check.problem().empty()) return check.problem();
    out->assign(3, {in[0].element, shape});
    for (int i : {1, 2}) (*out)[i].dims.sizes[2] = keys[2];
    return "";
  }

  int64_t WorkspaceBytes(const std::vector<Spec>& in) const {
    const Dims& shape = in[1].dims;
    return FlashGradientBytes(shape[0], shape[1], shape[2], shape[3], atomic);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    return Launch(FlashAttentionBackward{ShapeOf(in[1].dims, in[2].dims), scale, dropout.With(in[7]),
                                         StorageType(in[1].element), in[0].data, in[1].data, in[2].data, in[3].data,
                                         MaskOf(in, 6), in[4].data, in[5].as<const float>(), out[0].data, out[1].data,
                                         out[2].data, atomic},
                  device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_FLASH_ATTENTION_H_
