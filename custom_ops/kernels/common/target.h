// The instruction sets that one binary carries kernels for, and the choice between them at run time.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TARGET_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TARGET_H_

#include <initializer_list>

namespace tftrain {

enum class Target {
  kPortable,    // 16-byte vectors of the compiler, on any processor
  kAvx2,        // with FMA and F16C: Haswell, Zen and later
  kAvx512,      // F, BW, DQ and VL: Skylake server and later
  kAvx512Bf16,  // that, and conversions to bf16: Cooper Lake, Zen 4 and later
};

inline bool Supported(Target target) {
#if defined(__x86_64__)
  switch (target) {
    case Target::kPortable:
      return true;
    case Target::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    case Target::kAvx512:
      return Supported(Target::kAvx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case Target::kAvx512Bf16:
      return Supported(Target::kAvx512) && __builtin_cpu_supports("avx512bf16");
  }
#endif
  return target == Target::kPortable;
}

// The widest that this processor runs.
inline Target BestTarget() {
  static const Target best = [] {
    for (Target target : {Target::kAvx512Bf16, Target::kAvx512, Target::kAvx2}) {
      if (Supported(target)) return target;
    }
    return Target::kPortable;
  }();
  return best;
}

}  // namespace tftrain

// Calls `call` in the namespace of `target`, which foreach_target.h filled.
#if defined(__x86_64__)
#define TFTRAIN_DISPATCH(target, call)     \
  switch (target) {                        \
    case ::tftrain::Target::kAvx512Bf16:   \
      return ::tftrain::avx512_bf16::call; \
    case ::tftrain::Target::kAvx512:       \
      return ::tftrain::avx512::call;      \
    case ::tftrain::Target::kAvx2:         \
      return ::tftrain::avx2::call;        \
    case ::tftrain::Target::kPortable:     \
      return ::tftrain::portable::call;    \
  }
#else
#define TFTRAIN_DISPATCH(target, call) return ::tftrain::portable::call
#endif

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TARGET_H_
