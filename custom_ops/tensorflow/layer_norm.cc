#include "custom_ops/interface/layer_norm.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

REGISTER_OP("TftrainLayerNorm")
    .Input("x: T")
    .Input("gamma: P")
    .Input("beta: P")
    .Output("y: T")
    .Output("mean: float")
    .Output("rstd: float")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .Attr("epsilon: float")
    .SetShapeFn(InferShapes<LayerNormOp>);

REGISTER_OP("TftrainLayerNormGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("gamma: P")
    .Input("mean: float")
    .Input("rstd: float")
    .Output("dx: T")
    .Output("dgamma: P")
    .Output("dbeta: P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .SetShapeFn(InferShapes<LayerNormGradOp>);

REGISTER_OP("TftrainRmsNorm")
    .Input("x: T")
    .Input("gamma: P")
    .Output("y: T")
    .Output("rstd: float")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .Attr("epsilon: float")
    .SetShapeFn(InferShapes<RmsNormOp>);

REGISTER_OP("TftrainRmsNormGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("gamma: P")
    .Input("rstd: float")
    .Output("dx: T")
    .Output("dgamma: P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .SetShapeFn(InferShapes<RmsNormGradOp>);

}  // namespace tftrain
