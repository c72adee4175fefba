#include "custom_ops/interface/attention_softmax.h"

#include "custom_ops/tensorflow/op_kernel.h"

namespace tftrain {

REGISTER_OP("TftrainAttentionSoftmax")
    .Input("scores: T")
    .Input("key_mask: int32")
    .Input("position: int64")
    .Output("probabilities: T")
    .Output("dropped: dropouts * T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .Attr("drop_below: int")
    .Attr("seed: int")
    .Attr("site: int")
    .Attr("first_head: int")
    .Attr("total_heads: int")
    .Attr("dropouts: int >= 0")
    .SetShapeFn(InferShapes<AttentionSoftmaxOp>);

REGISTER_OP("TftrainAttentionSoftmaxGrad")
    .Input("ddropped: T")
    .Input("probabilities: T")
    .Input("position: int64")
    .Output("dscores: T")
    .Output("dropped: dropouts * T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .Attr("drop_below: int")
    .Attr("seed: int")
    .Attr("site: int")
    .Attr("first_head: int")
    .Attr("total_heads: int")
    .Attr("dropouts: int >= 0")
    .SetShapeFn(InferShapes<AttentionSoftmaxGradOp>);

TFTRAIN_CPU_KERNEL(AttentionSoftmaxOp);
TFTRAIN_CPU_KERNEL(AttentionSoftmaxGradOp);

}  // namespace tftrain
