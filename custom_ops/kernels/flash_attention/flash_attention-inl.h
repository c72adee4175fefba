// Flash attention on the CPU; see flash_attention.h. A head's keys and values are packed once for all of its queries.
//
// Forward divides the blocks of queries among threads, backward the heads of keys: a thread has all keys of a head and all
// queries that attend to them, so every sum is in the order of heads and blocks, whatever the threads.

#include "custom_ops/kernels/common/math-inl.h"
#include "custom_ops/kernels/common/philox-inl.h"

#include "custom_ops/kernels/flash_attention/block_product-inl.h"

#include "custom_ops/kernels/flash_attention/tile-inl.h"

inline int64_t QueryBlocks(const FlashShape& shape) { return (shape.length + kQueryBlock - 1) / kQueryBlock; }

// The keys that the queries [begin, end) may attend to, as a range of whole blocks.
struct KeyRange {
  KeyRange(const FlashShape& shape, int64_t begin, int64_t end)
      : begin(std::max<int64_t>(0, begin - shape.before()) / kKeyBlock * kKeyBlock),
        end(std::min(shape.length, RoundUp(end + shape.after(), kKeyBlock))) {}

  int64_t begin;
  int64_t end;
};

inline float SlopeOf(const FlashMask& mask, int64_t head) { return mask.slopes == nullptr ? 0.0f : mask.slopes[head]; }

// The tile's weights as an operand: in place of the scores or, in 16 bits, apart.
inline float* WeightRow(float* scores, float* /*weights*/, int64_t row) { return scores + row * kKeyBlock; }
inline BFloat16* WeightRow(float* /*scores*/, BFloat16Pair* weights, int64_t row) {
  return reinterpret_cast<BFloat16*>(weights) + row * kKeyBlock;
}

// Working memory of forward for one head and one block of its queries.
template <typename T>
struct FlashForwardWork {
  using Word = typename WordFor<T>::Type;
  static constexpr int64_t kNumbers = kNumbersOf<Word>;

  explicit FlashForwardWork(const FlashShape& shape)
      : size(shape.head_size),
        padded_size(RoundUp(size, kLanes)),
        capacity(RoundUp(shape.length, kKeyBlock) / kNumbers),
        keys(capacity * size),
        values(capacity * RoundUp(size, kPanel)),
        queries(kQueryBlock * size / kNumbers),
        scores(kQueryBlock * kKeyBlock),
        weights(kNumbers == 1 ? 0 : kQueryBlock * kKeyBlock / kNumbers),
        context(kQueryBlock * padded_size),
        draws(kKeyBlock + kDrawSlack<ProbabilityDraw>) {}

  const int64_t size;
  const int64_t padded_size;
  const int64_t capacity;  // of the depth of `values`, in words
  Scratch<Word> keys;
  Scratch<Word> values;
  Scratch<Word> queries;
  Scratch<float> scores;
  Scratch<Word> weights;
  Scratch<float> context;
  Scratch<ProbabilityDraw> draws;
  RowState states[kQueryBlock];
};

// The softmax of a tile's scores, which leaves the weights as an operand.
template <bool kPartial, bool kDropout, typename T>
void SoftmaxTile(const FlashAttentionForward& args, const SampleMask& mask, const RoundKeys& round_keys,
                 const ProbabilityDraws& sample_draws, int64_t head, int64_t first_query, int64_t queries, int64_t first_key,
                 int64_t keys, FlashForwardWork<T>& work) {
  const int64_t columns = RoundUp(keys, kLanes);
  for (int64_t row = 0; row < queries; ++row) {
    const int64_t query = first_query + row;
    const RowRule rule(args.shape, mask, args.scale, SlopeOf(args.mask, head), query, first_key);
    const ProbabilityDraw* draws = nullptr;
    if (kDropout) {
      const int64_t element = args.shape.ElementOf(head, query) + first_key;
      draws = DrawRange(round_keys, sample_draws, element, keys, work.draws);
    }
    float* const scores = work.scores + row * kKeyBlock;
    const float factor = SoftmaxRow<kPartial, kDropout>(
        rule, draws, args.dropout.drop_below, columns, scores,
        WeightRow(work.scores, static_cast<typename FlashForwardWork<T>::Word*>(work.weights), row), &work.states[row]);
    if (factor == 1.0f) continue;
    float* const context = work.context + row * work.padded_size;
    for (int64_t i = 0; i < work.padded_size; i += kLanes) Store(Load(context + i) * factor, context + i);
  }
}

inline float* Weights(float* scores, float* /*weights*/) { return scores; }
inline BFloat16Pair* Weights(float* /*scores*/, BFloat16Pair* weights) { return weights; }

template <bool kDropout, typename T>
void FlashForwardBlock(const FlashAttentionForward& args, const SampleMask& mask, const RoundKeys& round_keys,
                       int64_t sample, int64_t head, int64_t first_query, FlashForwardWork<T>& work) {
  using Word = typename FlashForwardWork<T>::Word;
  constexpr int64_t kNumbers = kNumbersOf<Word>;
  const FlashShape& shape = args.shape;
  const int64_t queries = std::min(kQueryBlock, shape.length - first_query);
  const int64_t rows = RoundUp(queries, kTileRows), depth = work.size / kNumbers;
  const ProbabilityDraws sample_draws(args.dropout, sample, shape.ElementsPerSample());
  const int64_t offset = shape.Offset(sample, head, first_query);
  PackRows(static_cast<const T*>(args.query) + offset, shape.row_stride(), queries, rows, work.size,
           static_cast<Word*>(work.queries));
  std::fill(&work.context[0], &work.context[rows * work.padded_size], 0.0f);
  for (int64_t row = 0; row < queries; ++row) work.states[row] = RowState();
  const Word* const queries_packed = work.queries;
  const KeyRange range(shape, first_query, first_query + queries);
  for (int64_t block = range.begin; block < range.end; block += kKeyBlock) {
    const TileKeys tile = mask.Of(first_query, block);
    if (tile.cover == Cover::kNone) continue;
    const int64_t first_key = tile.first, keys = tile.end - tile.first;
    const Word* const key_panels = work.keys + first_key * depth;
    MultiplyBlock<false>(queries_packed, depth, key_panels, depth * kPanel, rows, depth, keys, work.scores, kKeyBlock,
                         false);
    const auto softmax = tile.cover == Cover::kAll ? &SoftmaxTile<false, kDropout, T> : &SoftmaxTile<true, kDropout, T>;
    softmax(args, mask, round_keys, sample_draws, head, first_query, queries, first_key, keys, work);
    const Word* const weights = Weights(work.scores, static_cast<Word*>(work.weights));
    const Word* const value_panels = work.values + first_key / kNumbers * kPanel;
    MultiplyBlock<false>(weights, kKeyBlock / kNumbers, value_panels, work.capacity * kPanel, rows,
                         (keys + kNumbers - 1) / kNumbers, work.size, work.context, work.padded_size, true);
  }
  const float keep_scale = KeepScale(args.dropout);
  float* const log_sum_exp = args.log_sum_exp + shape.LseOffset(sample, head) + first_query;
  for (int64_t row = 0; row < queries; ++row) {
    const RowState& state = work.states[row];
    log_sum_exp[row] = static_cast<float>((state.largest + std::log2(double{state.sum})) / kLog2EExactly);
    const float factor = state.largest == -INFINITY ? 0.0f : keep_scale / state.sum;
    const float* const from = work.context + row * work.padded_size;
    T* const to = static_cast<T*>(args.context) + offset + row * shape.row_stride();
    int64_t i = 0;
    for (; i + kLanes <= work.size; i += kLanes) Store(Load(from + i) * factor, to + i);
    if (i < work.size) StoreSome(Load(from + i) * factor, to + i, work.size - i);
  }
}

// Items are blocks of queries, head after head.
template <bool kDropout, typename T>
void FlashForwardItems(const FlashAttentionForward& args, int64_t begin, int64_t end) {
  const FlashShape& shape = args.shape;
  const int64_t blocks = QueryBlocks(shape);
  const RoundKeys round_keys(args.dropout);
  FlashForwardWork<T> work(shape);
  constexpr int64_t kNumbers = FlashForwardWork<T>::kNumbers;
  for (int64_t item = begin; item < end;) {
    const int64_t sample = item / blocks / shape.heads;
    const SampleMask mask(shape, args.mask, sample);
    const int64_t sample_end = std::min(end, (sample + 1) * shape.heads * blocks);
    while (item < sample_end) {
      const int64_t shared = item / (blocks * shape.group);  // among the heads of keys of all samples
      const int64_t shared_end = std::min(sample_end, (shared + 1) * blocks * shape.group);
      const bool is_one_head = item / blocks == (shared_end - 1) / blocks;
      const int64_t first = is_one_head ? item % blocks : 0, last = is_one_head ? (shared_end - 1) % blocks : blocks - 1;
      const KeyRange range(shape, first * kQueryBlock, (last + 1) * kQueryBlock);
      const int64_t offset = shape.KvOffset(sample, shared % shape.kv_heads, range.begin);
      const int64_t keys = range.end - range.begin;
      PackTransposed(static_cast<const T*>(args.key) + offset, shape.kv_stride(), keys, work.size,
                     work.keys + range.begin * work.size / kNumbers);
      PackColumns(static_cast<const T*>(args.value) + offset, shape.kv_stride(), keys, work.size, work.capacity,
                  work.values + range.begin / kNumbers * kPanel);
      for (; item < shared_end; ++item) {
        const int64_t head = item / blocks % shape.heads;
        FlashForwardBlock<kDropout>(args, mask, round_keys, sample, head, item % blocks * kQueryBlock, work);
      }
    }
  }
}

#include "custom_ops/kernels/flash_attention/backward-inl.h"

// Roughly the nanoseconds of an item.
inline int64_t FlashCost(const FlashShape& shape, int64_t queries, int64_t products) {
  const int64_t pairs = queries * std::min(shape.length / (shape.causal ? 2 : 1), shape.before() + shape.after() + 1);
  return std::max<int64_t>(1, pairs * shape.head_size * products / 32);
}

inline void RunFlashAttention(const FlashAttentionForward& args, const ParallelFor& parallel_for) {
  const FlashShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.length == 0) return;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto items = args.dropout.drop_below > 0 ? &FlashForwardItems<true, T> : &FlashForwardItems<false, T>;
    parallel_for(shape.batch * shape.heads * QueryBlocks(shape), FlashCost(shape, kQueryBlock, 2),
                 [&](int64_t begin, int64_t end) { items(args, begin, end); });
  });
}

inline void RunFlashAttention(const FlashAttentionBackward& args, const ParallelFor& parallel_for) {
  const FlashShape& shape = args.shape;
  if (shape.batch * shape.heads * shape.length == 0) return;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto heads = args.dropout.drop_below > 0 ? &FlashBackwardHeads<true, T> : &FlashBackwardHeads<false, T>;
    parallel_for(shape.batch * shape.kv_heads, FlashCost(shape, shape.length * shape.group, 5),
                 [&](int64_t begin, int64_t end) { heads(args, begin, end); });
  });
}
