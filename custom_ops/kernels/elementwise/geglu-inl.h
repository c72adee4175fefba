// GeGLU on the CPU; see geglu.h. One pass over each row.

#include "custom_ops/kernels/common/columns-inl.h"
#include "custom_ops/kernels/common/math-inl.h"

#include "custom_ops/kernels/elementwise/gelu_math-inl.h"
#include "custom_ops/kernels/common/partial-inl.h"

template <bool kWhole, bool kTanh, bool kStream, typename T>
TFTRAIN_INLINE void GegluStep(const T* gate, const T* up, const float* gate_bias, const float* up_bias, T* y,
                              int64_t count) {
  const F z = LoadUpTo<kWhole>(gate, count) + Load(gate_bias);
  const F linear = LoadUpTo<kWhole>(up, count) + Load(up_bias);
  PutUpTo<kWhole, kStream>(GeluFor<kTanh, T>(z) * linear, y, count);
}

template <bool kTanh, bool kStream, typename T>
void GegluRows(const GegluForward& args, const float* gate_bias, const float* up_bias, int64_t begin, int64_t end) {
  const int64_t columns = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(args.gate) + row * columns;
    const T* up = static_cast<const T*>(args.up) + row * columns;
    T* y = static_cast<T*>(args.y) + row * columns;
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      GegluStep<true, kTanh, kStream>(gate + i, up + i, gate_bias + i, up_bias + i, y + i, kLanes);
    }
    if (i < columns) {
      GegluStep<false, kTanh, kStream>(gate + i, up + i, gate_bias + i, up_bias + i, y + i, columns - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunGeglu(const GegluForward& args, const ParallelFor& parallel_for) {
  const std::vector<float> gate_bias = PaddedColumnsFrom(args.gate_bias, args.parameter_dtype, args.columns);
  const std::vector<float> up_bias = PaddedColumnsFrom(args.up_bias, args.parameter_dtype, args.columns);
  const int64_t row_bytes = args.columns * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.y});
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = args.approximate ? (stream ? &GegluRows<true, true, T> : &GegluRows<true, false, T>)
                                       : (stream ? &GegluRows<false, true, T> : &GegluRows<false, false, T>);
    parallel_for(args.rows, args.columns, [&](int64_t begin, int64_t end) {
      rows(args, gate_bias.data(), up_bias.data(), begin, end);
    });
  });
}

// The biases, and the sums of their gradients, of one step's columns.
struct GegluColumns {
  GegluColumns operator+(int64_t i) const { return {gate_bias + i, up_bias + i, dgate_bias + i, dup_bias + i}; }

  const float* gate_bias;
  const float* up_bias;
  float* dgate_bias;
  float* dup_bias;
};

template <bool kWhole, bool kTanh, bool kStream, typename T>
TFTRAIN_INLINE void GegluGradientStep(const T* dy, const T* gate, const T* up, T* dgate, T* dup,
                                      const GegluColumns& columns, int64_t count) {
  const F z = LoadUpTo<kWhole>(gate, count) + Load(columns.gate_bias);
  const F linear = LoadUpTo<kWhole>(up, count) + Load(columns.up_bias);
  const F incoming = LoadUpTo<kWhole>(dy, count);
  const GeluTail tail = TailOf<kTanh, T>(z);
  const F dz = incoming * linear * GeluSlope(z, tail);
  const F dlinear = incoming * Gelu(z, tail);
  PutUpTo<kWhole, kStream>(dz, dgate, count);
  PutUpTo<kWhole, kStream>(dlinear, dup, count);
  AddTo(dz, columns.dgate_bias);
  AddTo(dlinear, columns.dup_bias);
}

template <bool kTanh, bool kStream, typename T>
void GegluGradientRows(const GegluBackward& args, const GegluColumns& columns, int64_t begin, int64_t end) {
  const int64_t count = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * count;
    const T* gate = static_cast<const T*>(args.gate) + row * count;
    const T* up = static_cast<const T*>(args.up) + row * count;
    T* dgate = static_cast<T*>(args.dgate) + row * count;
    T* dup = static_cast<T*>(args.dup) + row * count;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      GegluGradientStep<true, kTanh, kStream>(dy + i, gate + i, up + i, dgate + i, dup + i, columns + i, kLanes);
    }
    if (i < count) {
      GegluGradientStep<false, kTanh, kStream>(dy + i, gate + i, up + i, dgate + i, dup + i, columns + i, count - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunGeglu(const GegluBackward& args, const ParallelFor& parallel_for) {
  const std::vector<float> gate_bias = PaddedColumnsFrom(args.gate_bias, args.parameter_dtype, args.columns);
  const std::vector<float> up_bias = PaddedColumnsFrom(args.up_bias, args.parameter_dtype, args.columns);
  const int64_t row_bytes = args.columns * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.dgate, args.dup});
  const RowChunks chunks(args.rows);
  const int64_t padded = PaddedColumns(args.columns);
  // For each chunk dgate_bias, then dup_bias.
  std::vector<float> parts(std::max<int64_t>(1, chunks.count()) * 2 * padded);
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows =
        args.approximate ? (stream ? &GegluGradientRows<true, true, T> : &GegluGradientRows<true, false, T>)
                         : (stream ? &GegluGradientRows<false, true, T> : &GegluGradientRows<false, false, T>);
    parallel_for(chunks.count(), chunks.size * args.columns, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        float* part = parts.data() + chunk * 2 * padded;
        rows(args, {gate_bias.data(), up_bias.data(), part, part + padded}, chunks.begin(chunk), chunks.end(chunk));
      }
    });
  });
  if (args.dgate_bias == nullptr) return;
  SumParts(parts.data(), chunks.count(), 2 * padded);
  ColumnsTo(parts.data(), args.columns, args.parameter_dtype, args.dgate_bias);
  ColumnsTo(parts.data() + padded, args.columns, args.parameter_dtype, args.dup_bias);
}
