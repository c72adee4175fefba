// What happens to a tile of scores between the products of flash attention: masks, exponentials, dropout, gradients.
// Included once per target, after block_product-inl.h, math-inl.h and philox-inl.h; see flash_attention.h.

constexpr double kLog2EExactly = 1.4426950408889634;

constexpr int64_t kQueryBlock = 32;
constexpr int64_t kKeyBlock = 128;  // so many draws are made at once

// Memory that vectors read without crossing cache lines; not initialized.
template <typename T>
class Scratch {
 public:
  explicit Scratch(int64_t count)
      : data_(static_cast<T*>(::operator new(std::max<int64_t>(1, count) * sizeof(T), std::align_val_t{64}))) {}
  ~Scratch() { ::operator delete(data_, std::align_val_t{64}); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  operator T*() const { return data_; }

 private:
  T* const data_;
};

constexpr int32_t kNoKey = INT32_MIN;  // the sequence id of padding; no sequence may have it

// The least and the greatest sequence id of a block, and whether each of its tokens is a key.
struct BlockSequences {
  int32_t least;
  int32_t greatest;
  bool all_keys;
};

enum class Cover { kNone, kSome, kAll };

// The keys of a tile from its first panel to its last one that a query of it may attend to, and how much of them is left.
struct TileKeys {
  Cover cover;
  int64_t first;
  int64_t end;
};

// One sample's mask: a query attends to the keys with its own sequence id in its range of positions.
class SampleMask {
 public:
  SampleMask(const FlashShape& shape, const FlashMask& mask, int64_t sample)
      : shape_(shape),
        padded_(RoundUp(shape.length, kKeyBlock)),
        queries_(padded_),
        keys_(padded_),
        biased_(mask.slopes != nullptr) {
    const int64_t begin = sample * shape.length;
    std::fill(&queries_[0], &queries_[padded_], kNoKey);
    std::fill(&keys_[0], &keys_[padded_], kNoKey);
    for (int64_t i = 0; i < shape.length; ++i) {
      queries_[i] = mask.sequence_ids == nullptr ? 0 : mask.sequence_ids[begin + i];
      if (mask.keys[begin + i] > 0) keys_[i] = queries_[i];
    }
    for (int64_t i = 0; i < shape.length; i += kPanel) {
      key_panels_.push_back(Block(&keys_[i], std::min<int64_t>(kPanel, RoundUp(shape.length - i, kLanes))));
    }
    for (int64_t i = 0; i < shape.length; i += kQueryBlock) {
      query_blocks_.push_back(Block(&queries_[i], std::min(kQueryBlock, shape.length - i)));
    }
  }

  int32_t query(int64_t token) const { return queries_[token]; }
  const int32_t* keys(int64_t token) const { return &keys_[token]; }

  // What the mask leaves of the tile, at most; if it is all, there is no bias either. The panels before and after contribute
  // zeros only, so that no sum depends on them.
  TileKeys Of(int64_t first_query, int64_t first_key) const {
    TileKeys tile{Cover::kNone, first_key, first_key};
    for (int64_t key = first_key; key < std::min(first_key + kKeyBlock, shape_.length); key += kPanel) {
      const Cover cover = OfPanel(first_query, key);
      if (cover == Cover::kNone) continue;
      if (tile.cover == Cover::kNone) tile = {cover, key, key};
      if (cover == Cover::kSome || key > tile.end) tile.cover = Cover::kSome;
      tile.end = std::min(key + kPanel, shape_.length);
    }
    return tile;
  }

 private:
  Cover OfPanel(int64_t first_query, int64_t first_key) const {
    const BlockSequences& queries = query_blocks_[first_query / kQueryBlock];
    const BlockSequences& keys = key_panels_[first_key / kPanel];
    const int64_t last_query = std::min(first_query + kQueryBlock, shape_.length) - 1;
    const int64_t last_key = std::min(first_key + kPanel, shape_.length) - 1;
    if (keys.least > keys.greatest || keys.greatest < queries.least || queries.greatest < keys.least) return Cover::kNone;
    if (first_key - last_query > shape_.after() || first_query - last_key > shape_.before()) return Cover::kNone;
    const bool one_sequence = keys.least == keys.greatest && queries.least == queries.greatest;
    const bool all_near = last_key - first_query <= shape_.after() && last_query - first_key <= shape_.before();
    return keys.all_keys && one_sequence && all_near && !biased_ ? Cover::kAll : Cover::kSome;
  }

  static BlockSequences Block(const int32_t* sequence_ids, int64_t count) {
    BlockSequences block{INT32_MAX, INT32_MIN, true};
    for (int64_t i = 0; i < count; ++i) {
      if (sequence_ids[i] == kNoKey) {
        block.all_keys = false;
      } else {
        block.least = std::min(block.least, sequence_ids[i]);
        block.greatest = std::max(block.greatest, sequence_ids[i]);
      }
    }
    return block;
  }

  const FlashShape shape_;
  const int64_t padded_;
  Scratch<int32_t> queries_;
  Scratch<int32_t> keys_;
  std::vector<BlockSequences> query_blocks_;
  std::vector<BlockSequences> key_panels_;
  const bool biased_;
};

// What a tile's row of scores becomes before the softmax.
struct RowRule {
  RowRule() = default;
  RowRule(const FlashShape& shape, const SampleMask& mask, float scale, float slope, int64_t query, int64_t first_key)
      : keys(mask.keys(first_key)),
        sequence_id(mask.query(query)),
        scale(scale * kLog2E),
        slope(slope * kLog2E),
        distance(static_cast<float>(first_key - query)),
        least(-static_cast<float>(shape.before())),
        greatest(static_cast<float>(shape.after())) {}

  const int32_t* keys;  // their sequence ids
  int32_t sequence_id;
  float scale;  // this and the next lead to powers of 2
  float slope;
  float distance;  // from the query to the tile's first key
  float least;     // the distances at which the query attends to a key
  float greatest;
};

TFTRAIN_INLINE F LaneNumbers() {
  float numbers[kLanes];
  for (int i = 0; i < kLanes; ++i) numbers[i] = i;
  return Load(numbers);
}

// The scores from the tile's column i on, scaled, less a reference; minus infinity where the mask leaves no key. The
// product and the difference are rounded once, so that large scores lose no more precision than small ones.
template <bool kPartial>
TFTRAIN_INLINE F RuledScores(const float* scores, const RowRule& rule, float reference, int64_t i) {
  if (!kPartial) return Fma(Load(scores + i), Set(rule.scale), Set(-reference));
  const F distance = LaneNumbers() + (rule.distance + static_cast<float>(i));
  const F value = Fma(Load(scores + i), Set(rule.scale), Fma(distance, Set(rule.slope), Set(-reference)));
  const I sequence_ids = Bits<I>(Load(reinterpret_cast<const float*>(rule.keys + i)));
  const I is_far = (distance < rule.least) | (distance > rule.greatest);
  return Select((sequence_ids != rule.sequence_id) | is_far, Set(-INFINITY), value);
}

// The online softmax of a row: the largest score so far, and the sum of the exponentials relative to it.
struct RowState {
  float largest = -INFINITY;
  float sum = 0;
};

// Turns `columns` scores, a multiple of kLanes, into exponentials, and into zeros where they are dropped. Returns the factor
// of what the row has summed up before. `weights` may be `scores`.
template <bool kPartial, bool kDropout, typename Number>
TFTRAIN_INLINE float SoftmaxRow(const RowRule& rule, const ProbabilityDraw* draws, int32_t drop_below, int64_t columns,
                                const float* scores, Number* weights, RowState* state) {
  F largest = Set(state->largest);
  for (int64_t i = 0; i < columns; i += kLanes) largest = Max(RuledScores<kPartial>(scores, rule, 0.0f, i), largest);
  const float now = Largest(largest);
  const float reference = now == -INFINITY ? 0.0f : now;  // the exponentials of minus infinity are zeros then too
  F sum = {};
  for (int64_t i = 0; i < columns; i += kLanes) {
    const F value = Exp2(RuledScores<kPartial>(scores, rule, reference, i));
    sum += value;
    Store(kDropout ? Zero(Kept(draws + i, drop_below), value) : value, weights + i);
  }
  const float factor = now == state->largest ? 1.0f : Largest(Exp2(Set(state->largest - reference)));
  state->sum = state->sum * factor + Sum(sum);
  state->largest = now;
  return factor;
}

// A tile's row in backward.
struct GradientRow {
  RowRule rule;
  const float* scores;
  const float* dweights;  // the gradients of the dropped probabilities
  const ProbabilityDraw* draws;
  float log_sum_exp;  // to base 2
  float dot;          // the sum of p * g
};

// The dropped probabilities, and the gradients of the scores but for the scale, from column i on.
template <bool kPartial, bool kDropout>
TFTRAIN_INLINE void GradientAt(const GradientRow& row, int32_t drop_below, float keep_scale, int64_t i, F* weight,
                               F* dscore) {
  const F p = Exp2(RuledScores<kPartial>(row.scores, row.rule, row.log_sum_exp, i));
  F g = Load(row.dweights + i);
  *weight = p;
  if (kDropout) {
    const I kept = Kept(row.draws + i, drop_below);
    g = Zero(kept, g * keep_scale);
    *weight = Zero(kept, p * keep_scale);
  }
  *dscore = p * (g - row.dot);
}

// Words of one row of a transposed operand, from one row of numbers or, as pairs, from two.
TFTRAIN_INLINE void StoreWords(const F* rows, float* to) { Store(rows[0], to); }
TFTRAIN_INLINE void StoreWords(const F* rows, BFloat16Pair* to) {
  BFloat16 first[kLanes], second[kLanes];
  Store(rows[0], first);
  Store(rows[1], second);
  const U words = Bits<U>(Load(second)) | (Bits<U>(Load(first)) >> 16);
  std::memcpy(static_cast<void*>(to), &words, sizeof(words));
}
