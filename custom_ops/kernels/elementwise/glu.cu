// Gated linear units on the GPU; see glu.h.
#include "custom_ops/kernels/elementwise/activation.cuh"
#include "custom_ops/kernels/elementwise/column_tiles.cuh"
#include "custom_ops/kernels/elementwise/glu.h"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

template <Activation kActivation>
struct GluFunction {
  static constexpr int kInputs = 2, kOutputs = 1, kBiases = 2, kSums = 0;
  const void* in[2];  // gate, up
  void* out[1];
  const void* bias[2];
  DType bias_dtype;

  template <typename T, int kSize>
  __device__ void Apply(int64_t, int64_t, const float (&v)[2][kSize], const float (&b)[2][kSize],
                        float (&y)[1][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float z = v[0][i] + b[0][i];
      y[0][i] = ValueOf(z, TailOf<kActivation>(z)) * (v[1][i] + b[1][i]);
    }
  }
};

template <Activation kActivation>
struct GluGradient {
  static constexpr int kInputs = 3, kOutputs = 2, kBiases = 2, kSums = 2;
  const void* in[3];  // dy, gate, up
  void* out[2];       // dgate, dup
  const void* bias[2];
  DType bias_dtype;

  template <typename T, int kSize>
  __device__ void Apply(int64_t, int64_t, const float (&v)[3][kSize], const float (&b)[2][kSize],
                        float (&d)[2][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      const float z = v[1][i] + b[0][i];
      const Tail tail = TailOf<kActivation>(z);
      d[0][i] = v[0][i] * (v[2][i] + b[1][i]) * SlopeOf(z, tail);
      d[1][i] = v[0][i] * ValueOf(z, tail);
    }
  }
};

template <Activation kActivation>
CudaError Run(const GluForward& args, const CudaStream& stream) {
  const GluFunction<kActivation> function{
      {args.gate, args.up}, {args.y}, {args.gate_bias, args.up_bias}, args.parameter_dtype};
  return RunTiles(args.dtype, function, args.rows, {args.columns, args.parameter_dtype, {}}, stream);
}

template <Activation kActivation>
CudaError Run(const GluBackward& args, const CudaStream& stream) {
  const GluGradient<kActivation> function{
      {args.dy, args.gate, args.up}, {args.dgate, args.dup}, {args.gate_bias, args.up_bias}, args.parameter_dtype};
  return RunTiles(args.dtype, function, args.rows,
                  {args.columns, args.parameter_dtype, {args.dgate_bias, args.dup_bias}}, stream);
}

}  // namespace

CudaError Launch(const GluForward& args, const CudaStream& stream) {
  return WithActivation(args.activation, [&](auto activation) { return Run<activation()>(args, stream); });
}

CudaError Launch(const GluBackward& args, const CudaStream& stream) {
  return WithActivation(args.activation, [&](auto activation) { return Run<activation()>(args, stream); });
}

}  // namespace tftrain
