// The CUDA side of a launch: kernels take the same arguments as on the CPU, all pointers then being to device memory, and a
// stream in place of threads. The calls return at once; the work is done in the stream's order, without a round trip to the
// host, and bitwise the same in every run on one kind of GPU. No CUDA header is needed to call them.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_

#include <cstdint>

#include "custom_ops/kernels/common/workspace.h"

namespace tftrain {

// A kernel is launched with all the memory that it needs, and takes no more: launches may be recorded in a CUDA graph and
// run again long after the call that made them.
struct CudaStream {
  void* handle;  // a cudaStream_t
  // Device memory for nothing but the work of this call, for as long as that may run. workspace.h says how much.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
};

// Null, or a message about the failure.
using CudaError = const char*;

// From device memory to device memory.
void CopyBytes(void* to, const void* from, int64_t bytes, const CudaStream& stream);

// Sets `parts` to so many numbers of the workspace.
inline CudaError TakeWorkspace(const CudaStream& stream, int64_t numbers, float** parts) {
  if (numbers * static_cast<int64_t>(sizeof(float)) > stream.workspace_bytes) return "the workspace is too small";
  if (reinterpret_cast<uintptr_t>(stream.workspace) % kWorkspaceAlignment != 0) {
    return "the workspace is not aligned to 16 bytes";
  }
  *parts = static_cast<float*>(stream.workspace);
  return nullptr;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_
