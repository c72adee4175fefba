// What the definitions of ops share: their shape function, and attributes that several of them have.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_DEFINITION_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_DEFINITION_H_

#include <string>
#include <vector>

#include "custom_ops/interface/tensor.h"
#include "custom_ops/tensorflow/convert.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace tftrain {

template <typename Op>
absl::Status InferShapes(tensorflow::shape_inference::InferenceContext* context) {
  Op op;
  TF_RETURN_IF_ERROR(ReadAttributes(context, &op));
  std::vector<tensorflow::DataType> types;
  TF_RETURN_IF_ERROR(InputTypes(context, Op::kName, &types));
  std::vector<Spec> in;
  for (int i = 0; i < context->num_inputs(); ++i) {
    in.push_back({ElementOf(types[i]), DimsOf(context, context->input(i))});
  }
  std::vector<Spec> out;
  const std::string problem = op.Infer(in, &out);
  if (!problem.empty()) return tensorflow::errors::InvalidArgument(Op::kName, ": ", problem);
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, ShapeOf(context, out[i].dims));
  return absl::OkStatus();
}

}  // namespace tftrain

#define TFTRAIN_DROPOUT_ATTRIBUTES Attr("drop_below: int").Attr("seed: int").Attr("site: int")

#define TFTRAIN_ATTENTION_ATTRIBUTES    \
  Attr("T: {float, half, bfloat16}")    \
      .Attr("scale: float")             \
      .Attr("causal: bool")             \
      .TFTRAIN_DROPOUT_ATTRIBUTES       \
      .Attr("first_head: int")          \
      .Attr("total_heads: int")

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_DEFINITION_H_
