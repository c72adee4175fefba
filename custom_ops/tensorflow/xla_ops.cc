// Every op inside XLA clusters: compiled to a custom call of the FFI handler that bears the op's name, with the op's
// attributes as the call's. XLA does not look into the call, and fuses around it.
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "custom_ops/interface/all_ops.h"
#include "custom_ops/tensorflow/convert.h"
#include "custom_ops/tensorflow/xla_ffi.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/shape_util.h"

namespace tftrain {
namespace {

// Writes attributes as an MLIR dictionary, which is how a custom call carries them.
class AttributeWriter {
 public:
  void operator()(const char* name, float* value) { Add(name, absl::StrFormat("%.9e : f32", *value)); }
  void operator()(const char* name, bool* value) { Add(name, *value ? "true" : "false"); }
  void operator()(const char* name, int64_t* value) { Add(name, absl::StrCat(*value, " : i64")); }
  void operator()(const char* name, std::vector<int64_t>* values) {
    Add(name, absl::StrCat("array<i64", values->empty() ? "" : ": ", absl::StrJoin(*values, ", "), ">"));
  }

  std::string dictionary() const { return absl::StrCat("{", absl::StrJoin(entries_, ", "), "}"); }

 private:
  void Add(const char* name, const std::string& value) { entries_.push_back(absl::StrCat(name, " = ", value)); }

  std::vector<std::string> entries_;
};

xla::Shape XlaShape(const Spec& spec) {
  const xla::PrimitiveType types[] = {xla::F32, xla::F16, xla::BF16, xla::S32, xla::S64, xla::U8};
  return xla::ShapeUtil::MakeShapeWithDescendingLayout(types[static_cast<int>(spec.element)], spec.dims.sizes);
}

template <typename Op>
class XlaFfiKernel : public tensorflow::XlaOpKernel {
 public:
  explicit XlaFfiKernel(tensorflow::OpKernelConstruction* context)
      : XlaOpKernel(context), on_gpu_(context->device_type() == tensorflow::DEVICE_GPU_XLA_JIT) {
    OP_REQUIRES_OK(context, ReadAttributes(context, &op_));
    AttributeWriter writer;
    op_.VisitAttributes(writer);
    attributes_ = writer.dictionary();
  }

  void Compile(tensorflow::XlaOpKernelContext* context) override {
    std::vector<Spec> in;
    std::vector<xla::XlaOp> operands;
    std::vector<xla::Shape> operand_shapes;
    std::vector<tensorflow::DataType> types;
    for (int i = 0; i < context->num_inputs(); ++i) {
      tensorflow::TensorShape shape;
      xla::XlaOp operand;
      tensorflow::DataType type = context->input_type(i);
      if (type == tensorflow::DT_RESOURCE) {
        OP_REQUIRES_OK(context, context->GetVariableTypeAndShape(i, &type, &shape));
        OP_REQUIRES_OK(context, context->ReadVariableInput(i, type, &shape, &operand));
      } else {
        shape = context->InputShape(i);
        operand = context->Input(i);
      }
      types.push_back(type);
      in.push_back({ElementOf(type), DimsOf(shape)});
      operands.push_back(operand);
      operand_shapes.push_back(XlaShape(in.back()));
    }
    std::vector<Spec> out;
    const std::string problem = InferResults(op_, in, on_gpu_, &out);
    OP_REQUIRES(context, problem.empty(),
                tensorflow::errors::InvalidArgument(name(), " (", Op::kName, "): ", problem));
    std::vector<xla::Shape> shapes;
    for (const Spec& spec : out) shapes.push_back(XlaShape(spec));
    // Row-major layouts are part of the call, or XLA would be free to choose others.
    const bool one = shapes.size() == 1;
    std::vector<std::pair<xla::ShapeIndex, std::pair<int64_t, xla::ShapeIndex>>> in_place;
    for (const Update& update : UpdatesOf(op_)) {
      in_place.push_back({one ? xla::ShapeIndex{} : xla::ShapeIndex{update.out}, {update.in, {}}});
    }
    const xla::XlaOp call = xla::CustomCallWithLayout(
        context->builder(), Op::kName, operands, one ? shapes[0] : xla::ShapeUtil::MakeTupleShape(shapes),
        operand_shapes, attributes_, /*has_side_effect=*/false, in_place, /*literal=*/nullptr,
        xla::CustomCallSchedule::SCHEDULE_NONE, xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
    const auto result = [&](int64_t i) { return one ? call : xla::GetTupleElement(call, i); };
    for (int i = 0; i < context->num_outputs(); ++i) context->SetOutput(i, result(i));
    for (const Update& update : UpdatesOf(op_)) {
      OP_REQUIRES_OK(context, context->AssignVariable(update.in, types[update.in], result(update.out)));
    }
  }

 private:
  Op op_;
  const bool on_gpu_;
  std::string attributes_;
};

// REGISTER_XLA_OP would do this, but only for libraries that are loaded before the first operation runs: TensorFlow makes
// kernels of its list of XLA ops once. Registered as the kernels that they become, ops can be loaded at any time.
#define TFTRAIN_XLA_KERNEL(Op, symbol)                                                                   \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_CPU_XLA_JIT), XlaFfiKernel<Op>); \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_GPU_XLA_JIT), XlaFfiKernel<Op>);

TFTRAIN_FOR_EACH_OP(TFTRAIN_XLA_KERNEL)

}  // namespace
}  // namespace tftrain

#define TFTRAIN_DECLARE_HOST(Op, symbol) extern "C" XLA_FFI_Error* symbol##_host(XLA_FFI_CallFrame* frame);
#define TFTRAIN_REGISTER_HOST(Op, symbol) \
  XLA_FFI_REGISTER_HANDLER(xla::ffi::GetXlaFfiApi(), tftrain::Op::kName, "Host", symbol##_host);

TFTRAIN_FOR_EACH_OP(TFTRAIN_DECLARE_HOST)
TFTRAIN_FOR_EACH_OP(TFTRAIN_REGISTER_HOST)
