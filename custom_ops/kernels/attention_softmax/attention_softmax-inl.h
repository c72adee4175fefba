// Attention softmax on the CPU; see attention_softmax.h. A row of exponentials stays in fp32 between its passes.

#include "custom_ops/kernels/common/math-inl.h"
#include "custom_ops/kernels/common/philox-inl.h"

// One thread's working memory for a row; vectors may run past its end.
struct RowScratch {
  explicit RowScratch(int64_t keys) : values(keys + kLanes), draws(keys + kDrawSlack<ProbabilityDraw>) {}
  std::vector<float> values;
  std::vector<ProbabilityDraw> draws;
};

// What is added to the scores of a row: 0 for a key; minus infinity for padding, for keys after a causal query and for the
// lanes after the last key.
class RowBias {
 public:
  explicit RowBias(const AttentionSoftmaxForward& args) : args_(args), bias_(args.shape.keys + kLanes, -INFINITY) {}

  // Of the row given to the call before, or one after it. A row has all keys of the one before and at most one more,
  // unless it is the first of its sample or, if it is causal, of its head.
  const float* Of(int64_t row) {
    const int64_t sample = args_.shape.SampleOf(row);
    const int64_t end = args_.shape.KeyEndOfRow(row);
    if (sample != sample_ || end < end_) {
      std::fill(bias_.begin(), bias_.end(), -INFINITY);
      sample_ = sample;
      end_ = 0;
    }
    const int32_t* mask = args_.key_mask + sample * args_.shape.keys;
    for (; end_ < end; ++end_) bias_[end_] = mask[end_] > 0 ? 0.0f : -INFINITY;
    return bias_.data();
  }

 private:
  const AttentionSoftmaxForward& args_;
  std::vector<float> bias_;
  int64_t sample_ = -1;
  int64_t end_ = 0;
};

// The end of a row in memory: stores a vector of which `left` elements belong to the row.
template <bool kStream, typename T>
TFTRAIN_INLINE void PutAtMost(F v, T* to, int64_t left) {
  if (left >= kLanes) {
    Put<kStream>(v, to);
  } else {
    StoreSome(v, to, left);
  }
}

// Zeros from the element `begin` on, at which a vector begins.
template <bool kStream, typename T>
TFTRAIN_INLINE void ZeroRest(int64_t begin, int64_t keys, T* to) {
  int64_t i = begin;
  for (; i + kLanes <= keys; i += kLanes) Put<kStream>(F{}, to + i);
  if (i < keys) StoreSome(F{}, to + i, keys - i);
}

// The first `end` scores, scaled and masked, into `values`, as powers of 2; returns the largest.
template <typename T>
TFTRAIN_INLINE float ScaleRow(const T* scores, float scale, const float* bias, int64_t end, float* values) {
  F largest = Set(-INFINITY);
  int64_t i = 0;
  for (; i + kLanes <= end; i += kLanes) {
    const F value = Fma(Load(scores + i), Set(scale), Load(bias + i));
    largest = Max(value, largest);
    Store(value, values + i);
  }
  if (i < end) {
    const F value = Fma(LoadSome(scores + i, end - i), Set(scale), Load(bias + i));
    largest = Max(value, largest);
    Store(value, values + i);
  }
  return Largest(largest);
}

// Turns values into exponentials relative to the largest; returns their sum.
TFTRAIN_INLINE float ExponentialRow(float largest, int64_t end, float* values) {
  F sum = {};
  for (int64_t i = 0; i < end; i += kLanes) {
    const F value = Exp2(Load(values + i) - largest);
    sum += value;
    Store(value, values + i);
  }
  return Sum(sum);
}

// The probabilities, and with dropout the dropped ones, from a row of `end` exponentials with zeros in the other lanes.
template <bool kStream, bool kDropout, typename T>
TFTRAIN_INLINE void WriteRow(const float* values, float factor, const ProbabilityDraw* draws, int32_t drop_below,
                             float keep_scale, int64_t end, int64_t keys, T* probabilities, T* dropped) {
  int64_t i = 0;
  for (; i + kLanes <= end; i += kLanes) {
    const F p = Load(values + i) * factor;
    Put<kStream>(p, probabilities + i);
    if (kDropout) Put<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i);
  }
  if (i < end) {
    const F p = Load(values + i) * factor;
    PutAtMost<kStream>(p, probabilities + i, keys - i);
    if (kDropout) PutAtMost<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i, keys - i);
    i += kLanes;
  }
  ZeroRest<kStream>(i, keys, probabilities);
  if (kDropout) ZeroRest<kStream>(i, keys, dropped);
}

template <bool kStream, bool kDropout, typename T>
void SoftmaxRows(const AttentionSoftmaxForward& args, int64_t begin, int64_t end) {
  const AttentionShape& shape = args.shape;
  const int64_t keys = shape.keys;
  RowScratch scratch(keys);
  RowBias bias(args);
  float* values = scratch.values.data();
  const float keep_scale = KeepScale(args.dropout);
  const RoundKeys round_keys(args.dropout);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t key_end = shape.KeyEndOfRow(row);
    const T* scores = static_cast<const T*>(args.scores) + row * keys;
    const float largest = ScaleRow(scores, args.scale * kLog2E, bias.Of(row), key_end, values);
    float factor = 0;
    if (largest == -INFINITY) {  // nothing is left, or nothing is a number
      const bool is_number = std::none_of(values, values + key_end, [](float value) { return std::isnan(value); });
      std::fill(scratch.values.begin(), scratch.values.end(), is_number ? 0.0f : NAN);
      factor = 1;
    } else {
      factor = 1.0f / ExponentialRow(largest, key_end, values);
    }
    T* probabilities = static_cast<T*>(args.probabilities) + row * keys;
    const ProbabilityDraw* draws = nullptr;
    T* dropped = nullptr;
    if (kDropout) {
      const ProbabilityDraws sample_draws(args.dropout, shape.SampleOf(row), shape.ElementsPerSample());
      draws = DrawRange(round_keys, sample_draws, shape.ElementOf(row), key_end, scratch.draws.data());
      dropped = static_cast<T*>(args.dropped) + row * keys;
    }
    WriteRow<kStream, kDropout>(values, factor, draws, args.dropout.drop_below, keep_scale, key_end, keys, probabilities,
                                dropped);
  }
  if (kStream) FinishStreams();
}

// The gradient that reaches the first `end` probabilities, into `values`, with zeros in the other lanes; returns the sum
// of its products with them.
template <bool kDropout, typename T>
TFTRAIN_INLINE float GradientRow(const T* ddropped, const T* probabilities, float keep_scale, const ProbabilityDraw* draws,
                                 int32_t drop_below, int64_t end, float* values) {
  F sum = {};
  int64_t i = 0;
  for (; i + kLanes <= end; i += kLanes) {
    F g = Load(ddropped + i);
    if (kDropout) g = Zero(Kept(draws + i, drop_below), g * keep_scale);
    sum = Fma(g, Load(probabilities + i), sum);
    Store(g, values + i);
  }
  if (i < end) {
    F g = LoadSome(ddropped + i, end - i);
    if (kDropout) g = Zero(Kept(draws + i, drop_below), g * keep_scale);
    sum = Fma(g, LoadSome(probabilities + i, end - i), sum);
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
    const int64_t key_end = shape.KeyEndOfRow(row);
    const T* ddropped = static_cast<const T*>(args.ddropped) + row * keys;
    const T* probabilities = static_cast<const T*>(args.probabilities) + row * keys;
    T* dscores = static_cast<T*>(args.dscores) + row * keys;
    const ProbabilityDraw* draws = nullptr;
    if (kDropout) {
      const ProbabilityDraws sample_draws(args.dropout, shape.SampleOf(row), shape.ElementsPerSample());
      draws = DrawRange(round_keys, sample_draws, shape.ElementOf(row), key_end, scratch.draws.data());
    }
    const float sum = GradientRow<kDropout>(ddropped, probabilities, keep_scale, draws, drop_below, key_end, values);
    T* dropped = kDropout ? static_cast<T*>(args.dropped) + row * keys : nullptr;
    int64_t i = 0;
    for (; i + kLanes <= key_end; i += kLanes) {
      const F p = Load(probabilities + i);
      Put<kStream>((Load(values + i) - sum) * (p * args.scale), dscores + i);
      if (kDropout) Put<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i);
    }
    if (i < key_end) {
      const F p = LoadSome(probabilities + i, key_end - i);
      PutAtMost<kStream>((Load(values + i) - sum) * (p * args.scale), dscores + i, keys - i);
      if (kDropout) PutAtMost<kStream>(Zero(Kept(draws + i, drop_below), p * keep_scale), dropped + i, keys - i);
      i += kLanes;
    }
    ZeroRest<kStream>(i, keys, dscores);
    if (kDropout) ZeroRest<kStream>(i, keys, dropped);
  }
  if (kStream) FinishStreams();
}

// Roughly the nanoseconds of a row.
inline int64_t RowCost(const AttentionShape& shape) { return shape.causal ? shape.keys : 2 * shape.keys; }

inline void RunAttentionSoftmax(const AttentionSoftmaxForward& args, const ParallelFor& parallel_for) {
  const int64_t row_bytes = args.shape.keys * SizeOf(args.dtype);
  const bool stream = ShouldStream(args.shape.rows() * row_bytes, row_bytes, {args.probabilities, args.dropped});
  const bool dropout = args.dropped != nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = dropout ? (stream ? &SoftmaxRows<true, true, T> : &SoftmaxRows<false, true, T>)
                              : (stream ? &SoftmaxRows<true, false, T> : &SoftmaxRows<false, false, T>);
    parallel_for(args.shape.rows(), RowCost(args.shape),
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
    parallel_for(args.shape.rows(), RowCost(args.shape),
                 [&](int64_t begin, int64_t end) { rows(args, begin, end); });
  });
}
