// When to write past the cache. A result larger than the last-level cache is gone from it before anyone reads it; writing
// it with streaming stores saves reading each line before it is overwritten, a third of a copy's traffic. A result that
// fits is better left in the cache for the operation that comes next. memcpy decides in the same way.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_STREAM_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_STREAM_H_

#include <unistd.h>

#include <cstdint>
#include <initializer_list>

namespace tftrain {

constexpr int64_t kStreamAlignment = 64;  // a cache line, and the widest vector

// The least bytes that are streamed: those of the last-level cache. Tests set fewer.
inline int64_t stream_threshold = [] {
#ifdef _SC_LEVEL3_CACHE_SIZE
  const int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (cache > 0) return cache;
#endif
  return int64_t{32} << 20;
}();

// Whether outputs of `bytes` each, made of rows of `row_bytes`, are to be streamed: only whole lines can be.
inline bool ShouldStream(int64_t bytes, int64_t row_bytes, std::initializer_list<const void*> outputs) {
  if (bytes < stream_threshold || row_bytes % kStreamAlignment != 0) return false;
  for (const void* output : outputs) {
    if (reinterpret_cast<uintptr_t>(output) % kStreamAlignment != 0) return false;
  }
  return true;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_STREAM_H_
