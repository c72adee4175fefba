// The CUDA that the kernels use, on the CPU: so that tests run the very code of the .cu files where there is no GPU.
//
// The threads of a block are fibers. One runs until it meets a barrier, __syncthreads() or a shuffle within its warp, and
// goes on when all that the barrier waits for have met it. Blocks run one after the other. What this cannot show is a
// missing barrier, and how fast anything is.
//
// Launches can be recorded instead of run, as in a CUDA graph, and replayed later.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_EMULATION_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_EMULATION_H_

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "custom_ops/kernels/dtype.h"

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // blocks run one after the other

namespace tftrain::cuda {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
};

inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

class Block {
 public:
  // Runs `body` for all threads of the block.
  Block(unsigned threads, const std::function<void()>& body) : body_(body), fibers_(threads), exchanged_(threads) {
    static std::vector<std::vector<char>> stacks;  // for all blocks, which saves most of the time
    while (stacks.size() < threads) stacks.emplace_back(kStackBytes);
    current_ = this;
    for (unsigned i = 0; i < threads; ++i) {
      ucontext_t& context = fibers_[i].context;
      getcontext(&context);
      context.uc_stack.ss_sp = stacks[i].data();
      context.uc_stack.ss_size = kStackBytes;
      context.uc_link = &scheduler_;
      makecontext(&context, &Block::Enter, 0);
    }
    while (Step()) {
    }
  }

  static void Synchronize() { current_->Wait(kForBlock); }

  static float Exchange(float value, int distance) {
    Block& block = *current_;
    const unsigned thread = threadIdx.x;
    block.exchanged_[thread] = value;
    block.Wait(kForWarp);
    const float other = block.exchanged_[thread ^ distance];
    block.Wait(kForWarp);
    return other;
  }

 private:
  enum State { kReady, kForWarp, kForBlock, kDone };
  static constexpr size_t kStackBytes = 1 << 16;

  struct Fiber {
    ucontext_t context;
    State state = kReady;
  };

  static void Enter() {
    Block& block = *current_;
    block.body_();
    block.fibers_[block.running_].state = kDone;
  }

  void Wait(State state) {
    const unsigned thread = running_;
    fibers_[thread].state = state;
    swapcontext(&fibers_[thread].context, &scheduler_);
  }

  // Runs every fiber that is ready up to its next barrier, and opens barriers at which no one is missing.
  bool Step() {
    for (running_ = 0; running_ < fibers_.size(); ++running_) {
      if (fibers_[running_].state != kReady) continue;
      threadIdx.x = running_;
      swapcontext(&scheduler_, &fibers_[running_].context);
    }
    for (size_t warp = 0; warp < fibers_.size(); warp += 32) {
      Open(warp, std::min(warp + 32, fibers_.size()), kForWarp);
    }
    Open(0, fibers_.size(), kForBlock);
    return std::any_of(fibers_.begin(), fibers_.end(), [](const Fiber& fiber) { return fiber.state == kReady; });
  }

  void Open(size_t begin, size_t end, State barrier) {
    for (size_t i = begin; i < end; ++i) {
      if (fibers_[i].state != barrier && fibers_[i].state != kDone) return;
    }
    for (size_t i = begin; i < end; ++i) {
      if (fibers_[i].state == barrier) fibers_[i].state = kReady;
    }
  }

  inline static Block* current_ = nullptr;
  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::vector<float> exchanged_;
  ucontext_t scheduler_;
  unsigned running_ = 0;
};

inline void __syncthreads() { Block::Synchronize(); }
inline float __shfl_xor_sync(uint32_t /*mask*/, float value, int distance) { return Block::Exchange(value, distance); }

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

struct Grid {
  int x = 1;
  int y = 1;
};

template <typename... Parameters, typename... Args>
void LaunchKernel(void (*kernel)(Parameters...), Grid grid, int threads, void* /*stream*/, const Args&... args) {
  Submit([kernel, grid, threads, args...] {
    gridDim = {static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y)};
    blockDim = {static_cast<unsigned>(threads), 1};
    for (blockIdx.y = 0; blockIdx.y < gridDim.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < gridDim.x; ++blockIdx.x) Block(threads, [&] { kernel(args...); });
    }
  });
}

// Few, so that tests see blocks that do more than one piece of work.
inline int blocks_that_fit = 3;

template <typename Kernel>
int BlocksThatFit(Kernel /*kernel*/, int /*threads*/) {
  return blocks_that_fit;
}

inline const char* LastError() { return nullptr; }

inline void CopyAsync(void* to, const void* from, int64_t bytes, void* /*stream*/) {
  Submit([=] { std::memcpy(to, from, bytes); });
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_CUDA_EMULATION_H_
