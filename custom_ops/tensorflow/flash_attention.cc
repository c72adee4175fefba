#include "custom_ops/interface/flash_attention.h"

#include "custom_ops/tensorflow/op_kernel.h"

namespace tftrain {

REGISTER_OP("TftrainFlashAttention")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("key_mask: int32")
    .Input("position: int64")
    .Input("segments: segment_lists * int32")
    .Input("slopes: slope_lists * float")
    .Output("context: T")
    .Output("log_sum_exp: float")
    .Attr("T: {float, half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .Attr("drop_below: int")
    .Attr("seed: int")
    .Attr("site: int")
    .Attr("first_head: int")
    .Attr("total_heads: int")
    .Attr("segment_lists: int >= 0")
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
    .Input("segments: segment_lists * int32")
    .Input("slopes: slope_lists * float")
    .Output("dquery: T")
    .Output("dkey: T")
    .Output("dvalue: T")
    .Attr("T: {float, half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .Attr("drop_below: int")
    .Attr("seed: int")
    .Attr("site: int")
    .Attr("first_head: int")
    .Attr("total_heads: int")
    .Attr("segment_lists: int >= 0")
    .Attr("slope_lists: int >= 0")
    .SetShapeFn(InferShapes<FlashAttentionGradOp>);

TFTRAIN_CPU_KERNEL(FlashAttentionOp);
TFTRAIN_CPU_KERNEL(FlashAttentionGradOp);

}  // namespace tftrain
