// All ops: TFTRAIN_FOR_EACH_OP(OP) expands OP(class, symbol) for each. Handlers are named by the symbol, with _host or _cuda
// after it.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_ALL_OPS_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_ALL_OPS_H_

#include "custom_ops/interface/attention_softmax.h"
#include "custom_ops/interface/bias_dropout_add.h"
#include "custom_ops/interface/flash_attention.h"
#include "custom_ops/interface/gelu.h"
#include "custom_ops/interface/glu.h"
#include "custom_ops/interface/lamb.h"
#include "custom_ops/interface/layer_norm.h"

#define TFTRAIN_FOR_EACH_OP(OP)                                        \
  OP(AttentionSoftmaxOp, tftrain_attention_softmax)                    \
  OP(AttentionSoftmaxGradOp, tftrain_attention_softmax_grad)           \
  OP(BiasDropoutAddOp, tftrain_bias_dropout_add)                       \
  OP(BiasDropoutAddGradOp, tftrain_bias_dropout_add_grad)              \
  OP(FlashAttentionOp, tftrain_flash_attention)                        \
  OP(FlashAttentionGradOp, tftrain_flash_attention_grad)               \
  OP(GegluOp, tftrain_geglu)                                           \
  OP(GegluGradOp, tftrain_geglu_grad)                                  \
  OP(GeluOp, tftrain_gelu)                                             \
  OP(GeluGradOp, tftrain_gelu_grad)                                    \
  OP(AdamWOp, tftrain_adamw)                                           \
  OP(LambMomentsOp, tftrain_lamb_moments)                              \
  OP(LambWeightsOp, tftrain_lamb_weights)                              \
  OP(SquaredNormsOp, tftrain_squared_norms)                            \
  OP(LayerNormOp, tftrain_layer_norm)                                  \
  OP(LayerNormGradOp, tftrain_layer_norm_grad)                         \
  OP(RmsNormOp, tftrain_rms_norm)                                      \
  OP(RmsNormGradOp, tftrain_rms_norm_grad)                             \
  OP(SwigluOp, tftrain_swiglu)                                         \
  OP(SwigluGradOp, tftrain_swiglu_grad)

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_ALL_OPS_H_
