// TensorFlow's tensors, shapes, types and attributes as custom_ops/interface has them, and back.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_CONVERT_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_CONVERT_H_

#include <vector>

#include "custom_ops/interface/tensor.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/tensor.h"

namespace tftrain {

inline Element ElementOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
      return Element::kFloat32;
    case tensorflow::DT_HALF:
      return Element::kFloat16;
    case tensorflow::DT_BFLOAT16:
      return Element::kBFloat16;
    case tensorflow::DT_INT32:
      return Element::kInt32;
    case tensorflow::DT_INT64:
      return Element::kInt64;
    case tensorflow::DT_UINT8:
      return Element::kUint8;
    default:
      return Element::kOther;
  }
}

inline Dims DimsOf(const tensorflow::TensorShape& shape) {
  const auto sizes = shape.dim_sizes();
  return {true, {sizes.begin(), sizes.end()}};
}

inline Dims DimsOf(tensorflow::shape_inference::InferenceContext* context,
                   tensorflow::shape_inference::ShapeHandle shape) {
  if (!context->RankKnown(shape)) return UnknownDims();
  Dims dims;
  for (int i = 0; i < context->Rank(shape); ++i) dims.sizes.push_back(context->Value(context->Dim(shape, i)));
  return dims;
}

inline tensorflow::shape_inference::ShapeHandle ShapeOf(tensorflow::shape_inference::InferenceContext* context,
                                                        const Dims& dims) {
  if (!dims.known_rank) return context->UnknownShape();
  std::vector<tensorflow::shape_inference::DimensionHandle> sizes;
  for (int64_t size : dims.sizes) sizes.push_back(size == kUnknown ? context->UnknownDim() : context->MakeDim(size));
  return context->MakeShape(sizes);
}

inline Tensor TensorOf(const tensorflow::Tensor& tensor) {
  return {ElementOf(tensor.dtype()), DimsOf(tensor.shape()), const_cast<char*>(tensor.tensor_data().data())};
}

// The types of a node's inputs: shape inference is told the shapes and attributes alone.
template <typename Context>
absl::Status InputTypes(Context* context, const char* op_name, std::vector<tensorflow::DataType>* types) {
  const tensorflow::OpDef* definition = nullptr;
  TF_RETURN_IF_ERROR(tensorflow::OpRegistry::Global()->LookUpOpDef(op_name, &definition));
  for (const auto& argument : definition->input_arg()) {
    if (!argument.type_list_attr().empty()) {
      std::vector<tensorflow::DataType> list;
      TF_RETURN_IF_ERROR(context->GetAttr(argument.type_list_attr(), &list));
      types->insert(types->end(), list.begin(), list.end());
      continue;
    }
    tensorflow::DataType type = argument.type();
    if (!argument.type_attr().empty()) TF_RETURN_IF_ERROR(context->GetAttr(argument.type_attr(), &type));
    int64_t number = 1;
    if (!argument.number_attr().empty()) TF_RETURN_IF_ERROR(context->GetAttr(argument.number_attr(), &number));
    types->insert(types->end(), number, type);
  }
  return absl::OkStatus();
}

// Reads an op's attributes from a kernel's construction or from shape inference.
template <typename Context>
class AttributeGetter {
 public:
  explicit AttributeGetter(Context* context) : context_(context) {}

  template <typename T>
  void operator()(const char* name, T* value) {
    if (status_.ok()) status_ = context_->GetAttr(name, value);
  }

  const absl::Status& status() const { return status_; }

 private:
  Context* context_;
  absl::Status status_;
};

template <typename Context, typename Op>
absl::Status ReadAttributes(Context* context, Op* op) {
  AttributeGetter<Context> getter(context);
  op->VisitAttributes(getter);
  return getter.status();
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_CONVERT_H_
