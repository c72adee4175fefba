// The ops `TftrainLambMoments`, `TftrainLambWeights`, `TftrainAdamW` and `TftrainSquaredNorms`: their arguments, and how
// these become the kernels'. The first three update some of their inputs. Gradients are of any storage type; those that write weights also write them,
// rounded, to 16-bit copies of some tensors.
//
// A tensor of parameters is one input of any shape; or a slice of the only one, a flat bucket, if `segments` has its sizes.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_LAMB_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_LAMB_H_

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "custom_ops/interface/check.h"
#include "custom_ops/interface/op.h"
#include "custom_ops/kernels/optimizer/lamb.h"
#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// The part that these ops share. Inputs: `leading` small ones, then lists of `tensors` each, by `names`.
struct UpdateAttributes {
  float epsilon = 0;
  int64_t tensors = 0;
  std::vector<int64_t> segments;

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    visit("epsilon", &epsilon);
    visit("tensors", &tensors);
    visit("segments", &segments);
  }

  int64_t parts() const { return segments.empty() ? tensors : segments.size(); }
  Spec PerPart() const { return {Element::kFloat32, {true, {parts()}}}; }

  // `copies` more inputs follow the lists.
  void CheckInputs(Check& check, const std::vector<Spec>& in, const std::vector<const char*>& leading,
                   const std::vector<const char*>& names, int64_t copies = 0) const {
    check.That(epsilon > 0, "epsilon is " + std::to_string(epsilon) + ", expected a positive number");
    check.That(segments.empty() || tensors == 1,
               "segments are given for " + std::to_string(tensors) + " tensors, expected one flat tensor");
    check.AtMost("each list", tensors, in.size());  // so that the product below is right
    if (!check.problem().empty()) return;
    check.That(in.size() == leading.size() + names.size() * tensors + copies,
               "expected as many tensors in each list");
    if (!check.problem().empty()) return;
    for (size_t i = 0; i < leading.size(); ++i) {
      check.Element(leading[i], in[i], Element::kFloat32);
      check.Shape(leading[i], in[i], i == 0 ? Dims{true, {kUpdateScalars}} : PerPart().dims);
    }
    for (int64_t tensor = 0; tensor < tensors; ++tensor) {
      Dims shape = UnknownDims();
      for (size_t list = names.size(); list-- > 0;) {  // the last, the weights, say what the others must be
        const std::string name = std::string(names[list]) + "[" + std::to_string(tensor) + "]";
        const Spec& spec = in[leading.size() + list * tensors + tensor];
        if (std::strcmp(names[list], "gradients") == 0) {
          check.Storage(name.c_str(), spec);
        } else {
          check.Element(name.c_str(), spec, Element::kFloat32);
        }
        shape = check.Shape(name.c_str(), spec, shape);
      }
      if (!segments.empty() && shape.known_rank && shape.count() >= 0) {
        int64_t left = shape.count();
        for (int64_t size : segments) {
          check.That(size >= 0 && size <= left,
                     "segments has " + std::to_string(size) + " elements where " + std::to_string(left) + " of a tensor with " +
                         std::to_string(shape.count()) + " are left");
          if (!check.problem().empty()) return;
          left -= size;
        }
      }
    }
  }

  // The tensors' or slices' addresses; `lists` are the numbers of the first tensors of gradients (or -1), m, v, weights.
  std::vector<UpdateTensor> Parts(const std::vector<Tensor>& in, int64_t gradients, const std::vector<Tensor>& from,
                                  int64_t m, int64_t v, const std::vector<Tensor>& weights_from, int64_t weights) const {
    std::vector<UpdateTensor> parts;
    for (int64_t i = 0; i < tensors; ++i) {
      UpdateTensor part = {from[m + i].dims.count(), nullptr, from[m + i].as<float>(), from[v + i].as<float>(),
                           weights_from[weights + i].as<float>()};
      if (gradients >= 0) {
        part.gradient = in[gradients + i].data;
        part.gradient_dtype = StorageType(in[gradients + i].element);
      }
      parts.push_back(part);
    }
    if (segments.empty()) return parts;
    UpdateTensor next = parts[0];
    parts.clear();
    for (int64_t size : segments) {
      next.size = size;
      parts.push_back(next);
      if (next.gradient != nullptr) {
        next.gradient = static_cast<const char*>(next.gradient) + size * SizeOf(next.gradient_dtype);
      }
      next.m += size;
      next.v += size;
      next.weight += size;
    }
    return parts;
  }
};

// The ops that write weights: of the tensors with these numbers, 16-bit copies follow the lists of inputs, and of outputs.
struct CopyingUpdateAttributes : UpdateAttributes {
  std::vector<int64_t> copied;

  template <typename Visitor>
  void VisitAttributes(Visitor& visit) {
    UpdateAttributes::VisitAttributes(visit);
    visit("copied", &copied);
  }

  int64_t copies() const { return copied.size(); }

  // The copies are the last inputs; the list of weights comes right before them.
  void CheckCopies(Check& check, const std::vector<Spec>& in) const {
    check.That(copied.empty() || segments.empty(), "copies are given for segments, expected whole tensors");
    if (!check.problem().empty()) return;
    for (int64_t i = 0; i < copies(); ++i) {
      check.That(copied[i] >= 0 && copied[i] < tensors && (i == 0 || copied[i - 1] < copied[i]),
                 "copied is not an ascending list of numbers of tensors");
      if (!check.problem().empty()) return;
      const std::string name = "copies[" + std::to_string(i) + "]";
      const Spec& spec = in[in.size() - copies() + i];
      check.That(IsStorage(spec.element) && spec.element != Element::kFloat32,
                 name + " is " + Name(spec.element) + ", expected float16 or bfloat16");
      check.Shape(name.c_str(), spec, in[in.size() - copies() - tensors + copied[i]].dims);
    }
  }

  // The updates of the copies: the last outputs continue the last inputs.
  void AddCopies(int64_t in, int64_t out, std::vector<Update>* updates) const {
    for (int64_t i = 0; i < copies(); ++i) updates->push_back({in + i, out + i});
  }

  // With the copies among the outputs.
  std::vector<UpdateTensor> WithCopies(std::vector<UpdateTensor> parts, const std::vector<Tensor>& out) const {
    for (int64_t i = 0; i < copies(); ++i) {
      const Tensor& copy = out[out.size() - copies() + i];
      parts[copied[i]].copy = copy.data;
      parts[copied[i]].copy_dtype = StorageType(copy.element);
    }
    return parts;
  }
};

// scalars [8] (UpdateScalars), weight_decays [parts], then gradients, m, v and weights
// -> weight_squares, update_squares [parts], then m and v.
struct LambMomentsOp : UpdateAttributes {
  static constexpr char kName[] = "TftrainLambMoments";

  std::vector<Update> Updates() const {
    std::vector<Update> updates;
    for (int64_t i = 0; i < 2 * tensors; ++i) updates.push_back({2 + tensors + i, 2 + i});
    return updates;
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    CheckInputs(check, in, {"scalars", "weight_decays"}, {"gradients", "m", "v", "weights"});
    if (!check.problem().empty()) return check.problem();
    *out = {PerPart(), PerPart()};
    out->insert(out->end(), in.begin() + 2 + tensors, in.begin() + 2 + 3 * tensors);
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    int64_t elements = 0;
    for (size_t i = 2; i < 2 + (in.size() - 2) / 4; ++i) elements += in[i].dims.count();  // the gradients
    return ChunkSumsBytes(in[1].dims[0], elements, 2);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    CopyUpdated(Updates(), in, out, device);
    return Launch(LambMoments{Parts(in, 2, out, 2, 2 + tensors, in, 2 + 3 * tensors), epsilon,
                              in[0].as<const UpdateScalars>(), in[1].as<const float>(), out[0].as<float>(),
                              out[1].as<float>()},
                  device);
  }
};

// scalars [8], weight_decays, rates [parts], then m, v and weights, copies -> weights, copies.
struct LambWeightsOp : CopyingUpdateAttributes {
  static constexpr char kName[] = "TftrainLambWeights";

  std::vector<Update> Updates() const {
    std::vector<Update> updates;
    for (int64_t i = 0; i < tensors; ++i) updates.push_back({3 + 2 * tensors + i, i});
    AddCopies(3 + 3 * tensors, tensors, &updates);
    return updates;
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    CheckInputs(check, in, {"scalars", "weight_decays", "rates"}, {"m", "v", "weights"}, copies());
    if (check.problem().empty()) CheckCopies(check, in);
    if (!check.problem().empty()) return check.problem();
    out->assign(in.begin() + 3 + 2 * tensors, in.end());
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    CopyUpdated(Updates(), in, out, device);
    return Launch(LambWeights{WithCopies(Parts(in, -1, in, 3, 3 + tensors, out, 0), out), epsilon, in[0].as<const UpdateScalars>(),
                              in[1].as<const float>(), in[2].as<const float>()},
                  device);
  }
};

// scalars [8], weight_decays [parts], then gradients, m, v and weights, copies -> m, v and weights, copies.
struct AdamWOp : CopyingUpdateAttributes {
  static constexpr char kName[] = "TftrainAdamW";

  std::vector<Update> Updates() const {
    std::vector<Update> updates;
    for (int64_t i = 0; i < 3 * tensors; ++i) updates.push_back({2 + tensors + i, i});
    AddCopies(2 + 4 * tensors, 3 * tensors, &updates);
    return updates;
  }

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    CheckInputs(check, in, {"scalars", "weight_decays"}, {"gradients", "m", "v", "weights"}, copies());
    if (check.problem().empty()) CheckCopies(check, in);
    if (!check.problem().empty()) return check.problem();
    out->assign(in.begin() + 2 + tensors, in.end());
    return "";
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    CopyUpdated(Updates(), in, out, device);
    return Launch(AdamW{WithCopies(Parts(in, 2, out, 0, tensors, out, 2 * tensors), out), epsilon, in[0].as<const UpdateScalars>(),
                        in[1].as<const float>()},
                  device);
  }
};

// tensors of any storage types and shapes -> fp32 [number of tensors].
struct SquaredNormsOp {
  static constexpr char kName[] = "TftrainSquaredNorms";

  template <typename Visitor>
  void VisitAttributes(Visitor&) {}

  std::string Infer(const std::vector<Spec>& in, std::vector<Spec>* out) const {
    Check check;
    for (const Spec& spec : in) check.Storage("tensors", spec);
    if (!check.problem().empty()) return check.problem();
    *out = {{Element::kFloat32, {true, {static_cast<int64_t>(in.size())}}}};
    return "";
  }

  static int64_t WorkspaceBytes(const std::vector<Spec>& in) {
    int64_t elements = 0;
    for (const Spec& spec : in) elements += spec.dims.count();
    return ChunkSumsBytes(in.size(), elements, 1);
  }

  template <typename Device>
  auto Run(const std::vector<Tensor>& in, const std::vector<Tensor>& out, const Device& device) const {
    SquaredNorms args{{}, {}, {}, out[0].as<float>()};
    for (const Tensor& tensor : in) {
      args.sizes.push_back(tensor.dims.count());
      args.tensors.push_back(tensor.data);
      args.dtypes.push_back(StorageType(tensor.element));
    }
    return Launch(args, device);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_LAMB_H_
