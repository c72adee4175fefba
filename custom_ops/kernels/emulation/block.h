// The threads of an emulated block; see cuda.h. Each is a fiber with a stack of its own. One runs until it meets a
// barrier, and goes on when all that the barrier waits for have met it.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_BLOCK_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_BLOCK_H_

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

namespace tftrain::cuda {

struct Dim3 {
  unsigned x = 1;
  unsigned y = 1;
};

inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

#if defined(__x86_64__)

// Where a fiber goes on: its stack pointer, with the address of the next instruction on top of the stack. swapcontext()
// would do, but it calls the kernel of the operating system, which takes 30 times as long.
class FiberContext {
 public:
  void Start(char* stack, size_t bytes, void (*entry)()) {
    const uintptr_t top = (reinterpret_cast<uintptr_t>(stack + bytes) & ~uintptr_t{15}) - 16;
    std::memcpy(reinterpret_cast<void*>(top), &entry, sizeof(entry));
    stack_ = reinterpret_cast<void*>(top);
  }

  __attribute__((noinline)) static void Switch(FiberContext& from, FiberContext& to) {
    void** save = &from.stack_;
    void* load = to.stack_;
    asm volatile(
        "subq $128, %%rsp\n\t"  // the red zone of this function
        "pushq %%rbp\n\t"
        "leaq 1f(%%rip), %%rax\n\t"
        "pushq %%rax\n\t"
        "movq %%rsp, (%0)\n\t"
        "movq %1, %%rsp\n\t"
        "ret\n\t"
        "1: popq %%rbp\n\t"
        "addq $128, %%rsp"
        : "+D"(save), "+S"(load)
        :
        : "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2",
          "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15",
          "memory", "cc");
  }

 private:
  void* stack_ = nullptr;
};

#else

class FiberContext {
 public:
  void Start(char* stack, size_t bytes, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    makecontext(&context_, entry, 0);
  }

  static void Switch(FiberContext& from, FiberContext& to) { swapcontext(&from.context_, &to.context_); }

 private:
  ucontext_t context_;
};

#endif

class Block {
 public:
  static constexpr unsigned kWarpThreads = 32;
  static constexpr size_t kMostShared = 64;  // bytes that a thread shows to its warp at once

  // Runs `body` for all threads of the block.
  Block(unsigned threads, const std::function<void()>& body) : body_(body), fibers_(threads) {
    static std::vector<std::vector<char>> stacks;  // for all blocks, which saves most of the time
    while (stacks.size() < threads) stacks.emplace_back(kStackBytes);
    current_ = this;
    for (unsigned i = 0; i < threads; ++i) fibers_[i].context.Start(stacks[i].data(), kStackBytes, &Block::Enter);
    while (Step()) {
    }
  }

  static void Synchronize() { current_->Wait(kForBlock); }
  static void SynchronizeWarp() { current_->Wait(kForWarp); }

  // What the lanes of the calling thread's warp show to each other. All of them must call this; the values last until the
  // call after the next.
  template <typename T>
  class WarpValues {
   public:
    WarpValues(const Block& block, unsigned first, unsigned turn) : block_(block), first_(first), turn_(turn) {}
    T operator[](unsigned lane) const {
      T value;
      std::memcpy(&value, block_.fibers_[first_ + lane].shared[turn_], sizeof(T));
      return value;
    }

   private:
    const Block& block_;
    const unsigned first_;
    const unsigned turn_;
  };

  template <typename T>
  static WarpValues<T> Share(const T& value) {
    static_assert(sizeof(T) <= kMostShared);
    Block& block = *current_;
    const unsigned thread = block.running_;
    Fiber& fiber = block.fibers_[thread];
    // Nobody still reads what was shown before the last time: to get here, all have met the barrier of the last time.
    const unsigned turn = fiber.turn ^= 1;
    std::memcpy(fiber.shared[turn], &value, sizeof(T));
    block.Wait(kForWarp);
    return {block, thread / kWarpThreads * kWarpThreads, turn};
  }

  static unsigned Lane() { return current_->running_ % kWarpThreads; }

  // Work of the calling thread that is done when it waits for it: each element is a group. See CommitCopies().
  static std::vector<std::vector<std::function<void()>>>& PendingCopies() {
    return current_->fibers_[current_->running_].copies;
  }

 private:
  enum State { kReady, kForWarp, kForBlock, kDone };
  static constexpr size_t kStackBytes = 1 << 16;

  struct Fiber {
    FiberContext context;
    State state = kReady;
    unsigned turn = 0;
    char shared[2][kMostShared];
    std::vector<std::vector<std::function<void()>>> copies{1};
  };

  static void Enter() {
    Block& block = *current_;
    block.body_();
    block.Wait(kDone);
  }

  void Wait(State state) {
    const unsigned thread = running_;
    fibers_[thread].state = state;
    FiberContext::Switch(fibers_[thread].context, scheduler_);
  }

  // Runs every fiber that is ready up to its next barrier, and opens barriers at which no one is missing.
  bool Step() {
    for (running_ = 0; running_ < fibers_.size(); ++running_) {
      if (fibers_[running_].state != kReady) continue;
      threadIdx.x = running_;
      FiberContext::Switch(scheduler_, fibers_[running_].context);
    }
    for (size_t warp = 0; warp < fibers_.size(); warp += kWarpThreads) {
      Open(warp, std::min(warp + kWarpThreads, fibers_.size()), kForWarp);
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
  FiberContext scheduler_;
  unsigned running_ = 0;
};

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_BLOCK_H_
