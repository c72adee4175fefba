// The compiler of TensorFlow's XLA for NVIDIA GPUs on a machine without one, for tools/gpu_compiler.py: it needs the sizes of a
// GPU, not the GPU itself.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensorflow/compiler/tf2xla/layout_util.h"
#include "tensorflow/compiler/tf2xla/xla_compiler.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/framework/function.h"
#include "tensorflow/core/framework/graph.pb.h"
#include "tsl/platform/protobuf.h"
#include "xla/debug_options_flags.h"
#include "xla/ffi/api/ffi.h"
#include "xla/hlo/ir/hlo_computation.h"
#include "xla/hlo/ir/hlo_instruction.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/ir/hlo_opcode.h"
#include "xla/service/compiler.h"
#include "xla/service/executable.h"
#include "xla/service/gpu/backend_configs.pb.h"
#include "xla/service/gpu/model/gpu_hlo_cost_analysis.h"
#include "xla/service/hlo_module_config.h"
#include "xla/stream_executor/device_description.pb.h"
#include "xla/stream_executor/platform_manager.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

namespace {

struct Result {
  std::string unoptimized, optimized, rows;
  std::vector<std::string> parameters;  // of the program: "variable" or "tensor"
};

template <typename Message>
absl::Status Parse(const char* text, Message* message) {
  if (tsl::protobuf::TextFormat::MergeFromString(text, message)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("unreadable: ", text));
}

// The program that TensorFlow hands to XLA for a function of a graph. An argument is a line "kind dtype dim dim ...", where kind
// is "variable" or "tensor", in the order of the function.
absl::StatusOr<std::unique_ptr<xla::HloModule>> Lowered(const std::string& bytes, const char* function, const char* arguments,
                                                        const xla::DebugOptions& options, std::vector<std::string>* parameters) {
  tensorflow::GraphDef graph;
  if (!graph.ParseFromString(bytes)) return absl::InvalidArgumentError("the graph is unreadable");
  tensorflow::FunctionLibraryDefinition functions(tensorflow::OpRegistry::Global(), graph.library());
  std::vector<tensorflow::XlaArgument> values;
  std::istringstream lines(arguments);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string kind;
    int type;
    fields >> kind >> type;
    tensorflow::TensorShape shape;
    for (int64_t dim; fields >> dim;) shape.AddDim(dim);
    tensorflow::XlaArgument value;
    value.kind = kind == "variable" ? tensorflow::XlaArgument::kResource : tensorflow::XlaArgument::kParameter;
    value.resource_kind = kind == "variable" ? tensorflow::XlaResource::kVariable : tensorflow::XlaResource::kInvalid;
    value.initialized = true;
    value.type = static_cast<tensorflow::DataType>(type);
    value.shape = shape;
    values.push_back(value);
  }
  tensorflow::XlaOpRegistry::RegisterCompilationKernels();
  tensorflow::XlaCompiler::Options settings;
  settings.device_type = tensorflow::DeviceType(tensorflow::DEVICE_GPU_XLA_JIT);
  settings.flib_def = &functions;
  settings.graph_def_version = graph.versions().producer();
  settings.shape_determination_fns = tensorflow::XlaShapeLayoutHelpers::ShapeDeterminationFns(
      tensorflow::UseNoPreferenceLayoutFn(), tensorflow::IdentityShapeRepresentationFn());
  settings.alias_passthrough_params = true;  // as tf.function compiles
  tensorflow::XlaCompiler compiler(settings);
  tensorflow::XlaCompiler::CompileOptions how;
  how.always_return_tuple = false;
  how.alias_resource_update = true;
  tensorflow::XlaCompilationResult result;
  tensorflow::NameAttrList name;
  name.set_name(function);
  TF_RETURN_IF_ERROR(compiler.CompileFunction(how, name, values, &result));
  for (int argument : result.input_mapping) {
    const bool variable = values[argument].kind == tensorflow::XlaArgument::kResource;
    parameters->push_back(variable ? "variable" : "tensor");
  }
  TF_ASSIGN_OR_RETURN(xla::HloModuleConfig config,
                      xla::HloModule::CreateModuleConfigFromProto(result.computation->proto(), options));
  return xla::HloModule::CreateFromProto(result.computation->proto(), config);
}

// Writes a line for each instruction that does something on the device, in the order of the program.
class Writer {
 public:
  Writer(const xla::HloModule& module, const std::vector<std::string>& parameters)
      : entry_(module.entry_computation()), parameters_(parameters), costs_(xla::HloCostAnalysis::Options{}) {}

  absl::StatusOr<std::string> Write() {
    TF_RETURN_IF_ERROR(entry_->Accept(&costs_));
    FindResults(entry_->root_instruction());
    Walk(*entry_, /*times=*/1, /*graph=*/"", /*loop=*/"");
    return absl::StrJoin(rows_, "\n");
  }

 private:
  // `times` is how often a step runs the computation; `graph` and `loop` are the innermost ones that it is in.
  void Walk(const xla::HloComputation& computation, int64_t times, const std::string& graph, const std::string& loop) {
    for (const xla::HloInstruction* each : computation.parent()->schedule().sequence(&computation).instructions()) {
      switch (each->opcode()) {
        case xla::HloOpcode::kParameter:
        case xla::HloOpcode::kConstant:
        case xla::HloOpcode::kTuple:
        case xla::HloOpcode::kGetTupleElement:
        case xla::HloOpcode::kBitcast:
          break;
        case xla::HloOpcode::kCall:
          Walk(*each->to_apply(), times, std::string(each->name()), loop);
          break;
        case xla::HloOpcode::kWhile: {
          const auto config = each->backend_config<xla::WhileLoopBackendConfig>();
          const bool known = config.ok() && config->has_known_trip_count();
          const int64_t trips = known ? config->known_trip_count().n() : Bound(*each->while_condition());
          Add(*each, times, graph, loop, absl::StrCat(trips, known ? "" : "?"));
          Walk(*each->while_body(), times * trips, graph, std::string(each->name()));
          if (!known) Walk(*each->while_condition(), times * trips, graph, std::string(each->name()));
          break;
        }
        default:
          Add(*each, times, graph, loop, Kind(*each));
      }
    }
  }

  // The runs of a loop whose condition is "i < number and i + number < number", which XLA counts on the device.
  static int64_t Bound(const xla::HloComputation& condition) {
    int64_t bound = std::numeric_limits<int64_t>::max();
    for (const xla::HloInstruction* each : condition.instructions()) {
      if (each->opcode() == xla::HloOpcode::kFusion) {
        bound = std::min(bound, Bound(*each->fused_instructions_computation()));
      } else if (each->opcode() == xla::HloOpcode::kCompare) {
        bound = std::min(bound, Number(each->operand(1)) - Number(each->operand(0)));
      }
    }
    return bound;
  }

  // The number in a constant or a sum, else 0.
  static int64_t Number(const xla::HloInstruction* each) {
    if (each->opcode() == xla::HloOpcode::kAdd) return Number(each->operand(0)) + Number(each->operand(1));
    return each->opcode() == xla::HloOpcode::kConstant ? each->literal().GetFirstInteger().value_or(0) : 0;
  }

  // What a fusion or a call is: a call's target; a fusion's kind, and its instructions that move or reduce.
  static std::string Kind(const xla::HloInstruction& each) {
    if (each.opcode() == xla::HloOpcode::kCustomCall) return each.custom_call_target();
    if (each.opcode() != xla::HloOpcode::kFusion) return "";
    std::vector<std::string> kinds = {std::string(xla::ToString(each.fusion_kind()))};
    const auto config = each.backend_config<xla::gpu::GpuBackendConfig>();
    if (config.ok()) kinds.push_back(config->fusion_backend_config().kind());
    for (const xla::HloInstruction* part : each.fused_instructions_computation()->instructions()) {
      if (part->opcode() == xla::HloOpcode::kParameter || part->opcode() == xla::HloOpcode::kConstant) continue;
      kinds.push_back(absl::StrCat(xla::HloOpcodeString(part->opcode()), ":", Bytes(part->shape())));
    }
    return absl::StrJoin(kinds, " ");
  }

  static int64_t Bytes(const xla::Shape& shape) {
    int64_t bytes = 0;
    xla::ShapeUtil::ForEachLeafShape(
        shape, [&](const xla::Shape& leaf, const xla::ShapeIndex&) { bytes += xla::ShapeUtil::ByteSizeOf(leaf, 8); });
    return bytes;
  }

  // The instruction whose result an operand is, through tuples, bitcasts and the parameters of a graph.
  const xla::HloInstruction* Origin(const xla::HloInstruction* each) const {
    while (true) {
      if (each->opcode() == xla::HloOpcode::kBitcast) {
        each = each->operand(0);
      } else if (each->opcode() == xla::HloOpcode::kParameter && each->parent() != entry_) {
        const auto callers = each->parent()->caller_instructions(xla::HloOpcode::kCall);
        if (callers.size() != 1) return each;
        each = callers[0]->operand(each->parameter_number());
      } else {
        return each;
      }
    }
  }

  // Finds the instructions whose results are those of the program.
  void FindResults(const xla::HloInstruction* each) {
    switch (each->opcode()) {
      case xla::HloOpcode::kTuple:
        for (const xla::HloInstruction* operand : each->operands()) FindResults(operand);
        break;
      case xla::HloOpcode::kBitcast:
        FindResults(each->operand(0));
        break;
      case xla::HloOpcode::kGetTupleElement:
        if (each->operand(0)->opcode() == xla::HloOpcode::kCall) {
          FindResults(each->operand(0)->to_apply()->root_instruction()->operand(each->tuple_index()));
        } else {
          FindResults(each->operand(0));
        }
        break;
      case xla::HloOpcode::kCall:
        FindResults(each->to_apply()->root_instruction());
        break;
      default:
        results_.insert(each);
    }
  }

  void Add(const xla::HloInstruction& each, int64_t times, const std::string& graph, const std::string& loop,
           const std::string& kind) {
    std::vector<std::string> operands;
    for (const xla::HloInstruction* operand : each.operands()) {
      const xla::HloInstruction* origin = Origin(operand);
      const bool given = origin->opcode() == xla::HloOpcode::kParameter && origin->parent() == entry_;
      const std::string shape = xla::ShapeUtil::HumanString(operand->shape());
      operands.push_back(absl::StrCat(given ? parameters_[origin->parameter_number()] : "", " ", shape));
    }
    rows_.push_back(absl::StrJoin({absl::StrCat(times), graph, loop, std::string(xla::HloOpcodeString(each.opcode())),
                                   std::string(each.name()), kind, absl::StrCat(costs_.flop_count(each)),
                                   absl::StrCat(costs_.bytes_accessed(each)), xla::ShapeUtil::HumanString(each.shape()),
                                   absl::StrJoin(operands, ";"), results_.contains(&each) ? "result" : "",
                                   each.metadata().op_name(),
                                   each.opcode() == xla::HloOpcode::kCustomCall ? each.raw_backend_config_string() : ""},
                                  "\t"));
  }

  const xla::HloComputation* entry_;
  const std::vector<std::string>& parameters_;
  xla::gpu::GpuHloCostAnalysis costs_;
  absl::flat_hash_set<const xla::HloInstruction*> results_;
  std::vector<std::string> rows_;
};

absl::Status Compile(std::unique_ptr<xla::HloModule> module, const char* gpu, const xla::DebugOptions& options, bool to_the_end,
                     Result* result) {
  stream_executor::GpuTargetConfigProto target;
  TF_RETURN_IF_ERROR(Parse(gpu, &target));
  TF_ASSIGN_OR_RETURN(auto platform, stream_executor::PlatformManager::PlatformWithName("CUDA"));
  TF_ASSIGN_OR_RETURN(auto compiler, xla::Compiler::GetForPlatform(platform));
  xla::Compiler::CompileOptions how;
  how.target_config.emplace(target);
  // No message of the target has the driver, on which it depends what a CUDA graph may contain.
  how.target_config->device_description.set_driver_version({13, 0, 0});
  TF_ASSIGN_OR_RETURN(module, compiler->RunHloPasses(std::move(module), /*executor=*/nullptr, how));
  result->optimized = module->ToString();
  if (!to_the_end) return absl::OkStatus();
  TF_ASSIGN_OR_RETURN(auto executable, compiler->RunBackend(std::move(module), /*executor=*/nullptr, how));
  result->optimized = executable->module().ToString();
  TF_ASSIGN_OR_RETURN(result->rows, Writer(executable->module(), result->parameters).Write());
  return absl::OkStatus();
}

absl::Status CompileFunction(const std::string& graph, const char* function, const char* arguments, const char* gpu,
                             const char* flags, bool to_the_end, Result* result) {
  xla::DebugOptions options = xla::GetDebugOptionsFromFlags();
  TF_RETURN_IF_ERROR(Parse(flags, &options));
  TF_ASSIGN_OR_RETURN(auto module, Lowered(graph, function, arguments, options, &result->parameters));
  result->unoptimized = module->ToString();
  return Compile(std::move(module), gpu, options, to_the_end, result);
}

XLA_FFI_DEFINE_HANDLER(kNothing,
                       [](xla::ffi::RemainingArgs, xla::ffi::RemainingRets, xla::ffi::Dictionary) {
                         return xla::ffi::Error::Success();
                       },
                       xla::ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attrs(), {xla::ffi::Traits::kCmdBufferCompatible});

}  // namespace

extern "C" {

// Registers a call of the name for CUDA that XLA may record in a graph, as custom_ops/ffi/cuda_handlers.cc does. It does nothing.
__attribute__((visibility("default"))) void register_call(const char* name) {
  xla::ffi::Ffi::RegisterStaticHandler(xla::ffi::GetXlaFfiApi(), name, "CUDA", kNothing);
}

// Compiles a function of a serialized GraphDef; returns an error or "". `gpu` is a GpuTargetConfigProto and `flags` are
// DebugOptions, both as text. The texts that it points to live up to the next call.
__attribute__((visibility("default"))) const char* compile(const char* graph, int64_t size, const char* function,
                                                           const char* arguments, const char* gpu, const char* flags,
                                                           bool to_the_end, const char** unoptimized, const char** optimized,
                                                           const char** rows) {
  static Result result;
  static std::string error;
  result = Result();
  const absl::Status status = CompileFunction({graph, static_cast<size_t>(size)}, function, arguments, gpu, flags, to_the_end, &result);
  error = status.ok() ? "" : status.ToString();
  *unoptimized = result.unoptimized.c_str();
  *optimized = result.optimized.c_str();
  *rows = result.rows.c_str();
  return error.c_str();
}
}
