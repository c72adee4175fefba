#include "custom_ops/interface/glu.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

// The biases are those of gate and up, in this order.
REGISTER_OP("TftrainGeglu")
    .Input("gate: T")
    .Input("up: T")
    .Input("bias: biases * P")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .Attr("approximate: int")
    .SetShapeFn(InferShapes<GegluOp>);

REGISTER_OP("TftrainGegluGrad")
    .Input("dy: T")
    .Input("gate: T")
    .Input("up: T")
    .Input("bias: biases * P")
    .Output("dgate: T")
    .Output("dup: T")
    .Output("dbias: biases * P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .Attr("approximate: int")
    .SetShapeFn(InferShapes<GegluGradOp>);

REGISTER_OP("TftrainSwiglu")
    .Input("gate: T")
    .Input("up: T")
    .Input("bias: biases * P")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .SetShapeFn(InferShapes<SwigluOp>);

REGISTER_OP("TftrainSwigluGrad")
    .Input("dy: T")
    .Input("gate: T")
    .Input("up: T")
    .Input("bias: biases * P")
    .Output("dgate: T")
    .Output("dup: T")
    .Output("dbias: biases * P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16} = DT_FLOAT")
    .Attr("biases: int >= 0")
    .SetShapeFn(InferShapes<SwigluGradOp>);

}  // namespace tftrain
