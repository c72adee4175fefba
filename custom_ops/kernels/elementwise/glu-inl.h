// Gated linear units on the CPU; see glu.h. One pass over each row.

#include "custom_ops/kernels/common/columns-inl.h"
#include "custom_ops/kernels/common/math-inl.h"

#include "custom_ops/kernels/elementwise/activation-inl.h"
#include "custom_ops/kernels/common/partial-inl.h"

template <bool kWhole, Activation kActivation, bool kStream, typename T>
TFTRAIN_INLINE void GluStep(const T* gate, const T* up, const float* gate_bias, const float* up_bias, T* y,
                            int64_t count) {
  const F z = LoadUpTo<kWhole>(gate, count) + Load(gate_bias);
  const F linear = LoadUpTo<kWhole>(up, count) + Load(up_bias);
  PutUpTo<kWhole, kStream>(Activate<kActivation, T>(z) * linear, y, count);
}

template <Activation kActivation, bool kStream, typename T>
void GluRows(const GluForward& args, const float* gate_bias, const float* up_bias, int64_t begin, int64_t end) {
  const int64_t columns = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* gate = static_cast<const T*>(args.gate) + row * columns;
    const T* up = static_cast<const T*>(args.up) + row * columns;
    T* y = static_cast<T*>(args.y) + row * columns;
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) {
      GluStep<true, kActivation, kStream>(gate + i, up + i, gate_bias + i, up_bias + i, y + i, kLanes);
    }
    if (i < columns) {
      GluStep<false, kActivation, kStream>(gate + i, up + i, gate_bias + i, up_bias + i, y + i, columns - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunGlu(const GluForward& args, const ParallelFor& parallel_for) {
  const std::vector<float> gate_bias = PaddedColumnsFrom(args.gate_bias, args.parameter_dtype, args.columns);
  const std::vector<float> up_bias = PaddedColumnsFrom(args.up_bias, args.parameter_dtype, args.columns);
  const int64_t row_bytes = args.columns * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.y});
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    WithActivation(args.activation, [&](auto activation) {
      const auto rows = stream ? &GluRows<activation(), true, T> : &GluRows<activation(), false, T>;
      parallel_for(args.rows, args.columns, [&](int64_t begin, int64_t end) {
        rows(args, gate_bias.data(), up_bias.data(), begin, end);
      });
    });
  });
}

// The biases, and the sums of their gradients, of one step's columns.
struct GluColumns {
  GluColumns operator+(int64_t i) const { return {gate_bias + i, up_bias + i, dgate_bias + i, dup_bias + i}; }

  const float* gate_bias;
  const float* up_bias;
  float* dgate_bias;
  float* dup_bias;
};

template <bool kWhole, Activation kActivation, bool kStream, typename T>
TFTRAIN_INLINE void GluGradientStep(const T* dy, const T* gate, const T* up, T* dgate, T* dup,
                                    const GluColumns& columns, int64_t count) {
  const F z = LoadUpTo<kWhole>(gate, count) + Load(columns.gate_bias);
  const F linear = LoadUpTo<kWhole>(up, count) + Load(columns.up_bias);
  const F incoming = LoadUpTo<kWhole>(dy, count);
  const Tail tail = TailOf<kActivation, T>(z);
  const F dz = incoming * linear * SlopeOf(z, tail);
  const F dlinear = incoming * ValueOf(z, tail);
  PutUpTo<kWhole, kStream>(dz, dgate, count);
  PutUpTo<kWhole, kStream>(dlinear, dup, count);
  AddTo(dz, columns.dgate_bias);
  AddTo(dlinear, columns.dup_bias);
}

template <Activation kActivation, bool kStream, typename T>
void GluGradientRows(const GluBackward& args, const GluColumns& columns, int64_t begin, int64_t end) {
  const int64_t count = args.columns;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * count;
    const T* gate = static_cast<const T*>(args.gate) + row * count;
    const T* up = static_cast<const T*>(args.up) + row * count;
    T* dgate = static_cast<T*>(args.dgate) + row * count;
    T* dup = static_cast<T*>(args.dup) + row * count;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      GluGradientStep<true, kActivation, kStream>(dy + i, gate + i, up + i, dgate + i, dup + i, columns + i, kLanes);
    }
    if (i < count) {
      GluGradientStep<false, kActivation, kStream>(dy + i, gate + i, up + i, dgate + i, dup + i, columns + i, count - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunGlu(const GluBackward& args, const ParallelFor& parallel_for) {
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
    WithActivation(args.activation, [&](auto activation) {
      const auto rows = stream ? &GluGradientRows<activation(), true, T> : &GluGradientRows<activation(), false, T>;
      parallel_for(chunks.count(), chunks.size * args.columns, [&](int64_t begin, int64_t end) {
        for (int64_t chunk = begin; chunk < end; ++chunk) {
          float* part = parts.data() + chunk * 2 * padded;
          rows(args, {gate_bias.data(), up_bias.data(), part, part + padded}, chunks.begin(chunk), chunks.end(chunk));
        }
      });
    });
  });
  if (args.dgate_bias == nullptr) return;
  SumParts(parts.data(), chunks.count(), 2 * padded);
  ColumnsTo(parts.data(), args.columns, args.parameter_dtype, args.dgate_bias);
  ColumnsTo(parts.data() + padded, args.columns, args.parameter_dtype, args.dup_bias);
}
