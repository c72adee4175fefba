// The storage types of the kernels. Arithmetic is always fp32; a 16-bit number exists only in memory.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_DTYPE_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_DTYPE_H_

#include <cstddef>
#include <cstdint>

namespace tftrain {

enum class DType { kFloat32, kFloat16, kBFloat16 };

// IEEE 754 binary16, as bits.
struct Half {
  uint16_t bits;
};

// The upper half of a binary32, as bits.
struct BFloat16 {
  uint16_t bits;
};

inline size_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// Calls `run(T())` with the storage type T that `dtype` names.
template <typename Run>
inline void WithType(DType dtype, const Run& run) {
  switch (dtype) {
    case DType::kFloat32:
      return run(float());
    case DType::kFloat16:
      return run(Half());
    case DType::kBFloat16:
      return run(BFloat16());
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_DTYPE_H_
