#include "custom_ops/interface/lamb.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {
namespace {

// One number for each tensor or slice, and so many such outputs.
absl::Status PerPart(tensorflow::shape_inference::InferenceContext* context) {
  int64_t tensors = 0;
  std::vector<int64_t> segments;
  TF_RETURN_IF_ERROR(context->GetAttr("tensors", &tensors));
  TF_RETURN_IF_ERROR(context->GetAttr("segments", &segments));
  const int64_t parts = segments.empty() ? tensors : segments.size();
  for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->Vector(parts));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TftrainLambMoments")
    .Input("scalars: float")
    .Input("weight_decays: float")
    .Input("gradients: gradient_types")
    .Input("m: tensors * resource")
    .Input("v: tensors * resource")
    .Input("weights: tensors * resource")
    .Output("weight_squares: float")
    .Output("update_squares: float")
    .Attr("tensors: int >= 0")
    .Attr("gradient_types: list({float, half, bfloat16}) >= 0")
    .Attr("segments: list(int) = []")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(PerPart);

REGISTER_OP("TftrainLambWeights")
    .Input("scalars: float")
    .Input("weight_decays: float")
    .Input("rates: float")
    .Input("m: tensors * resource")
    .Input("v: tensors * resource")
    .Input("weights: tensors * resource")
    .Input("copies: copies_number * resource")
    .Attr("tensors: int >= 0")
    .Attr("segments: list(int) = []")
    .Attr("copied: list(int) = []")
    .Attr("copies_number: int >= 0")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(PerPart);

REGISTER_OP("TftrainAdamW")
    .Input("scalars: float")
    .Input("weight_decays: float")
    .Input("gradients: gradient_types")
    .Input("m: tensors * resource")
    .Input("v: tensors * resource")
    .Input("weights: tensors * resource")
    .Input("copies: copies_number * resource")
    .Attr("tensors: int >= 0")
    .Attr("gradient_types: list({float, half, bfloat16}) >= 0")
    .Attr("segments: list(int) = []")
    .Attr("copied: list(int) = []")
    .Attr("copies_number: int >= 0")
    .Attr("epsilon: float")
    .SetIsStateful()
    .SetShapeFn(PerPart);

REGISTER_OP("TftrainSquaredNorms")
    .Input("tensors: types")
    .Output("squares: float")
    .Attr("types: list({float, half, bfloat16}) >= 0")
    .SetShapeFn(InferShapes<SquaredNormsOp>);

}  // namespace tftrain
