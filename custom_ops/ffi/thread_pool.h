// A ParallelFor on XLA's thread pool, which offers no more than to schedule a task.
//
// The caller works too, and waits only for blocks that another thread has begun: handlers run on the pool's own threads,
// and if all of them waited for tasks that no thread is left to start, none would ever go on.
#ifndef TFTRAIN_CUSTOM_OPS_FFI_THREAD_POOL_H_
#define TFTRAIN_CUSTOM_OPS_FFI_THREAD_POOL_H_

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#include "custom_ops/kernels/common/parallel.h"
#include "xla/ffi/api/ffi.h"

namespace tftrain {

class BlockQueue {
 public:
  BlockQueue(int64_t count, int64_t block, const Range& range) : count_(count), block_(block), range_(&range) {}

  // Works until no block is left to begin. A task that comes late touches nothing but the queue itself, which its
  // shared_ptr keeps; the range may be gone by then.
  void Work() {
    for (;;) {
      const int64_t begin = next_.fetch_add(block_);
      if (begin >= count_) return;
      const int64_t end = std::min(count_, begin + block_);
      (*range_)(begin, end);
      if (done_.fetch_add(end - begin) + (end - begin) == count_) {
        std::lock_guard<std::mutex> lock(mutex_);
        all_done_.notify_one();
      }
    }
  }

  void Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    all_done_.wait(lock, [this] { return done_.load() == count_; });
  }

 private:
  const int64_t count_;
  const int64_t block_;
  const Range* const range_;
  std::atomic<int64_t> next_{0};
  std::atomic<int64_t> done_{0};
  std::mutex mutex_;
  std::condition_variable all_done_;
};

inline ParallelFor OnThreadPool(xla::ffi::ThreadPool& pool) {
  return [&pool](int64_t count, int64_t cost, const Range& range) {
    constexpr int64_t kWorthATask = 20000;  // nanoseconds
    constexpr int64_t kBlocksPerThread = 4;
    const int64_t threads = std::max<int64_t>(1, pool.num_threads());
    const int64_t worthwhile = std::max<int64_t>(1, count * std::max<int64_t>(1, cost) / kWorthATask);
    const int64_t blocks = std::min({count, worthwhile, threads * kBlocksPerThread});
    if (threads == 1 || blocks <= 1) return SerialFor(count, cost, range);
    auto queue = std::make_shared<BlockQueue>(count, (count + blocks - 1) / blocks, range);
    for (int64_t i = 1; i < std::min(threads, blocks); ++i) {
      pool.Schedule([queue] { queue->Work(); });
    }
    queue->Work();
    queue->Wait();
  };
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_FFI_THREAD_POOL_H_
