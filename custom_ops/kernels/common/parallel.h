// How a kernel spreads over threads without knowing whose they are: TensorFlow's pool, XLA's, or a test's.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PARALLEL_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace tftrain {

// Works on the items `begin` to `end`, without `end`.
using Range = std::function<void(int64_t begin, int64_t end)>;

// Covers [0, count) with disjoint ranges, on any number of threads, and returns when all are done. `cost` is roughly the
// time of one item in nanoseconds; it tells how many items are worth a thread. How the ranges are cut must not matter to
// the result: kernels that reduce over items cut them into chunks of their own, which are the items here.
using ParallelFor = std::function<void(int64_t count, int64_t cost, const Range& range)>;

// All in the caller's thread.
inline void SerialFor(int64_t count, int64_t /*cost*/, const Range& range) {
  if (count > 0) range(0, count);
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PARALLEL_H_
