// The CUDA that the kernels use, on the CPU: so that tests run the very code of the .cu files where there is no GPU.
//
// The threads of a block are fibers, which take turns at barriers: __syncthreads(), and whatever exchanges values within a
// warp (block.h). Blocks run one after the other. What this cannot show is a missing barrier, and how fast
// anything is.
//
// Launches can be recorded instead of run, as in a CUDA graph, and replayed later.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_CUDA_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_CUDA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/kernels/emulation/block.h"
#include "custom_ops/kernels/common/dtype.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after the other

namespace tftrain::cuda {

constexpr int64_t kMostSharedBytes = 163 << 10;  // of a block, on A100: the least of the GPUs that are compiled for

// What a block may ask for of it.
inline int64_t most_shared_bytes = kMostSharedBytes;
inline int64_t MostSharedBytes() { return most_shared_bytes; }
inline std::string GpuName() { return "the emulated GPU"; }

inline void __syncthreads() { Block::Synchronize(); }
inline void __syncwarp() { Block::SynchronizeWarp(); }
inline float __shfl_xor_sync(uint32_t /*mask*/, float value, int distance) {
  return Block::Share(value)[Block::Lane() ^ distance];
}

// The shared memory that a launch asks for. It starts as numbers that are not numbers.
inline char* DynamicShared() {
  alignas(128) static char memory[kMostSharedBytes];
  return memory;
}

struct float2 {
  float x;
  float y;
};

// Threads take turns, so nothing is in between.
inline void AddAtomically(float* to, float low, float high) {
  to[0] += low;
  to[1] += high;
}

// The packs of attention scores of which a mask hides some.
inline int64_t partial_packs = 0;
inline void NotePartialPack() { ++partial_packs; }

inline float ReciprocalApprox(float v) { return 1.0f / v; }
inline float Exp2Approx(float v) { return std::exp2(v); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline float __fsqrt_rn(float v) { return std::sqrt(v); }
inline float __fdiv_rn(float a, float b) { return a / b; }

inline float ToFloat(uint16_t bits, Half) {
  _Float16 half;
  std::memcpy(&half, &bits, sizeof(half));
  return half;
}

inline uint16_t FromFloat(float v, Half) {
  const _Float16 half = v;
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof(bits));
  return bits;
}

inline float ToFloat(uint16_t bits, BFloat16) {
  const uint32_t wide = uint32_t{bits} << 16;
  float v;
  std::memcpy(&v, &wide, sizeof(v));
  return v;
}

inline uint16_t FromFloat(float v, BFloat16) {
  if (v != v) return 0x7fff;
  uint32_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

template <typename T>
void PairToFloats(uint32_t pair, T type, float* low, float* high) {
  *low = ToFloat(static_cast<uint16_t>(pair), type);
  *high = ToFloat(static_cast<uint16_t>(pair >> 16), type);
}

template <typename T>
uint32_t PairFromFloats(float low, float high, T type) {
  return FromFloat(low, type) | uint32_t{FromFloat(high, type)} << 16;
}

template <typename Word>
void Load16(const void* from, Word (&words)[4]) {
  std::memcpy(words, from, 16);
}

template <typename Word>
void Store16(const Word (&words)[4], void* to) {
  std::memcpy(to, words, 16);
}

// The work of a stream in its order, with copies of all arguments.
using Recording = std::vector<std::function<void()>>;

// Where work goes while it is recorded; null while it runs.
inline Recording* recording = nullptr;

template <typename Work>
void Submit(const Work& work) {
  if (recording != nullptr) {
    recording->push_back(work);
  } else {
    work();
  }
}

inline const char* last_error = nullptr;

struct Grid {
  int x = 1;
  int y = 1;
};

// With so many bytes of dynamic shared memory.
template <typename... Parameters, typename... Args>
void LaunchSharing(int64_t shared_bytes, void (*kernel)(Parameters...), Grid grid, int threads, void* /*stream*/,
                   const Args&... args) {
  if (shared_bytes > most_shared_bytes) {
    last_error = "more shared memory than a block has";
    return;
  }
  Submit([shared_bytes, kernel, grid, threads, args...] {
    gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)};
    blockDim = {static_cast<unsigned>(threads), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) {
        std::memset(DynamicShared(), 0xff, shared_bytes);
        Block(threads, [&] { kernel(args...); });
      }
    }
  });
}

template <typename... Parameters, typename... Args>
void LaunchKernel(void (*kernel)(Parameters...), Grid grid, int threads, void* stream, const Args&... args) {
  LaunchSharing(0, kernel, grid, threads, stream, args...);
}

// Few, so that tests see blocks that do more than one piece of work.
inline int blocks_that_fit = 3;

template <typename Kernel>
int BlocksThatFit(Kernel /*kernel*/, int /*threads*/) {
  return blocks_that_fit;
}

inline const char* LastError() { return std::exchange(last_error, nullptr); }

inline void CopyAsync(void* to, const void* from, int64_t bytes, void* /*stream*/) {
  Submit([=] { std::memcpy(to, from, bytes); });
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_CUDA_H_
