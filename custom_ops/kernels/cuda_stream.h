// The CUDA side of a launch: kernels take the same arguments as on the CPU, all pointers then being to device memory, and a
// stream in place of threads. No CUDA header is needed to call them.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_

#include <cstdint>
#include <functional>

namespace tftrain {

struct CudaStream {
  void* handle;  // a cudaStream_t
  // Device memory that lives until the work launched so far on the stream is done.
  std::function<void*(int64_t bytes)> allocate;
};

// Null, or a message about the failure.
using CudaError = const char*;

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_STREAM_H_
