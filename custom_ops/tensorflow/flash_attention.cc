#include "custom_ops/interface/flash_attention.h"

#include "custom_ops/tensorflow/definition.h"

namespace tftrain {

REGISTER_OP("TftrainFlashAttention")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("key_mask: int32")
    .Input("position: int64")
    .Input("sequence_ids: sequence_id_lists * int32")
    .Input("slopes: slope_lists * float")
    .Output("context: T")
    .Output("log_sum_exp: float")
    .TFTRAIN_ATTENTION_ATTRIBUTES
    .Attr("window: int")
    .Attr("sequence_id_lists: int >= 0")
    .Attr("slope_lists: int >= 0")
    .SetShapeFn(InferShapes<FlashAttentionOp>);

REGISTER_OP("TftrainFlashAttentionGrad")
    .Input("dcontext: T")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("context: T")
    .Input("log_sum_exp: float")
    .Input("key_mask: int32")
    .Input("position: int64")
    .Input("sequence_ids: sequence_id_lists * int32")
    .Input("slopes: slope_lists * float")
    .Output("dquery: T")
    .Output("dkey: T")
    .Output("dvalue: T")
    .TFTRAIN_ATTENTION_ATTRIBUTES
    .Attr("window: int")
    .Attr("sequence_id_lists: int >= 0")
    .Attr("slope_lists: int >= 0")
    .Attr("atomic: bool")
    .SetShapeFn(InferShapes<FlashAttentionGradOp>);

}  // namespace tftrain
