// Every op on the CPU, in eager and graph mode.
#include "custom_ops/interface/all_ops.h"
#include "custom_ops/tensorflow/op_kernel.h"

namespace tftrain {
namespace {

#define TFTRAIN_CPU_KERNEL(Op, symbol) \
  REGISTER_KERNEL_BUILDER(Name(Op::kName).Device(tensorflow::DEVICE_CPU), Kernel<Op, CpuDevice>);

TFTRAIN_FOR_EACH_OP(TFTRAIN_CPU_KERNEL)

}  // namespace
}  // namespace tftrain
