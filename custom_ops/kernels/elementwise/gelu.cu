// Bias and GeLU on the GPU; see gelu.h.
#include "custom_ops/kernels/elementwise/activation.cuh"
#include "custom_ops/kernels/elementwise/column_tiles.cuh"
#include "custom_ops/kernels/elementwise/gelu.h"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

template <Activation kActivation>
struct GeluFunction {
  static constexpr int kInputs = 1, kOutputs = 1, kBiases = 1, kSums = 0;
  const void* in[1];
  void* out[1];
  const void* bias[1];
  DType bias_dtype;

  template <typename T, int kSize>
  __device__ void Apply(int64_t, int64_t, const float (&x)[1][kSize], const float (&b)[1][kSize],
                        float (&y)[1][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float z = x[0][i] + b[0][i];
      y[0][i] = ValueOf(z, TailOf<kActivation>(z));
    }
  }
};

template <Activation kActivation>
struct GeluGradient {
  static constexpr int kInputs = 2, kOutputs = 1, kBiases = 1, kSums = 1;
  const void* in[2];  // dy, x
  void* out[1];
  const void* bias[1];
  DType bias_dtype;

  template <typename T, int kSize>
  __device__ void Apply(int64_t, int64_t, const float (&v)[2][kSize], const float (&b)[1][kSize],
                        float (&dx)[1][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float z = v[1][i] + b[0][i];
      dx[0][i] = v[0][i] * SlopeOf(z, TailOf<kActivation>(z));
    }
  }
};

template <Activation kActivation>
CudaError Run(const GeluForward& args, const CudaStream& stream) {
  const GeluFunction<kActivation> function{{args.x}, {args.y}, {args.bias}, args.parameter_dtype};
  return RunTiles(args.dtype, function, args.rows, {args.columns, args.parameter_dtype, {}}, stream);
}

template <Activation kActivation>
CudaError Run(const GeluBackward& args, const CudaStream& stream) {
  const GeluGradient<kActivation> function{{args.dy, args.x}, {args.dx}, {args.bias}, args.parameter_dtype};
  return RunTiles(args.dtype, function, args.rows, {args.columns, args.parameter_dtype, {args.dbias}}, stream);
}

}  // namespace

CudaError Launch(const GeluForward& args, const CudaStream& stream) {
  return WithActivation(GeluForm(args.approximate), [&](auto activation) { return Run<activation()>(args, stream); });
}

CudaError Launch(const GeluBackward& args, const CudaStream& stream) {
  return WithActivation(GeluForm(args.approximate), [&](auto activation) { return Run<activation()>(args, stream); });
}

}  // namespace tftrain
