// What the kernels' tests share: arrays in any storage type with their exact values in fp64, tolerances that follow from
// the storage type, and threads.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TESTING_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TESTING_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/kernels/common/dtype.h"
#include "custom_ops/kernels/common/parallel.h"
#include "custom_ops/kernels/common/stream.h"
#include "custom_ops/kernels/common/target.h"

namespace tftrain {

inline double DecodeBits(uint16_t bits, Half) {
  const double sign = bits & 0x8000 ? -1 : 1;
  const int exponent = (bits >> 10) & 31;
  const int mantissa = bits & 1023;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  return exponent ? sign * std::ldexp(1024 + mantissa, exponent - 25) : sign * std::ldexp(mantissa, -24);
}

inline double DecodeBits(uint16_t bits, BFloat16) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Rounds by search over all numbers of the type, as slow as it is certain. Ties go to the even one.
template <typename T>
uint16_t EncodeBits(double value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  uint16_t low = 0;
  uint16_t high = std::is_same_v<T, Half> ? 0x7c00 : 0x7f80;
  if (std::isnan(value)) return high | high >> 1;
  while (high - low > 1) {
    const uint16_t middle = (low + high) / 2;
    (DecodeBits(middle, T()) <= std::fabs(value) ? low : high) = middle;
  }
  const double down = std::fabs(value) - DecodeBits(low, T());
  const double gap = DecodeBits(high, T()) - DecodeBits(low, T());
  return sign | (down > gap / 2 || (down == gap / 2 && low % 2) ? high : low);
}

// An array of a storage type.
class Buffer {
 public:
  Buffer(DType dtype, int64_t count) : dtype_(dtype), count_(count), bytes_(count * SizeOf(dtype) + 64) {}

  // The values, rounded to the type.
  Buffer(DType dtype, const std::vector<double>& values) : Buffer(dtype, values.size()) {
    for (int64_t i = 0; i < count_; ++i) {
      if (dtype == DType::kFloat32) {
        static_cast<float*>(data())[i] = values[i];
      } else {
        static_cast<uint16_t*>(data())[i] =
            dtype == DType::kFloat16 ? EncodeBits<Half>(values[i]) : EncodeBits<BFloat16>(values[i]);
      }
    }
  }

  // Aligned as TensorFlow's buffers are.
  void* data() {
    const uintptr_t address = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - address % 64) % 64;
  }
  size_t size_bytes() const { return count_ * SizeOf(dtype_); }

  std::vector<double> values() {
    std::vector<double> result(count_);
    for (int64_t i = 0; i < count_; ++i) {
      if (dtype_ == DType::kFloat32) {
        result[i] = static_cast<float*>(data())[i];
      } else {
        const uint16_t bits = static_cast<uint16_t*>(data())[i];
        result[i] = dtype_ == DType::kFloat16 ? DecodeBits(bits, Half()) : DecodeBits(bits, BFloat16());
      }
    }
    return result;
  }

 private:
  DType dtype_;
  int64_t count_;
  std::vector<char> bytes_;
};

inline std::vector<double> Normal(std::mt19937& random, int64_t count, double mean = 0, double deviation = 1) {
  std::normal_distribution<double> distribution(mean, deviation);
  std::vector<double> values(count);
  for (double& value : values) value = distribution(random);
  return values;
}

// |actual - expected| <= absolute + relative * |expected|.
struct Tolerance {
  double relative;
  double absolute;
};

inline Tolerance ForwardTolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {5e-6, 1e-6};
    case DType::kFloat16:
      return {1e-3, 1e-5};  // half a unit in the last place is 2^-11
    default:
      return {8e-3, 1e-5};  // 2^-8
  }
}

inline Tolerance GradientTolerance(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return {5e-5, 1e-5};
    case DType::kFloat16:
      return {2e-3, 1e-4};
    default:
      return {1.6e-2, 1e-3};
  }
}

inline void ExpectClose(const std::vector<double>& actual, const std::vector<double>& expected, Tolerance tolerance,
                        const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  int failures = 0;
  for (size_t i = 0; i < actual.size() && failures < 3; ++i) {
    if (actual[i] == expected[i]) continue;  // infinities too
    const double error = std::fabs(actual[i] - expected[i]);
    if (!(error <= tolerance.absolute + tolerance.relative * std::fabs(expected[i]))) {
      ADD_FAILURE() << what << "[" << i << "] is " << actual[i] << ", expected " << expected[i];
      ++failures;
    }
  }
}

// On `threads` threads, in uneven ranges.
inline ParallelFor ThreadedFor(int threads) {
  return [threads](int64_t count, int64_t /*cost*/, const Range& range) {
    std::vector<std::thread> running;
    int64_t begin = 0;
    for (int i = 0; i < threads && begin < count; ++i) {
      const int64_t end = i + 1 == threads ? count : std::min(count, begin + count / threads + i);
      if (end > begin) running.emplace_back(range, begin, end);
      begin = end;
    }
    for (std::thread& thread : running) thread.join();
  };
}

inline const char* Name(DType dtype) {
  return dtype == DType::kFloat32 ? "fp32" : dtype == DType::kFloat16 ? "fp16" : "bf16";
}

inline const char* Name(Target target) {
  const char* const names[] = {"portable", "avx2", "avx512", "avx512_bf16"};
  return names[static_cast<int>(target)];
}

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};

// So many rows that a kernel streams its result, from now on more than a megabyte.
inline int64_t StreamedRows(int64_t hidden, DType dtype) {
  stream_threshold = 1 << 20;
  return stream_threshold / (hidden * SizeOf(dtype)) + 3;
}

// The targets that this processor runs.
inline std::vector<Target> Targets() {
  std::vector<Target> targets;
  for (Target target : {Target::kPortable, Target::kAvx2, Target::kAvx512, Target::kAvx512Bf16}) {
    if (Supported(target)) targets.push_back(target);
  }
  return targets;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_TESTING_H_
