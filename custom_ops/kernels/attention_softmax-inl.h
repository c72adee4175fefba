// Attention softmax on the CPU; see attention_softmax.h. A row of exponentials stays in fp32 between its passes.

#include "custom_ops/kernels/math-inl.h"
#include "custom_ops/kernels/philox-inl.h"

// One thread's working memory for a row; vectors may run past its end.
struct RowScratch {
  explicit RowScratch(int64_t keys)
      : values(keys + kLanes), bias(keys + kLanes), draws(keys + kElementsPerCount + kDrawSlack + kLanes) {}
  std::vector<float> values;
  std::vector<float> bias;
  std::vector<uint16_t> draws;
};

// 0 for a key and minus infinity for padding, also for the lanes behind the last key.
inline void MakeBias(const int32_t* mask, int64_t keys, float* bias) {
  for (int64_t i = 0; i < keys; ++i) bias[i] = mask[i] > 0 ? 0.0f : -INFINITY;
  for (int64_t i = keys; i < keys + kLanes; ++i) bias[i] = -INFINITY;
}

// Scores, scaled and masked, into `values`, as powers of 2; returns the largest.
template <typename T>
TFTRAIN_INLINE float ScaleRow(const T* scores, float scale, const float* bias, int64_t keys, float* values) {
  F largest = Set(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= keys; i += kLanes) {
    const F value = Fma(Load(scores + i), Set(scale), Load(bias + i));
    largest = Max(value, largest);
    Store(value, values + i);
  }
  if (i < keys) {
    const F value = Fma(LoadSome(scores + i, keys - i), Set(scale), Load(bias + i));
    largest = Max(value, largest);
    Store(value, values + i);
  }
  return Largest(largest);
}

// Turns values into exponentials relative to the largest; returns their sum.
TFTRAIN_INLINE float ExponentialRow(float largest, int64_t keys, float* values) {
  F sum = {};
  for (int64_t i = 0; i < keys; i += kLanes) {
    const F value = Exp2(Load(values + i) - largest);
    sum += value;
    Store(value, values + i);
  }
  return Sum(sum);
}

// The probabilities, and with dropout the dropped ones, from a row of exponentials.
template <bool kStream, bool kDropout, typename T>
TFTRAIN_INLINE void WriteRow(const float* values, float factor, const uint16_t* draws, int32_t drop_below,
                             float keep_scale, int64_t keys, T* probabilities, T* dropped) {
  int64_t i = 0;
  for (; i + kLanes <= keys; i += kLanes) {
    const F p = Load(values + i) * factor;
    Put<kStream>(p, probabilities + i);
    if (kDropout) Put<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i);
  }
  if (i < keys) {
    const F p = Load(values + i) * factor;
    StoreSome(p, probabilities + i, keys - i);
    if (kDropout) StoreSome(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i, keys - i);
  }
}

template <bool kStream, bool kDropout, typename T>
void SoftmaxRows(const AttentionSoftmaxForward& args, int64_t begin, int64_t end) {
  const AttentionShape& shape = args.shape;
  const int64_t keys = shape.keys;
  RowScratch scratch(keys);
  float* values = scratch.values.data();
  const float keep_scale = KeepScale(args.dropout);
  const RoundKeys round_keys(args.dropout);
  int64_t sample = -1;
  for (int64_t row = begin; row < end; ++row) {
    if (shape.SampleOf(row) != sample) {
      sample = shape.SampleOf(row);
      MakeBias(args.key_mask + sample * keys, keys, scratch.bias.data());
    }
    const T* scores = static_cast<const T*>(args.scores) + row * keys;
    const float largest = ScaleRow(scores, args.scale * kLog2E, scratch.bias.data(), keys, values);
    float factor = 0;
    if (largest == -INFINITY) {
      std::fill(scratch.values.begin(), scratch.values.end(), 0.0f);
    } else {
      factor = 1.0f / ExponentialRow(largest, keys, values);
    }
    T* probabilities = static_cast<T*>(args.probabilities) + row * keys;
    const uint16_t* draws = nullptr;
    T* dropped = nullptr;
    if (kDropout) {
      const SampleDraws sample_draws(args.dropout, sample, shape.ElementsPerSample());
      draws = DrawRange(round_keys, sample_draws, shape.ElementOf(row), keys, scratch.draws.data());
      dropped = static_cast<T*>(args.dropped) + row * keys;
    }
    WriteRow<kStream, kDropout>(values, factor, draws, args.dropout.drop_below, keep_scale, keys, probabilities, dropped);
  }
  if (kStream) FinishStreams();
}

// The gradient that reaches the probabilities, into `values`; returns the sum of its products with them.
template <bool kDropout, typename T>
TFTRAIN_INLINE float GradientRow(const T* ddropped, const T* probabilities, float keep_scale, const uint16_t* draws,
                                 int32_t drop_below, int64_t keys, float* values) {
  F sum = {};
  int64_t i = 0;
  for (; i + kLanes <= keys; i += kLanes) {
    F g = Load(ddropped + i);
    if (kDropout) g = Zero(Kept(draws + i, drop_below), g * keep_scale);
    sum = Fma(g, Load(probabilities + i), sum);
    Store(g, values + i);
  }
  if (i < keys) {
    F g = LoadSome(ddropped + i, keys - i);
    if (kDropout) g = Zero(Kept(draws + i, drop_below), g * keep_scale);
    sum = Fma(g, LoadSome(probabilities + i, keys - i), sum);
    Store(g, values + i);
  }
  return Sum(sum);
}

template <bool kStream, bool kDropout, typename T>
void SoftmaxGradientRows(const AttentionSoftmaxBackward& args, int64_t begin, int64_t end) {
  const AttentionShape& shape = args.shape;
  const int64_t keys = shape.keys;
  RowScratch scratch(keys);
  float* values = scratch.values.data();
  const float keep_scale = KeepScale(args.dropout);
  const RoundKeys round_keys(args.dropout);
  const int32_t drop_below = args.dropout.drop_below;
  for (int64_t row = begin; row < end; ++row) {
    const T* ddropped = static_cast<const T*>(args.ddropped) + row * keys;
    const T* probabilities = static_cast<const T*>(args.probabilities) + row * keys;
    T* dscores = static_cast<T*>(args.dscores) + row * keys;
    const uint16_t* draws = nullptr;
    if (kDropout) {
      const SampleDraws sample_draws(args.dropout, shape.SampleOf(row), shape.ElementsPerSample());
      draws = DrawRange(round_keys, sample_draws, shape.ElementOf(row), keys, scratch.draws.data());
    }
    const float sum = GradientRow<kDropout>(ddropped, probabilities, keep_scale, draws, drop_below, keys, values);
    T* dropped = kDropout ? static_cast<T*>(args.dropped) + row * keys : nullptr;
    int64_t i = 0;
    for (; i + kLanes <= keys; i += kLanes) {
      const F p = Load(probabilities + i);
      Put<kStream>((Load(values + i) - sum) * (p * args.scale), dscores + i);
      if (kDropout) Put<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i);
    }
    if (i < keys) {
      const F p = LoadSome(probabilities + i, keys - i);
      StoreSome((Load(values + i) - sum) * (p * args.scale), dscores + i, keys - i);
      if (kDropout) StoreSome(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i, keys - i);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunAttentionSoftmax(const AttentionSoftmaxForward& args, const ParallelFor& parallel_for) {
  const int64_t row_bytes = args.shape.keys * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.shape.rows() * row_bytes, row_bytes, {args.probabilities, args.dropped});
  const bool dropout = args.dropped != nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = dropout ? (stream ? &SoftmaxRows<true, true, T> : &SoftmaxRows<false, true, T>)
                              : (stream ? &SoftmaxRows<true, false, T> : &SoftmaxRows<false, false, T>);
    parallel_for(args.shape.rows(), 2 * args.shape.keys,
                 [&](int64_t begin, int64_t end) { rows(args, begin, end); });
  });
}

inline void RunAttentionSoftmax(const AttentionSoftmaxBackward& args, const ParallelFor& parallel_for) {
  const int64_t row_bytes = args.shape.keys * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.shape.rows() * row_bytes, row_bytes, {args.dscores, args.dropped});
  const bool dropout = args.dropped != nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = dropout ? (stream ? &SoftmaxGradientRows<true, true, T> : &SoftmaxGradientRows<false, true, T>)
                              : (stream ? &SoftmaxGradientRows<true, false, T> : &SoftmaxGradientRows<false, false, T>);
    parallel_for(args.shape.rows(), 2 * args.shape.keys,
                 [&](int64_t begin, int64_t end) { rows(args, begin, end); });
  });
}
