// Bias, dropout and residual add on the CPU; see bias_dropout_add.h.

#include "custom_ops/kernels/common/columns-inl.h"
#include "custom_ops/kernels/common/philox-inl.h"

// The draws of whole rows, or none where nothing drops.
template <typename Args>
class RowDraws {
 public:
  explicit RowDraws(const Args& args)
      : args_(args), keys_(args.dropout), buffer_(args.hidden + kDrawSlack<uint16_t>) {}

  const uint16_t* operator()(int64_t row) {
    if (args_.dropout.drop_below == 0) return buffer_.data();
    const SampleDraws<uint16_t> draws(args_.dropout, row / args_.rows, ElementsPerSample(args_));
    return DrawRange(keys_, draws, FirstElement(args_, row), args_.hidden, buffer_.data());
  }

 private:
  const Args& args_;
  const RoundKeys keys_;
  std::vector<uint16_t> buffer_;
};

template <bool kStream, typename T>
void AddRows(const BiasDropoutAddForward& args, const float* bias, int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  const float keep_scale = KeepScale(args.dropout);
  const int32_t drop_below = args.dropout.drop_below;
  RowDraws<BiasDropoutAddForward> row_draws(args);
  for (int64_t row = begin; row < end; ++row) {
    const T* x = static_cast<const T*>(args.x) + row * hidden;
    const T* residual = static_cast<const T*>(args.residual) + row * hidden;
    T* y = static_cast<T*>(args.y) + row * hidden;
    Prefetch(x, hidden);
    Prefetch(residual, hidden);
    const uint16_t* draws = row_draws(row);
    int64_t i = 0;
    for (; i + kLanes <= hidden; i += kLanes) {
      const F value = (Load(x + i) + Load(bias + i)) * keep_scale;
      Put<kStream>(Load(residual + i) + Zero(Kept(draws + i, drop_below), value), y + i);
    }
    if (const int64_t rest = hidden - i; rest > 0) {
      const F value = (LoadSome(x + i, rest) + LoadSome(bias + i, rest)) * keep_scale;
      StoreSome(LoadSome(residual + i, rest) + Zero(Kept(draws + i, drop_below), value), y + i, rest);
    }
  }
  if (kStream) FinishStreams();
}

template <bool kStream, typename T>
void AddGradientRows(const BiasDropoutAddBackward& args, float* dbias, int64_t begin, int64_t end) {
  const int64_t hidden = args.hidden;
  const float keep_scale = KeepScale(args.dropout);
  const int32_t drop_below = args.dropout.drop_below;
  RowDraws<BiasDropoutAddBackward> row_draws(args);
  for (int64_t row = begin; row < end; ++row) {
    const T* dy = static_cast<const T*>(args.dy) + row * hidden;
    T* dx = static_cast<T*>(args.dx) + row * hidden;
    Prefetch(dy, hidden);
    const uint16_t* draws = row_draws(row);
    int64_t i = 0;
    for (; i + kLanes <= hidden; i += kLanes) {
      const F value = Zero(Kept(draws + i, drop_below), Load(dy + i) * keep_scale);
      Put<kStream>(value, dx + i);
      Store(Load(dbias + i) + value, dbias + i);
    }
    if (const int64_t rest = hidden - i; rest > 0) {
      const F value = Zero(Kept(draws + i, drop_below), LoadSome(dy + i, rest) * keep_scale);
      StoreSome(value, dx + i, rest);
      StoreSome(LoadSome(dbias + i, rest) + value, dbias + i, rest);
    }
  }
  if (kStream) FinishStreams();
}

inline void RunBiasDropoutAdd(const BiasDropoutAddForward& args, const ParallelFor& parallel_for) {
  const std::vector<float> bias = ColumnsFrom(args.bias, args.parameter_dtype, args.hidden);
  const int64_t rows = args.samples * args.rows;
  const int64_t row_bytes = args.hidden * SizeOf(args.dtype);
  const bool stream = ShouldStream(rows * row_bytes, row_bytes, {args.y});
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto add = stream ? &AddRows<true, T> : &AddRows<false, T>;
    parallel_for(rows, args.hidden, [&](int64_t begin, int64_t end) { add(args, bias.data(), begin, end); });
  });
}

inline void RunBiasDropoutAdd(const BiasDropoutAddBackward& args, const ParallelFor& parallel_for) {
  const int64_t hidden = args.hidden;
  const RowChunks chunks(args.samples * args.rows);
  const int64_t row_bytes = hidden * SizeOf(args.dtype);
  const bool stream = ShouldStream(chunks.rows * row_bytes, row_bytes, {args.dx});
  std::vector<float> parts(std::max<int64_t>(1, chunks.count()) * hidden);
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto rows = stream ? &AddGradientRows<true, T> : &AddGradientRows<false, T>;
    parallel_for(chunks.count(), chunks.size * hidden, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        rows(args, parts.data() + chunk * hidden, chunks.begin(chunk), chunks.end(chunk));
      }
    });
  });
  SumParts(parts.data(), chunks.count(), hidden);
  ColumnsTo(parts.data(), hidden, args.parameter_dtype, args.dbias);
}
