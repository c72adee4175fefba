#include "custom_ops/interface/layer_norm.h"

#include "custom_ops/tensorflow/op_kernel.h"

namespace tftrain {

REGISTER_OP("TftrainLayerNorm")
    .Input("x: T")
    .Input("gamma: P")
    .Input("beta: P")
    .Input("residual: residuals * T")
    .Output("y: T")
    .Output("mean: float")
    .Output("rstd: float")
    .Output("sum: residuals * T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .Attr("residuals: int >= 0")
    .Attr("epsilon: float")
    // Whether the sum's gradient is taken; if not, gradient functions need not make zeros for it.
    .Attr("sum_gradient: bool")
    .SetShapeFn(InferShapes<LayerNormOp>);

REGISTER_OP("TftrainLayerNormGrad")
    .Input("dy: T")
    .Input("x: T")
    .Input("gamma: P")
    .Input("mean: float")
    .Input("rstd: float")
    .Input("dsum: dsums * T")
    .Output("dx: T")
    .Output("dgamma: P")
    .Output("dbeta: P")
    .Attr("T: {float, half, bfloat16}")
    .Attr("P: {float, half, bfloat16}")
    .Attr("dsums: int >= 0")
    .SetShapeFn(InferShapes<LayerNormGradOp>);

TFTRAIN_CPU_KERNEL(LayerNormOp);
TFTRAIN_CPU_KERNEL(LayerNormGradOp);

}  // namespace tftrain
