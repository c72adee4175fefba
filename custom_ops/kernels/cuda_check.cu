// Checks and times the CUDA kernels on the GPU of this machine, against the CPU's kernels and against a copy:
//
//   bazel run --config=cuda //custom_ops/kernels:cuda_check
//
// or without Bazel, on a machine that has only CUDA's own tools:
//
//   nvcc -std=c++17 -O3 -arch=native -I. -Xcompiler -w custom_ops/kernels/{cuda_check,layer_norm}.cu
//       custom_ops/kernels/layer_norm.cc -o cuda_check && ./cuda_check
//
// Prints csv: op, pass, dtype, shape, microseconds, GB/s, share of the copy's speed, largest error. Exits with 1 if an error
// is larger than the dtype's rounding allows.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "custom_ops/kernels/cuda_kernels.h"

namespace tftrain {
namespace {

constexpr float kEpsilon = 1e-5;

void Require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

void Require(cudaError_t error) { Require(error == cudaSuccess, cudaGetErrorString(error)); }

// The same array on both sides.
struct Array {
  Array(DType dtype, int64_t count) : dtype(dtype), count(count), host(count * SizeOf(dtype)) {
    Require(cudaMalloc(&device, std::max<size_t>(host.size(), 1)));
  }
  Array(const Array&) = delete;
  ~Array() { cudaFree(device); }

  void Randomize(std::mt19937& random, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random);
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (dtype == DType::kFloat32) {
        reinterpret_cast<float*>(host.data())[i] = value;
      } else if (dtype == DType::kBFloat16) {
        reinterpret_cast<uint16_t*>(host.data())[i] = bits >> 16;
      } else {  // a normal number of binary16, its exponent moved and its mantissa cut
        const uint32_t exponent = std::clamp<int>(static_cast<int>(bits >> 23 & 255) - 112, 1, 30);
        reinterpret_cast<uint16_t*>(host.data())[i] = (bits >> 16 & 0x8000) | exponent << 10 | (bits >> 13 & 1023);
      }
    }
    Require(cudaMemcpy(device, host.data(), host.size(), cudaMemcpyHostToDevice));
  }

  float Value(const std::vector<char>& bytes, int64_t i) const {
    if (dtype == DType::kFloat32) return reinterpret_cast<const float*>(bytes.data())[i];
    const uint16_t bits = reinterpret_cast<const uint16_t*>(bytes.data())[i];
    if (dtype == DType::kBFloat16) {
      const uint32_t wide = uint32_t{bits} << 16;
      float value;
      std::memcpy(&value, &wide, 4);
      return value;
    }
    const float size = bits >> 10 & 31 ? std::ldexp(1024 + (bits & 1023), (bits >> 10 & 31) - 25)
                                       : std::ldexp(bits & 1023, -24);
    return bits & 0x8000 ? -size : size;
  }

  // The largest difference between what the GPU and the CPU have made, relative to 1 + the number's size.
  double Error() const {
    std::vector<char> from_device(host.size());
    Require(cudaMemcpy(from_device.data(), device, host.size(), cudaMemcpyDeviceToHost));
    double error = 0;
    for (int64_t i = 0; i < count; ++i) {
      const double expected = Value(host, i);
      const double difference = std::fabs(Value(from_device, i) - expected) / (1 + std::fabs(expected));
      if (!(difference <= error)) error = difference;  // NaN stays
    }
    return error;
  }

  DType dtype;
  int64_t count;
  std::vector<char> host;
  void* device = nullptr;
};

double Microseconds(const std::function<void()>& run) {
  cudaEvent_t begin, end;
  Require(cudaEventCreate(&begin));
  Require(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < 60; ++i) {
    Require(cudaEventRecord(begin));
    run();
    Require(cudaEventRecord(end));
    Require(cudaEventSynchronize(end));
    float milliseconds = 0;
    Require(cudaEventElapsedTime(&milliseconds, begin, end));
    if (i >= 10) times.push_back(milliseconds * 1000);
  }
  Require(cudaEventDestroy(begin));
  Require(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

double CopySpeed() {  // bytes per microsecond
  constexpr int64_t kBytes = int64_t{1} << 29;
  Array from(DType::kFloat32, kBytes / 4), to(DType::kFloat32, kBytes / 4);
  return 2 * kBytes / Microseconds([&] {
           Require(cudaMemcpyAsync(to.device, from.device, kBytes, cudaMemcpyDeviceToDevice));
         });
}

const char* Name(DType dtype) {
  return dtype == DType::kFloat32 ? "float32" : dtype == DType::kFloat16 ? "float16" : "bfloat16";
}

struct Checker {
  double copy_speed;
  bool passed = true;

  void Report(const char* pass, DType dtype, int64_t rows, int64_t hidden, double bytes, double time, double error) {
    const double allowed = dtype == DType::kFloat32 ? 1e-5 : dtype == DType::kFloat16 ? 2e-3 : 1.6e-2;
    if (!(error <= allowed)) passed = false;
    std::printf("layer_norm,%s,%s,%lldx%lld,%.1f,%.0f,%.2f,%.1e%s\n", pass, Name(dtype), static_cast<long long>(rows),
                static_cast<long long>(hidden), time, bytes / time / 1000, bytes / time / copy_speed, error,
                error <= allowed ? "" : " WRONG");
  }

  void LayerNorm(DType dtype, int64_t rows, int64_t hidden) {
    std::mt19937 random(1);
    const int64_t count = rows * hidden;
    Array x(dtype, count), dy(dtype, count), y(dtype, count), dx(dtype, count);
    Array gamma(DType::kFloat32, hidden), beta(DType::kFloat32, hidden), dgamma(DType::kFloat32, hidden),
        dbeta(DType::kFloat32, hidden), mean(DType::kFloat32, rows), rstd(DType::kFloat32, rows);
    x.Randomize(random, 0.5, 2);
    dy.Randomize(random, 0, 1);
    gamma.Randomize(random, 1, 0.3);
    beta.Randomize(random, 0, 1);

    void* workspace = nullptr;
    Require(cudaMalloc(&workspace, 64 << 20));
    const CudaStream stream{nullptr, [&](int64_t bytes) { return bytes <= 64 << 20 ? workspace : nullptr; }};
    const auto forward = [&](auto at) {
      return LayerNormForward{rows,     hidden,  kEpsilon, dtype,   DType::kFloat32, at(x), nullptr, at(gamma), at(beta),
                              at(y),    nullptr, static_cast<float*>(at(mean)), static_cast<float*>(at(rstd))};
    };
    const auto backward = [&](auto at) {
      return LayerNormBackward{rows,   hidden,    dtype,  DType::kFloat32, at(dy), nullptr, at(x), at(gamma),
                               static_cast<const float*>(at(mean)), static_cast<const float*>(at(rstd)),
                               at(dx), at(dgamma), at(dbeta)};
    };
    const auto on_host = [](Array& array) -> void* { return array.host.data(); };
    const auto on_device = [](Array& array) -> void* { return array.device; };
    const auto launch = [&](const auto& args) {
      const CudaError error = Launch(args, stream);
      Require(error == nullptr, error);
    };
    Launch(forward(on_host), SerialFor);
    Launch(backward(on_host), SerialFor);
    const double bytes = static_cast<double>(count) * SizeOf(dtype);
    const double forward_time = Microseconds([&] { launch(forward(on_device)); });
    Report("forward", dtype, rows, hidden, 2 * bytes, forward_time, y.Error());
    const double backward_time = Microseconds([&] { launch(backward(on_device)); });
    // The parameters' gradients are sums over all rows, with an error that grows with their number's root.
    const double sums = std::max(dgamma.Error(), dbeta.Error()) / std::sqrt(static_cast<double>(std::max<int64_t>(1, rows)));
    Report("backward", dtype, rows, hidden, 3 * bytes, backward_time, std::max(dx.Error(), sums));
    cudaFree(workspace);
  }
};

}  // namespace
}  // namespace tftrain

int main() {
  tftrain::Checker checker{tftrain::CopySpeed()};
  std::printf("op,pass,dtype,shape,time_us,gb_per_s,share_of_copy,largest_error\n");
  for (auto dtype : {tftrain::DType::kFloat32, tftrain::DType::kFloat16, tftrain::DType::kBFloat16}) {
    for (int64_t hidden : {1, 7, 1000, 2560, 4095}) checker.LayerNorm(dtype, 37, hidden);
    for (int64_t hidden : {768, 1024, 2048}) checker.LayerNorm(dtype, 65536, hidden);
  }
  std::puts(checker.passed ? "all within the tolerance" : "WRONG results, see above");
  return checker.passed ? 0 : 1;
}
