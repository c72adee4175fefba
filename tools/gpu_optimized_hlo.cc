// The compiler of TensorFlow's XLA for NVIDIA GPUs on a machine without one, for tools/gpu_epilogues.py and tools/gpu_memory.py:
// it needs the sizes of a GPU, not the GPU itself.
#include <memory>
#include <string>
#include <utility>

#include "tsl/platform/protobuf.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/parser/hlo_parser.h"
#include "xla/service/compiler.h"
#include "xla/service/hlo_module_config.h"
#include "xla/stream_executor/device_description.pb.h"
#include "xla/stream_executor/platform_manager.h"

namespace {

// With `to_the_end`, compiles the optimized program too, so that what flags ask for is dumped.
absl::StatusOr<std::string> Optimized(const char* hlo, const char* gpu, const char* flags, bool to_the_end) {
  stream_executor::GpuTargetConfigProto target;
  xla::DebugOptions options = xla::GetDebugOptionsFromFlags();
  if (!tsl::protobuf::TextFormat::ParseFromString(gpu, &target)) return absl::InvalidArgumentError("the GPU is unreadable");
  if (!tsl::protobuf::TextFormat::MergeFromString(flags, &options)) {
    return absl::InvalidArgumentError("the flags are unreadable");
  }
  auto platform = stream_executor::PlatformManager::PlatformWithName("CUDA");
  if (!platform.ok()) return platform.status();
  auto compiler = xla::Compiler::GetForPlatform(*platform);
  if (!compiler.ok()) return compiler.status();
  xla::HloModuleConfig config;
  config.set_debug_options(options);
  auto module = xla::ParseAndReturnUnverifiedModule(hlo, config);
  if (!module.ok()) return module.status();
  xla::Compiler::CompileOptions compile_options;
  compile_options.target_config.emplace(target);
  auto optimized = (*compiler)->RunHloPasses(*std::move(module), /*executor=*/nullptr, compile_options);
  if (!optimized.ok()) return optimized.status();
  std::string text = (*optimized)->ToString();
  if (!to_the_end) return text;
  auto executable = (*compiler)->RunBackend(*std::move(optimized), /*executor=*/nullptr, compile_options);
  if (!executable.ok()) return executable.status();
  return text;
}

}  // namespace

// Returns the optimized program of an unoptimized one, or a message that begins with "error: ", up to the next call. `gpu` is a
// GpuTargetConfigProto and `flags` are DebugOptions, both as text.
extern "C" __attribute__((visibility("default"))) const char* optimized_hlo(const char* hlo, const char* gpu,
                                                                            const char* flags, bool to_the_end) {
  static std::string result;
  const auto optimized = Optimized(hlo, gpu, flags, to_the_end);
  result = optimized.ok() ? *optimized : "error: " + optimized.status().ToString();
  return result.c_str();
}
