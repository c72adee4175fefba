// Bias, dropout and residual add on the GPU; see bias_dropout_add.h.
#include "custom_ops/kernels/cuda/philox.cuh"
#include "custom_ops/kernels/elementwise/bias_dropout_add.h"
#include "custom_ops/kernels/elementwise/column_tiles.cuh"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

// Which elements of [samples, rows, hidden] are kept.
struct Mask {
  Dropout dropout;
  uint32_t rows;
  int64_t hidden;
  int64_t first_row;
  int64_t elements;  // of a whole sample
  float keep_scale;

  // Zeroes or scales the pack at `column` of `row`, counted over all samples.
  template <int kSize>
  __device__ void Apply(int64_t row, int64_t column, float (&values)[kSize]) const {
    if (dropout.drop_below == 0) return;
    const uint32_t sample = static_cast<uint32_t>(row) / rows;
    const uint32_t row_of_sample = static_cast<uint32_t>(row) - sample * rows;
    uint32_t draw[kSize];
    DrawPack(Position(dropout).DrawsOf<uint16_t>(sample, elements), (first_row + row_of_sample) * hidden + column, draw);
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      values[i] = draw[i] >= DropThreshold(dropout.drop_below) ? values[i] * keep_scale : 0.0f;
    }
  }
};

struct AddFunction {
  static constexpr int kInputs = 2, kOutputs = 1, kBiases = 1, kSums = 0;
  const void* in[2];  // x, residual
  void* out[1];
  const void* bias[1];
  DType bias_dtype;
  Mask mask;

  template <typename T, int kSize>
  __device__ void Apply(int64_t row, int64_t column, const float (&v)[2][kSize], const float (&b)[1][kSize],
                        float (&y)[1][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) y[0][i] = v[0][i] + b[0][i];
    mask.Apply(row, column, y[0]);
#pragma unroll
    for (int i = 0; i < kSize; ++i) y[0][i] += v[1][i];
  }
};

struct AddGradient {
  static constexpr int kInputs = 1, kOutputs = 1, kBiases = 0, kSums = 1;
  const void* in[1];
  void* out[1];
  const void* bias[1];
  DType bias_dtype;
  Mask mask;

  template <typename T, int kSize>
  __device__ void Apply(int64_t row, int64_t column, const float (&dy)[1][kSize], const float (&)[1][kSize],
                        float (&dx)[1][kSize]) const {
#pragma unroll
    for (int i = 0; i < kSize; ++i) dx[0][i] = dy[0][i];
    mask.Apply(row, column, dx[0]);
  }
};

template <typename Args>
Mask MaskOf(const Args& args) {
  return {args.dropout,     static_cast<uint32_t>(args.rows), args.hidden,
          args.range.first, ElementsPerSample(args),          KeepScale(args.dropout)};
}

constexpr CudaError kTooManyRows = "bias, dropout and add: more than 2^31 rows are not supported on the GPU";

template <typename Args>
bool TooManyRows(const Args& args) {
  return args.samples * args.rows >= int64_t{1} << 31;
}

}  // namespace

CudaError Launch(const BiasDropoutAddForward& args, const CudaStream& stream) {
  if (TooManyRows(args)) return kTooManyRows;
  const AddFunction function{{args.x, args.residual}, {args.y}, {args.bias}, args.parameter_dtype, MaskOf(args)};
  return RunTiles(args.dtype, function, args.samples * args.rows, {args.hidden, args.parameter_dtype, {}}, stream);
}

CudaError Launch(const BiasDropoutAddBackward& args, const CudaStream& stream) {
  if (TooManyRows(args)) return kTooManyRows;
  const AddGradient function{{args.dy}, {args.dx}, {nullptr}, args.parameter_dtype, MaskOf(args)};
  return RunTiles(args.dtype, function, args.samples * args.rows, {args.hidden, args.parameter_dtype, {args.dbias}},
                  stream);
}

}  // namespace tftrain
