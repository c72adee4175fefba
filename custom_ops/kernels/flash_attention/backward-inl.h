// The backward pass of flash attention on the CPU. Included by flash_attention-inl.h.
//
// For each head of queries and each block of keys, all blocks of queries: the gradients of keys and values are summed up over
// the heads that share them, and those of the queries over the blocks of keys, all in fp32.

// Working memory of backward for one head.
template <typename T>
struct FlashBackwardWork {
  using Word = typename WordFor<T>::Type;
  static constexpr int64_t kNumbers = kNumbersOf<Word>;

  explicit FlashBackwardWork(const FlashShape& shape)
      : size(shape.head_size),
        padded_size(RoundUp(size, kLanes)),
        length(RoundUp(shape.length, kQueryBlock)),
        panel_words(length / kNumbers * kPanel),
        query_rows(length * size / kNumbers),
        dcontext_rows(length * size / kNumbers),
        query_panels(length / kNumbers * RoundUp(size, kPanel)),
        dcontext_panels(length / kNumbers * RoundUp(size, kPanel)),
        log_sum_exp(length),
        dot(length),
        dquery(length * padded_size),
        keys_transposed(kKeyBlock * size / kNumbers),
        values_transposed(kKeyBlock * size / kNumbers),
        key_panels(kKeyBlock / kNumbers * RoundUp(size, kPanel)),
        sums_stride(shape.group > 1 ? padded_size : 0),
        dkey((sums_stride > 0 ? RoundUp(shape.length, kKeyBlock) : kKeyBlock) * padded_size),
        dvalue((sums_stride > 0 ? RoundUp(shape.length, kKeyBlock) : kKeyBlock) * padded_size),
        scores(kQueryBlock * kKeyBlock),
        dweights(kQueryBlock * kKeyBlock),
        weight_words(kNumbers == 1 ? 0 : kQueryBlock * kKeyBlock / kNumbers),
        dscore_words(kNumbers == 1 ? 0 : kQueryBlock * kKeyBlock / kNumbers),
        dscore_rows(kNumbers == 1 ? 0 : kQueryBlock * kKeyBlock / kNumbers),
        draws(kNumbers * kDrawRow) {}

  static constexpr int64_t kDrawRow = kKeyBlock + kDrawSlack<ProbabilityDraw>;

  const int64_t size;
  const int64_t padded_size;
  const int64_t length;       // rounded up to whole blocks
  const int64_t panel_words;  // of the panels over all queries
  Scratch<Word> query_rows, dcontext_rows, query_panels, dcontext_panels;
  Scratch<float> log_sum_exp;  // to base 2; 0 for a query without keys
  Scratch<float> dot;
  Scratch<float> dquery;
  Scratch<Word> keys_transposed, values_transposed, key_panels;
  const int64_t sums_stride;  // of the next two, from a key to the next block's; one head needs only those of a block
  Scratch<float> dkey, dvalue;
  Scratch<float> scores, dweights;
  Scratch<Word> weight_words, dscore_words;  // a row of words has kKeyBlock of them
  Scratch<Word> dscore_rows;                 // the same numbers as dscore_words, row after row
  Scratch<ProbabilityDraw> draws;
};

// Where a tile's operands are: in 16 bits they are apart from the fp32 tile, in fp32 in its place.
inline float* InPlaceOr(float* tile, float* /*words*/) { return tile; }
inline BFloat16Pair* InPlaceOr(float* /*tile*/, BFloat16Pair* words) { return words; }

TFTRAIN_INLINE void StoreRow(F, float*, int64_t) {}  // the words are the rows
TFTRAIN_INLINE void StoreRow(F v, BFloat16Pair* rows, int64_t place) {
  Store(v, reinterpret_cast<BFloat16*>(rows) + place);
}

// From a tile's scores and gradients of dropped probabilities to the operands of the last three products.
template <bool kPartial, bool kDropout, typename T>
void GradientTile(const FlashAttentionBackward& args, const SampleMask& mask, const RoundKeys& round_keys,
                  const ProbabilityDraws& sample_draws, int64_t head, int64_t first_query, int64_t queries,
                  int64_t first_key, int64_t keys, FlashBackwardWork<T>& work) {
  using Word = typename FlashBackwardWork<T>::Word;
  constexpr int64_t kNumbers = kNumbersOf<Word>;
  const float keep_scale = KeepScale(args.dropout);
  const int32_t drop_below = args.dropout.drop_below;
  Word* const weights = InPlaceOr(work.scores, static_cast<Word*>(work.weight_words));
  Word* const dscores = InPlaceOr(work.dweights, static_cast<Word*>(work.dscore_words));
  for (int64_t row = 0; row < queries; row += kNumbers) {
    GradientRow rows[kNumbers];
    for (int64_t n = 0; n < kNumbers; ++n) {
      const int64_t query = first_query + row + n, place = (row + n) * kKeyBlock;
      rows[n] = {RowRule(args.shape, mask, args.scale, SlopeOf(args.mask, head), query, first_key),
                 work.scores + place,
                 work.dweights + place,
                 nullptr,
                 work.log_sum_exp[query],
                 work.dot[query]};
      if (kDropout) {
        const int64_t element = args.shape.ElementOf(head, query) + first_key;
        rows[n].draws = DrawRange(round_keys, sample_draws, element, keys, work.draws + n * work.kDrawRow);
      }
    }
    for (int64_t i = 0; i < keys; i += kLanes) {
      F weight[kNumbers], dscore[kNumbers];
      for (int64_t n = 0; n < kNumbers; ++n) {
        GradientAt<kPartial, kDropout>(rows[n], drop_below, keep_scale, i, &weight[n], &dscore[n]);
        StoreRow(dscore[n], static_cast<Word*>(work.dscore_rows), (row + n) * kKeyBlock + i);
      }
      StoreWords(weight, weights + row / kNumbers * kKeyBlock + i);
      StoreWords(dscore, dscores + row / kNumbers * kKeyBlock + i);
    }
  }
}

template <bool kDropout, typename T>
void FlashBackwardTile(const FlashAttentionBackward& args, const SampleMask& mask, const RoundKeys& round_keys,
                       int64_t sample, int64_t head, int64_t first_query, int64_t block,
                       FlashBackwardWork<T>& work) {
  using Word = typename FlashBackwardWork<T>::Word;
  constexpr int64_t kNumbers = kNumbersOf<Word>;
  const TileKeys tile = mask.Of(first_query, block);
  if (tile.cover == Cover::kNone) return;
  const FlashShape& shape = args.shape;
  const ProbabilityDraws sample_draws(args.dropout, sample, shape.ElementsPerSample());
  const int64_t queries = std::min(kQueryBlock, shape.length - first_query);
  const int64_t first_key = tile.first, keys = tile.end - tile.first;
  const int64_t before = first_key - block;  // keys of the block, whole panels
  const int64_t rows = RoundUp(queries, kTileRows), depth = work.size / kNumbers;
  const int64_t query_depth = (queries + kNumbers - 1) / kNumbers, key_depth = (keys + kNumbers - 1) / kNumbers;
  const Word* const query_rows = work.query_rows + first_query * depth;
  const Word* const dcontext_rows = work.dcontext_rows + first_query * depth;
  const Word* const query_panels = work.query_panels + first_query / kNumbers * kPanel;
  const Word* const dcontext_panels = work.dcontext_panels + first_query / kNumbers * kPanel;
  const Word* const keys_transposed = work.keys_transposed + before * depth;
  const Word* const values_transposed = work.values_transposed + before * depth;
  const Word* const key_panels = work.key_panels + before / kNumbers * kPanel;
  const int64_t sums = block * work.sums_stride + before * work.padded_size;
  MultiplyBlock<false>(query_rows, depth, keys_transposed, depth * kPanel, rows, depth, keys, work.scores, kKeyBlock,
                       false);
  MultiplyBlock<false>(dcontext_rows, depth, values_transposed, depth * kPanel, rows, depth, keys, work.dweights,
                       kKeyBlock, false);
  const bool is_whole = tile.cover == Cover::kAll;
  const auto gradient = is_whole ? &GradientTile<false, kDropout, T> : &GradientTile<true, kDropout, T>;
  gradient(args, mask, round_keys, sample_draws, head, first_query, queries, first_key, keys, work);
  const Word* const weights = InPlaceOr(work.scores, static_cast<Word*>(work.weight_words));
  const Word* const dscores = InPlaceOr(work.dweights, static_cast<Word*>(work.dscore_words));
  const Word* const dscore_rows = InPlaceOr(work.dweights, static_cast<Word*>(work.dscore_rows));
  MultiplyBlock<true>(weights, kKeyBlock, dcontext_panels, work.panel_words, RoundUp(keys, kTileRows), query_depth,
                      work.size, work.dvalue + sums, work.padded_size, true);
  MultiplyBlock<true>(dscores, kKeyBlock, query_panels, work.panel_words, RoundUp(keys, kTileRows), query_depth,
                      work.size, work.dkey + sums, work.padded_size, true);
  MultiplyBlock<false>(dscore_rows, kKeyBlock / kNumbers, key_panels, kKeyBlock / kNumbers * kPanel, rows, key_depth,
                       work.size, work.dquery + first_query * work.padded_size, work.padded_size, true);
}

// Packs what all tiles of a head share.
template <typename T>
void PackHead(const FlashAttentionBackward& args, int64_t sample, int64_t head, FlashBackwardWork<T>& work) {
  using Word = typename FlashBackwardWork<T>::Word;
  const FlashShape& shape = args.shape;
  const int64_t stride = shape.row_stride(), offset = shape.Offset(sample, head, 0);
  const int64_t capacity = work.length / kNumbersOf<Word>;
  const T* const query = static_cast<const T*>(args.query) + offset;
  const T* const dcontext = static_cast<const T*>(args.dcontext) + offset;
  const T* const context = static_cast<const T*>(args.context) + offset;
  PackRows(query, stride, shape.length, work.length, work.size, static_cast<Word*>(work.query_rows));
  PackRows(dcontext, stride, shape.length, work.length, work.size, static_cast<Word*>(work.dcontext_rows));
  PackColumns(query, stride, shape.length, work.size, capacity, static_cast<Word*>(work.query_panels));
  PackColumns(dcontext, stride, shape.length, work.size, capacity, static_cast<Word*>(work.dcontext_panels));
  const float* const log_sum_exp = args.log_sum_exp + shape.LseOffset(sample, head);
  for (int64_t row = 0; row < shape.length; ++row) {
    F sum = {};
    int64_t i = 0;
    for (; i + kLanes <= work.size; i += kLanes) {
      sum = Fma(Load(dcontext + row * stride + i), Load(context + row * stride + i), sum);
    }
    if (i < work.size) {
      const int64_t left = work.size - i;
      sum = Fma(LoadSome(dcontext + row * stride + i, left), LoadSome(context + row * stride + i, left), sum);
    }
    work.dot[row] = Sum(sum);
    const bool has_keys = log_sum_exp[row] != -INFINITY;
    work.log_sum_exp[row] = has_keys ? static_cast<float>(log_sum_exp[row] * kLog2EExactly) : 0.0f;
  }
  // The other row of the last pair has no weights.
  std::fill(&work.dot[shape.length], &work.dot[work.length], 0.0f);
  std::fill(&work.log_sum_exp[shape.length], &work.log_sum_exp[work.length], INFINITY);
  std::fill(&work.dquery[0], &work.dquery[work.length * work.padded_size], 0.0f);
}

// Writes fp32 rows of `size` numbers, each `padded` apart, times a factor.
template <typename T>
void StoreGradient(const float* from, int64_t padded, float factor, int64_t rows, int64_t size, T* to, int64_t stride) {
  for (int64_t row = 0; row < rows; ++row, from += padded, to += stride) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) Store(Load(from + i) * factor, to + i);
    if (i < size) StoreSome(Load(from + i) * factor, to + i, size - i);
  }
}

// One head of queries.
template <bool kDropout, typename T>
void FlashBackwardHead(const FlashAttentionBackward& args, const SampleMask& mask, const RoundKeys& round_keys,
                       int64_t sample, int64_t head, FlashBackwardWork<T>& work) {
  using Word = typename FlashBackwardWork<T>::Word;
  const FlashShape& shape = args.shape;
  const int64_t group = shape.group, stride = shape.kv_stride(), block = kKeyBlock * work.padded_size;
  PackHead(args, sample, head, work);
  for (int64_t first_key = 0; first_key < shape.length; first_key += kKeyBlock) {
    const int64_t offset = shape.KvOffset(sample, head / group, first_key);
    const int64_t keys = std::min(kKeyBlock, shape.length - first_key);
    const T* const key = static_cast<const T*>(args.key) + offset;
    PackTransposed(key, stride, keys, work.size, static_cast<Word*>(work.keys_transposed));
    PackTransposed(static_cast<const T*>(args.value) + offset, stride, keys, work.size,
                   static_cast<Word*>(work.values_transposed));
    PackColumns(key, stride, keys, work.size, kKeyBlock / kNumbersOf<Word>, static_cast<Word*>(work.key_panels));
    float* const dkey = work.dkey + first_key * work.sums_stride;
    float* const dvalue = work.dvalue + first_key * work.sums_stride;
    if (head % group == 0) {
      std::fill(dkey, dkey + block, 0.0f);
      std::fill(dvalue, dvalue + block, 0.0f);
    }
    const int64_t begin = std::max<int64_t>(0, first_key - shape.after()) / kQueryBlock * kQueryBlock;
    const int64_t end = std::min(shape.length, first_key + keys + shape.before());
    for (int64_t first_query = begin; first_query < end; first_query += kQueryBlock) {
      FlashBackwardTile<kDropout>(args, mask, round_keys, sample, head, first_query, first_key, work);
    }
    if (head % group < group - 1) continue;
    StoreGradient(dkey, work.padded_size, args.scale, keys, work.size, static_cast<T*>(args.dkey) + offset, stride);
    StoreGradient(dvalue, work.padded_size, 1.0f, keys, work.size, static_cast<T*>(args.dvalue) + offset, stride);
  }
  StoreGradient(work.dquery, work.padded_size, args.scale, shape.length, work.size,
                static_cast<T*>(args.dquery) + shape.Offset(sample, head, 0), shape.row_stride());
}

// Items are heads of keys and values.
template <bool kDropout, typename T>
void FlashBackwardHeads(const FlashAttentionBackward& args, int64_t begin, int64_t end) {
  const FlashShape& shape = args.shape;
  const int64_t group = shape.group;
  const RoundKeys round_keys(args.dropout);
  FlashBackwardWork<T> work(shape);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t sample = item / shape.kv_heads, first = item % shape.kv_heads * group;
    const SampleMask mask(shape, args.mask, sample);
    for (int64_t head = first; head < first + group; ++head) {
      FlashBackwardHead<kDropout>(args, mask, round_keys, sample, head, work);
    }
  }
}
