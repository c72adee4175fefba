// Bias and GeLU on the CPU; see gelu.h. One pass over each row.

#include "custom_ops/kernels/common/columns-inl.h"
#include "custom_ops/kernels/common/math-inl.h"

#include "custom_ops/kernels/elementwise/activation-inl.h"
#include "custom_ops/kernels/common/partial-inl.h"

template <bool kWhole, Activation kActivation, bool kStream, typename T>
TFTRAIN_INLINE void GeluStep(const T* x, const float* bias, T* y, int64_t count) {
  const F z = LoadUpTo<kWhole>(x, count) + Load(bias);
  PutUpTo<kWhole, kStream>(Activate<kActivation, T>(z), y, count);
}

template <Activation kActivation, bool kStream, typename T>
void GeluRows(const GeluForward& args, const float* bias, int64_t begin, int64_t end) {
  const int64_t columns = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * columns;
    T* y = static_cast<T*>(args.y) + row * columns;
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) GeluStep<true, kActivation, kStream>(x + i, bias + i, y + i, kLanes);
    if (i < columns) GeluStep<false, kActivation, kStream>(x + i, bias + i, y + i, columns - i);
  }
  if (kStream) FinishStreams();
}

inline void RunGelu(const GeluForward& args, const ParallelFor& parallel_for) {
  const std::vector<float> bias = PaddedColumnsFrom(args.bias, args.parameter_dtype, args.columns);
  const int64_t row_bytes = args.columns * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.y});
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithActivation(GeluForm(args.approximate), [&](auto activation) {
      const auto rows = stream ? &GeluRows<activation(), true, T> : &GeluRows<activation(), false, T>;
      parallel_for(args.rows, args.columns,
                   [&](int64_t begin, int64_t end) { rows(args, bias.data(), begin, end); });
    });
  });
}

template <bool kWhole, Activation kActivation, bool kStream, typename T>
TFTRAIN_INLINE void GeluGradientStep(const T* dy, const T* x, const float* bias, T* dx, float* dbias, int64_t count) {
  const F z = LoadUpTo<kWhole>(x, count) + Load(bias);
  const F dz = LoadUpTo<kWhole>(dy, count) * SlopeOf(z, TailOf<kActivation, T>(z));
  PutUpTo<kWhole, kStream>(dz, dx, count);
  AddTo(dz, dbias);
}

template <Activation kActivation, bool kStream, typename T>
void GeluGradientRows(const GeluBackward& args, const float* bias, float* dbias, int64_t begin, int64_t end) {
  const int64_t columns = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * columns;
    const T* x = static_cast<const T*>(args.x) + row * columns;
    T* dx = static_cast<T*>(args.dx) + row * columns;
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      GeluGradientStep<true, kActivation, kStream>(dy + i, x + i, bias + i, dx + i, dbias + i, kLanes);
    }
    if (i < columns) {
      GeluGradientStep<false, kActivation, kStream>(dy + i, x + i, bias + i, dx + i, dbias + i, columns - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunGelu(const GeluBackward& args, const ParallelFor& parallel_for) {
  const std::vector<float> bias = PaddedColumnsFrom(args.bias, args.parameter_dtype, args.columns);
  const int64_t row_bytes = args.columns * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.dx});
  const RowChunks chunks(args.rows);
  const int64_t padded = PaddedColumns(args.columns);
  std::vector<float> dbias(std::max<int64_t>(1, chunks.count()) * padded);
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithActivation(GeluForm(args.approximate), [&](auto activation) {
      const auto rows =
          stream ? &GeluGradientRows<activation(), true, T> : &GeluGradientRows<activation(), false, T>;
      parallel_for(chunks.count(), chunks.size * args.columns, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          rows(args, bias.data(), dbias.data() + chunk * padded, chunks.begin(chunk), chunks.end(chunk));
        }
      });
    });
  });
  if (args.dbias == nullptr) return;
  SumParts(dbias.data(), chunks.count(), padded);
  ColumnsTo(dbias.data(), args.columns, args.parameter_dtype, args.dbias);
}
