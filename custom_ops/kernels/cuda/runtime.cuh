// The little that differs between CUDA and its emulation in tests; see emulation/cuda.h.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_RUNTIME_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_RUNTIME_CUH_

#if !defined(__CUDACC__)
#include "custom_ops/kernels/emulation/cuda.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "custom_ops/kernels/common/dtype.h"

namespace tftrain::cuda {

__device__ inline void NotePartialPack() {}  // the emulation counts

// Both to two units in the last place, in one instruction.
__device__ inline float ReciprocalApprox(float v) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

__device__ inline float Exp2Approx(float v) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v));
  return result;
}

__device__ inline float ToFloat(uint16_t bits, Half) { return __half2float(__ushort_as_half(bits)); }
__device__ inline float ToFloat(uint16_t bits, BFloat16) { return __uint_as_float(uint32_t{bits} << 16); }
__device__ inline uint16_t FromFloat(float v, Half) { return __half_as_ushort(__float2half_rn(v)); }
__device__ inline uint16_t FromFloat(float v, BFloat16) { return __bfloat16_as_ushort(__float2bfloat16_rn(v)); }

// Two numbers in one word.
__device__ inline void PairToFloats(uint32_t pair, Half, float* low, float* high) {
  const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&pair));
  *low = both.x;
  *high = both.y;
}

__device__ inline void PairToFloats(uint32_t pair, BFloat16, float* low, float* high) {
  *low = __uint_as_float(pair << 16);
  *high = __uint_as_float(pair & 0xffff0000);
}

__device__ inline uint32_t PairFromFloats(float low, float high, Half) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

__device__ inline uint32_t PairFromFloats(float low, float high, BFloat16) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// 16 bytes in one access. The compiler splits most stores of a struct, and of a uint4 too, into four.
__device__ inline void Load16(const void* from, uint32_t (&words)[4]) {
  const uint4 all = *static_cast<const uint4*>(from);
  words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
}

__device__ inline void Load16(const void* from, float (&words)[4]) {
  const float4 all = *static_cast<const float4*>(from);
  words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
}

__device__ inline void Store16(const uint32_t (&words)[4], void* to) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
               "r"(words[3])
               : "memory");
}

__device__ inline void Store16(const float (&words)[4], void* to) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(words[0]), "f"(words[1]), "f"(words[2]),
               "f"(words[3])
               : "memory");
}

// The shared memory that a launch asks for.
__device__ inline char* DynamicShared() {
  extern __shared__ __align__(128) char dynamic_shared_memory[];
  return dynamic_shared_memory;
}

struct Grid {
  int x = 1;
  int y = 1;
};

// With so many bytes of dynamic shared memory.
template <typename... Parameters, typename... Args>
void LaunchSharing(int64_t shared_bytes, void (*kernel)(Parameters...), Grid grid, int threads, void* stream,
                   const Args&... args) {
  if (shared_bytes > 48 << 10) {  // as much as a launch gets without asking
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
  }
  kernel<<<dim3(grid.x, grid.y), threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(args...);
}

template <typename... Parameters, typename... Args>
void LaunchKernel(void (*kernel)(Parameters...), Grid grid, int threads, void* stream, const Args&... args) {
  LaunchSharing(0, kernel, grid, threads, stream, args...);
}

// How many blocks of the kernel run at once on the whole GPU.
template <typename Kernel>
int BlocksThatFit(Kernel kernel, int threads) {
  int device = 0;
  int multiprocessors = 0;
  int blocks = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, 0);
  return std::max(1, multiprocessors * blocks);
}

// Of the shared memory of a block that a launch may ask for.
inline int64_t MostSharedBytes() {
  int device = 0;
  int bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes;
}

inline std::string GpuName() {
  int device = 0;
  cudaDeviceProp properties = {};
  cudaGetDevice(&device);
  cudaGetDeviceProperties(&properties, device);
  return properties.name;
}

// Adds two numbers to two side by side, in any order with what other threads add. From sm_90 on it is one instruction.
__device__ __forceinline__ void AddAtomically(float* to, float low, float high) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(low), "f"(high) : "memory");
#else
  atomicAdd(to, low);
  atomicAdd(to + 1, high);
#endif
}

// The message of a failed launch since the last call, or null.
inline const char* LastError() {
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

inline void CopyAsync(void* to, const void* from, int64_t bytes, void* stream) {
  cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, static_cast<cudaStream_t>(stream));
}

}  // namespace tftrain::cuda

#endif
#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_RUNTIME_CUH_
