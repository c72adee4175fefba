// Compiles one kernel file for every instruction set, each time into a namespace of its own.
//
//   #define TFTRAIN_KERNEL_FILE "custom_ops/kernels/x-inl.h"
//   #include "custom_ops/kernels/common/foreach_target.h"
//   void X(const XArgs& args, Target target) { TFTRAIN_DISPATCH(target, X(args)); }
//
// The target is set by pragma and not for the whole file, so that whatever the standard headers define inline is compiled
// for the base instruction set: the linker keeps one copy of each such function, which must run everywhere. For the same
// reason kernels do no arithmetic in lambdas, which GCC compiles for the base set.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/stream.h"
#include "custom_ops/kernels/common/target.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tftrain::portable {
#define TFTRAIN_VECTOR_BYTES 16
#include "custom_ops/kernels/common/vector-inl.h"
#include TFTRAIN_KERNEL_FILE
#undef TFTRAIN_VECTOR_BYTES
}  // namespace tftrain::portable

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace tftrain::avx2 {
#define TFTRAIN_VECTOR_BYTES 32
#include "custom_ops/kernels/common/vector-inl.h"
#include TFTRAIN_KERNEL_FILE
#undef TFTRAIN_VECTOR_BYTES
}  // namespace tftrain::avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
namespace tftrain::avx512 {
#define TFTRAIN_VECTOR_BYTES 64
#include "custom_ops/kernels/common/vector-inl.h"
#include TFTRAIN_KERNEL_FILE
#undef TFTRAIN_VECTOR_BYTES
}  // namespace tftrain::avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")
namespace tftrain::avx512_bf16 {
#define TFTRAIN_VECTOR_BYTES 64
#define TFTRAIN_BF16_INSTRUCTIONS
#include "custom_ops/kernels/common/vector-inl.h"
#include TFTRAIN_KERNEL_FILE
#undef TFTRAIN_BF16_INSTRUCTIONS
#undef TFTRAIN_VECTOR_BYTES
}  // namespace tftrain::avx512_bf16
#pragma GCC pop_options
#endif
