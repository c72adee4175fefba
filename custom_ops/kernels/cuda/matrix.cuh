// Tensor cores, and copies to shared memory that run while a thread computes: the instructions of sm_80 that flash attention
// is made of, each by its name in the PTX ISA; emulation/matrix.h does the same on the CPU.
//
// The fragments of a 16 x 8 x 16 product: lane 4g + c holds
//   of C  [16, 8]   rows g and g + 8, columns 2c and 2c + 1: (g, 2c), (g, 2c + 1), (g + 8, 2c), (g + 8, 2c + 1)
//   of A  [16, 16]  pairs of columns: (g, 2c), (g + 8, 2c), (g, 2c + 8), (g + 8, 2c + 8)
//   of B  [16, 8]   pairs of rows: (2c, g), (2c + 8, g).
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_MATRIX_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_MATRIX_CUH_

#if !defined(__CUDACC__)
#include "custom_ops/kernels/emulation/matrix.h"
#else

#include <cstdint>

#include "custom_ops/kernels/cuda/runtime.cuh"

namespace tftrain::cuda {

// Adds the product of A and B to C.
__device__ __forceinline__ void Multiply16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, Half) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void Multiply16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                BFloat16) {
  asm(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// An address in shared memory in the form of these instructions: one register, to which a constant can be added for nothing.
using SharedAddress = uint32_t;

__device__ __forceinline__ SharedAddress AddressOf(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Four matrices of 8 x 8 numbers of 16 bits. Lanes 8m to 8m + 7 give the addresses of the rows of matrix m, of which lane
// 4g + c gets row g, columns 2c and 2c + 1.
__device__ __forceinline__ void LoadMatrices(uint32_t (&matrix)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(row)
               : "memory");
}

// The same of the transposed matrices: lane 4g + c gets column g, rows 2c and 2c + 1.
__device__ __forceinline__ void LoadMatricesTransposed(uint32_t (&matrix)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrix[0]), "=r"(matrix[1]), "=r"(matrix[2]), "=r"(matrix[3])
               : "r"(row)
               : "memory");
}

// Copies 16 bytes to shared memory, or zeros where they do not exist.
__device__ __forceinline__ void CopyAsync16(SharedAddress to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0)
               : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits for the groups that the thread has ended.
__device__ __forceinline__ void WaitForCopies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Values of another lane.
template <int kValues>
__device__ __forceinline__ void ShuffleFrom(const float (&values)[kValues], int lane, float (&out)[kValues]) {
#pragma unroll
  for (int i = 0; i < kValues; ++i) out[i] = __shfl_sync(0xffffffff, values[i], lane);
}

__device__ __forceinline__ uint32_t ShuffleFrom(uint32_t value, int lane) { return __shfl_sync(0xffffffff, value, lane); }

__device__ __forceinline__ int32_t LeastOfWarp(int32_t value) { return __reduce_min_sync(0xffffffff, value); }
__device__ __forceinline__ int32_t GreatestOfWarp(int32_t value) { return __reduce_max_sync(0xffffffff, value); }

}  // namespace tftrain::cuda

#endif
#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_MATRIX_CUH_
