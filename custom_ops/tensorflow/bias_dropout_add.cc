#include "custom_ops/interface/bias_dropout_add.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

REGISTER_OP("TftrainBiasDropoutAdd")
    .Input("x: T")
    .Input("bias: P")
    .Input("residual: T")
    .Input("position: int64")
    .Output("y: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .TFTRAIN_DROPOUT_ATTRIBUTES
    .Attr("first_row: int = 0")
    .Attr("total_rows: int = 0")
    .SetShapeFn(InferShapes<BiasDropoutAddOp>);

REGISTER_OP("TftrainBiasDropoutAddGrad")
    .Input("dy: T")
    .Input("bias: P")
    .Input("position: int64")
    .Output("dx: T")
    .Output("dbias: P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .TFTRAIN_DROPOUT_ATTRIBUTES
    .Attr("first_row: int = 0")
    .Attr("total_rows: int = 0")
    .SetShapeFn(InferShapes<BiasDropoutAddGradOp>);

}  // namespace tftrain
