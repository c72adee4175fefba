// cuDNN's fused attention inside XLA clusters on a GPU: the custom calls that XLA's own compiler turns into cuDNN graphs.
// There is no kernel elsewhere. The order of operands and results, and the dimension numbers, are those that XLA's
// cudnn_custom_call_compiler.cc reads; the configuration is XLA's own message, so its fields are those of this XLA.
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "google/protobuf/util/json_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/service/gpu/backend_configs.pb.h"
#include "xla/shape_util.h"

namespace tftrain {
namespace {

using tensorflow::shape_inference::InferenceContext;

absl::Status InferForward(InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle query;
  TF_RETURN_IF_ERROR(context->WithRank(context->input(0), 4, &query));
  context->set_output(0, query);
  context->set_output(1, context->MakeShape({context->Dim(query, 0), context->Dim(query, 2), context->Dim(query, 1)}));
  return absl::OkStatus();
}

absl::Status InferBackward(InferenceContext* context) {
  for (int i = 0; i < 3; ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("TftrainCudnnAttention")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("query_lengths: int32")
    .Input("key_lengths: int32")
    .Output("context: T")
    .Output("log_sum_exp: float")
    .Attr("T: {half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .SetShapeFn(InferForward);

REGISTER_OP("TftrainCudnnAttentionGrad")
    .Input("query: T")
    .Input("key: T")
    .Input("value: T")
    .Input("log_sum_exp: float")
    .Input("dcontext: T")
    .Input("context: T")
    .Input("query_lengths: int32")
    .Input("key_lengths: int32")
    .Output("dquery: T")
    .Output("dkey: T")
    .Output("dvalue: T")
    .Attr("T: {half, bfloat16}")
    .Attr("scale: float")
    .Attr("causal: bool")
    .SetShapeFn(InferBackward);

namespace {

void SetDimensions(xla::DotDimensionNumbers* product, int64_t lhs_contracting, int64_t rhs_contracting,
                   std::pair<int64_t, int64_t> lhs_batch, std::pair<int64_t, int64_t> rhs_batch) {
  product->add_lhs_contracting_dimensions(lhs_contracting);
  product->add_rhs_contracting_dimensions(rhs_contracting);
  for (int64_t dim : {lhs_batch.first, lhs_batch.second}) product->add_lhs_batch_dimensions(dim);
  for (int64_t dim : {rhs_batch.first, rhs_batch.second}) product->add_rhs_batch_dimensions(dim);
}

class CudnnAttentionKernel : public tensorflow::XlaOpKernel {
 public:
  explicit CudnnAttentionKernel(tensorflow::OpKernelConstruction* context) : XlaOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("scale", &scale_));
    OP_REQUIRES_OK(context, context->GetAttr("causal", &causal_));
  }

 protected:
  // Tensors here are [b, S, heads, head_size]; scores and probabilities, which no one writes, [b, heads, S, S].
  xla::gpu::GpuBackendConfig Config(const xla::Shape& query, const xla::Shape& key) const {
    xla::gpu::GpuBackendConfig config;
    xla::gpu::CudnnfMHABackendConfig& attention = *config.mutable_cudnn_fmha_backend_config();
    attention.mutable_algorithm()->set_math_type(stream_executor::dnn::AlgorithmProto::TENSOR_OP_MATH);
    attention.mutable_algorithm()->set_is_cudnn_frontend(true);
    attention.set_fmha_scale(scale_);
    attention.set_is_flash_attention(true);
    attention.set_max_seg_per_batch(1);
    attention.set_mask_type(causal_ ? xla::gpu::CudnnfMHABackendConfig::PADDING_CAUSAL
                                    : xla::gpu::CudnnfMHABackendConfig::PADDING);
    *attention.mutable_intermediate_tensor_shape() =
        xla::ShapeUtil::MakeShapeWithDescendingLayout(
            query.element_type(), {query.dimensions(0), query.dimensions(2), query.dimensions(1), key.dimensions(1)})
            .ToProto();
    return config;
  }

  // Calls cuDNN. Operands are row-major; results are [b, heads, S, head_size] with the memory of [b, S, heads,
  // head_size], so that the transposition to the latter moves nothing. The last result is the workspace, whose size XLA
  // fills in.
  xla::XlaOp Call(tensorflow::XlaOpKernelContext* context, const char* target, std::vector<xla::Shape> results,
                  const xla::gpu::GpuBackendConfig& config) {
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> shapes;
    for (int i = 0; i < context->num_inputs(); ++i) {
      operands.push_back(context->Input(i));
      auto shape = context->builder()->GetShape(operands.back());
      if (!shape.ok()) return context->builder()->ReportError(shape.status());
      shapes.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(shape->element_type(), shape->dimensions()));
    }
    results.push_back(xla::ShapeUtil::MakeShapeWithDescendingLayout(xla::U8, {0}));
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    std::string written;
    if (auto status = google::protobuf::util::MessageToJsonString(config, &written, options); !status.ok()) {
      return context->builder()->ReportError(status);
    }
    return xla::CustomCallWithLayout(context->builder(), target, operands, xla::ShapeUtil::MakeTupleShape(results),
                                     shapes, written);
  }

  static xla::Shape ResultOf(const xla::Shape& shape) {
    return xla::ShapeUtil::MakeShapeWithDenseLayout(
        shape.element_type(), {shape.dimensions(0), shape.dimensions(2), shape.dimensions(1), shape.dimensions(3)},
        {3, 1, 2, 0});
  }

  static xla::XlaOp TokensFirst(xla::XlaOp call, int64_t i) {
    return xla::Transpose(xla::GetTupleElement(call, i), {0, 2, 1, 3});
  }

 private:
  float scale_;
  bool causal_;
};

class Forward : public CudnnAttentionKernel {
 public:
  using CudnnAttentionKernel::CudnnAttentionKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    const auto query = context->InputXlaShape(0), key = context->InputXlaShape(1);
    OP_REQUIRES_OK(context, query.status());
    OP_REQUIRES_OK(context, key.status());
    xla::gpu::GpuBackendConfig config = Config(*query, *key);
    auto& attention = *config.mutable_cudnn_fmha_backend_config();
    SetDimensions(attention.mutable_bmm1_dot_dimension_numbers(), 3, 3, {0, 2}, {0, 2});  // query, key -> scores
    SetDimensions(attention.mutable_bmm2_dot_dimension_numbers(), 3, 1, {0, 1}, {0, 2});  // weights, value -> context
    const auto log_sum_exp = xla::ShapeUtil::MakeShapeWithDescendingLayout(
        xla::F32, {query->dimensions(0), query->dimensions(2), query->dimensions(1)});
    const xla::XlaOp call = Call(context, "__cudnn$fmhaSoftmax", {ResultOf(*query), log_sum_exp}, config);
    context->SetOutput(0, TokensFirst(call, 0));
    context->SetOutput(1, xla::GetTupleElement(call, 1));
  }
};

class Backward : public CudnnAttentionKernel {
 public:
  using CudnnAttentionKernel::CudnnAttentionKernel;

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    std::vector<xla::Shape> results, shapes;
    for (int i = 0; i < 3; ++i) {
      const auto shape = context->InputXlaShape(i);
      OP_REQUIRES_OK(context, shape.status());
      shapes.push_back(*shape);
      results.push_back(ResultOf(*shape));
    }
    xla::gpu::GpuBackendConfig config = Config(shapes[0], shapes[1]);
    auto& attention = *config.mutable_cudnn_fmha_backend_config();
    // dscores, query -> dkey; dscores, key -> dquery; weights, dcontext -> dvalue; dcontext, value -> dweights
    SetDimensions(attention.mutable_bmm1_grad_gemm1_dot_dimension_numbers(), 2, 1, {0, 1}, {0, 2});
    SetDimensions(attention.mutable_bmm1_grad_gemm2_dot_dimension_numbers(), 3, 1, {0, 1}, {0, 2});
    SetDimensions(attention.mutable_bmm2_grad_gemm1_dot_dimension_numbers(), 2, 1, {0, 1}, {0, 2});
    SetDimensions(attention.mutable_bmm2_grad_gemm2_dot_dimension_numbers(), 3, 3, {0, 2}, {0, 2});
    const xla::XlaOp call = Call(context, "__cudnn$fmhaSoftmaxBackward", results, config);
    for (int i = 0; i < 3; ++i) context->SetOutput(i, TokensFirst(call, i));
  }
};

REGISTER_KERNEL_BUILDER(Name("TftrainCudnnAttention").Device(tensorflow::DEVICE_GPU_XLA_JIT), Forward);
REGISTER_KERNEL_BUILDER(Name("TftrainCudnnAttentionGrad").Device(tensorflow::DEVICE_GPU_XLA_JIT), Backward);

}  // namespace
}  // namespace tftrain
