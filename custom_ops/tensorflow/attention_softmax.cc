#include "custom_ops/interface/attention_softmax.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

REGISTER_OP("TftrainAttentionSoftmax")
    .Input("scores: T")
    .Input("key_mask: int32")
    .Input("position: int64")
    .Output("probabilities: T")
    .Output("dropped: dropouts * T")
    .TFTRAIN_ATTENTION_ATTRIBUTES
    .Attr("dropouts: int >= 0")
    .SetShapeFn(InferShapes<AttentionSoftmaxOp>);

REGISTER_OP("TftrainAttentionSoftmaxGrad")
    .Input("ddropped: T")
    .Input("probabilities: T")
    .Input("position: int64")
    .Output("dscores: T")
    .Output("dropped: dropouts * T")
    .TFTRAIN_ATTENTION_ATTRIBUTES
    .Attr("dropouts: int >= 0")
    .SetShapeFn(InferShapes<AttentionSoftmaxGradOp>);

}  // namespace tftrain
