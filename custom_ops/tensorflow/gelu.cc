#include "custom_ops/interface/gelu.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

REGISTER_OP("TftrainGelu")
    .Input("x: T")
    .Input("bias: biases * P")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .Attr("approximate: int")
    .SetShapeFn(InferShapes<GeluOp>);

REGISTER_OP("TftrainGeluGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("bias: biases * P")
    .Output("dx: T")
    .Output("dbias: biases * P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .Attr("approximate: int")
    .SetShapeFn(InferShapes<GeluGradOp>);

}  // namespace tftrain
