// Layer normalization on the CPU, and RMSNorm where kCentred is false; see layer_norm.h. Three passes over a row, of
// RMSNorm two; the first brings it into the cache.

#include "custom_ops/kernels/common/columns-inl.h"

// Sums up f(i, lanes) over a row; four sums at a time, so that they need not wait for each other.
template <typename T>
TFTRAIN_INLINE float RowSum(const T* x, int64_t hidden) {
  F sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= hidden; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) sum[k] += Load(x + i + k * kLanes);
  }
  for (; i + kLanes <= hidden; i += kLanes) sum[0] += Load(x + i);
  if (i < hidden) sum[1] += LoadSome(x + i, hidden - i);
  return Sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

template <bool kCentred>
TFTRAIN_INLINE F Centre(F x, float mean) {
  if constexpr (kCentred) {
    return x - mean;
  } else {
    return x;
  }
}

template <bool kCentred, typename T>
TFTRAIN_INLINE float RowSquares(const T* x, int64_t hidden, float mean) {
  F sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= hidden; i += 4 * kLanes) {
    for (int k = 0; k < 4; ++k) {
      const F centred = Centre<kCentred>(Load(x + i + k * kLanes), mean);
      sum[k] = Fma(centred, centred, sum[k]);
    }
  }
  for (; i + kLanes <= hidden; i += kLanes) {
    const F centred = Centre<kCentred>(Load(x + i), mean);
    sum[0] = Fma(centred, centred, sum[0]);
  }
  float rest = 0;
  if (i < hidden) {
    float lane[kLanes];
    Store(Centre<kCentred>(LoadSome(x + i, hidden - i), mean), lane);
    for (int64_t k = 0; k < hidden - i; ++k) rest += lane[k] * lane[k];
  }
  return Sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest;
}

template <bool kCentred>
TFTRAIN_INLINE F ScaleAndShift(F normal, F gamma, F beta) {
  if constexpr (kCentred) {
    return Fma(normal, gamma, beta);
  } else {
    return normal * gamma;
  }
}

template <bool kCentred, bool kStream, typename T>
void ForwardRows(const LayerNormForward& args, const float* gamma, const float* beta, int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * hidden;
    float mean = 0;
    if constexpr (kCentred) args.mean[row] = mean = RowSum(x, hidden) / hidden;
    const float rstd = 1.0f / std::sqrt(RowSquares<kCentred>(x, hidden, mean) / hidden + args.epsilon);
    args.rstd[row] = rstd;

    T* y = static_cast<T*>(args.y) + row * hidden;
    int64_t i = 0;
    for (; i + kLanes <= hidden; i += kLanes) {
      const F normal = Centre<kCentred>(Load(x + i), mean) * rstd;
      Put<kStream>(ScaleAndShift<kCentred>(normal, Load(gamma + i), kCentred ? Load(beta + i) : F{}), y + i);
    }
    if (const int64_t rest = hidden - i; rest > 0) {
      const F normal = Centre<kCentred>(LoadSome(x + i, rest), mean) * rstd;
      const F shift = kCentred ? LoadSome(beta + i, rest) : F{};
      StoreSome(ScaleAndShift<kCentred>(normal, LoadSome(gamma + i, rest), shift), y + i, rest);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunLayerNorm(const LayerNormForward& args, const ParallelFor& parallel_for) {
  if (args.rows == 0 || args.hidden == 0) return;
  const std::vector<float> gamma = ColumnsFrom(args.gamma, args.parameter_dtype, args.hidden);
  std::vector<float> beta;
  if (args.centred) beta = ColumnsFrom(args.beta, args.parameter_dtype, args.hidden);
  const int64_t row_bytes = args.hidden * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.y});
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = args.centred ? (stream ? &ForwardRows<true, true, T> : &ForwardRows<true, false, T>)
                                   : (stream ? &ForwardRows<false, true, T> : &ForwardRows<false, false, T>);
    parallel_for(args.rows, args.hidden, [&](int64_t begin, int64_t end) {
      rows(args, gamma.data(), beta.data(), begin, end);
    });
  });
}

// Adds to the two sums of a row that dx needs, and to the parameters' gradients.
template <bool kCentred>
TFTRAIN_INLINE void AddToSums(F dy, F normal, F gamma, float* dgamma, float* dbeta, F* sum_g, F* sum_gn) {
  Store(Fma(dy, normal, Load(dgamma)), dgamma);
  if constexpr (kCentred) Store(Load(dbeta) + dy, dbeta);
  const F g = dy * gamma;
  if constexpr (kCentred) *sum_g += g;
  *sum_gn = Fma(g, normal, *sum_gn);
}

template <bool kCentred, bool kStream, typename T>
void BackwardRows(const LayerNormBackward& args, const float* gamma, float* dgamma, float* dbeta, int64_t begin,
                  int64_t end) {
  const int64_t hidden = args.hidden;
  const int64_t whole = hidden / kLanes * kLanes;
  const int64_t rest = hidden - whole;
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * hidden;
    const T* x = static_cast<const T*>(args.x) + row * hidden;
    T* dx = static_cast<T*>(args.dx) + row * hidden;
    const float mean = kCentred ? args.mean[row] : 0;
    const float rstd = args.rstd[row];

    F sum_g = {};
    F sum_gn = {};
    for (int64_t i = 0; i < whole; i += kLanes) {
      const F normal = Centre<kCentred>(Load(x + i), mean) * rstd;
      AddToSums<kCentred>(Load(dy + i), normal, Load(gamma + i), dgamma + i, dbeta + i, &sum_g, &sum_gn);
    }
    if (rest > 0) {
      // Lanes past the row have dy = 0 and add nothing; the buffers of gamma's columns are padded for them.
      const F normal = Centre<kCentred>(LoadSome(x + whole, rest), mean) * rstd;
      AddToSums<kCentred>(LoadSome(dy + whole, rest), normal, Load(gamma + whole), dgamma + whole, dbeta + whole,
                          &sum_g, &sum_gn);
    }
    const float mean_g = Sum(sum_g) / hidden;
    const float mean_gn = Sum(sum_gn) / hidden;

    for (int64_t i = 0; i < whole; i += kLanes) {
      const F normal = Centre<kCentred>(Load(x + i), mean) * rstd;
      const F g = Centre<kCentred>(Load(dy + i) * Load(gamma + i), mean_g);
      Put<kStream>((g - normal * mean_gn) * rstd, dx + i);
    }
    if (rest > 0) {
      const F normal = Centre<kCentred>(LoadSome(x + whole, rest), mean) * rstd;
      const F g = Centre<kCentred>(LoadSome(dy + whole, rest) * Load(gamma + whole), mean_g);
      StoreSome((g - normal * mean_gn) * rstd, dx + whole, rest);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunLayerNorm(const LayerNormBackward& args, const ParallelFor& parallel_for) {
  const int64_t hidden = args.hidden;
  const int64_t padded = (hidden + kLanes - 1) / kLanes * kLanes;
  std::vector<float> gamma = ColumnsFrom(args.gamma, args.parameter_dtype, hidden);
  gamma.resize(padded);
  const int64_t row_bytes = hidden * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.rows * row_bytes, row_bytes, {args.dx});
  const RowChunks chunks(args.rows);
  // For each chunk dgamma, then dbeta if there is one.
  const int64_t part_size = (args.centred ? 2 : 1) * padded;
  std::vector<float> parts(std::max<int64_t>(1, chunks.count()) * part_size);
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = args.centred ? (stream ? &BackwardRows<true, true, T> : &BackwardRows<true, false, T>)
                                   : (stream ? &BackwardRows<false, true, T> : &BackwardRows<false, false, T>);
    parallel_for(chunks.count(), chunks.size * hidden, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        float* dgamma = parts.data() + chunk * part_size;
        rows(args, gamma.data(), dgamma, dgamma + padded, chunks.begin(chunk), chunks.end(chunk));
      }
    });
  });
  SumParts(parts.data(), chunks.count(), part_size);
  ColumnsTo(parts.data(), hidden, args.parameter_dtype, args.dgamma);
  if (args.centred) ColumnsTo(parts.data() + padded, hidden, args.parameter_dtype, args.dbeta);
}
