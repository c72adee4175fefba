// Products of blocks that fit into the caches: C [rows, columns] = A [rows, depth] B [depth, columns], or added to C. C is
// fp32; a tile of it stays in registers over the whole depth. Included once per target, after vector-inl.h.
//
// A and B hold words: fp32 numbers or, where the target multiplies bf16, pairs of bf16 numbers that are neighbours along
// the depth. B is cut into panels of kPanel columns, so that it is read in sequence. Rows of A come in multiples of
// kTileRows, and panels of B with zeros after the last column.

constexpr int kTileRows = TFTRAIN_VECTOR_BYTES == 64 ? 8 : 4;
constexpr int kTileVectors = TFTRAIN_VECTOR_BYTES == 32 ? 1 : 2;  // a vector of AVX2 is two registers
constexpr int kPanel = kTileVectors * kLanes;

inline int64_t RoundUp(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

// Two bf16 numbers, the first in the lower half.
struct BFloat16Pair {
  uint32_t bits;
};

// The word that numbers of type T are multiplied as.
template <typename T>
struct WordFor {
  using Type = float;
};
#if defined(TFTRAIN_BF16_INSTRUCTIONS)
template <>
struct WordFor<BFloat16> {
  using Type = BFloat16Pair;
};
#endif

template <typename Word>
constexpr int kNumbersOf = std::is_same<Word, float>::value ? 1 : 2;

// One word in all lanes, as bits: of an fp32 number the compiler would make a sum with zero.
template <typename Word>
TFTRAIN_INLINE F Broadcast(const Word* from) {
  uint32_t bits;
  std::memcpy(&bits, from, sizeof(bits));
  return Bits<F>(U{} + bits);
}

TFTRAIN_INLINE F LoadWords(const float* from) { return Load(from); }
TFTRAIN_INLINE F MultiplyAdd(const float*, F a, F b, F sum) { return Fma(a, b, sum); }

TFTRAIN_INLINE F LoadWords(const BFloat16Pair* from) { return Load(reinterpret_cast<const float*>(from)); }
TFTRAIN_INLINE F MultiplyAdd(const BFloat16Pair*, F a, F b, F sum) {
#if defined(TFTRAIN_BF16_INSTRUCTIONS)
  return _mm512_dpbf16_ps(sum, Bits<__m512bh>(a), Bits<__m512bh>(b));
#else
  return sum;  // no type has such words
#endif
}

// One tile. A word of A is at a[row * a_stride + k], or if A is transposed at a[k * a_stride + row]. What is in C is added
// last: a sum of sums over blocks loses less precision than one long sum.
template <bool kTransposed, int kVectors, typename Word>
__attribute__((noinline)) void MultiplyTile(const Word* a, int64_t a_stride, const Word* b, int64_t depth, float* c,
                                            int64_t c_stride, bool add) {
  F sums[kTileRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sums[r][v] = F{};
  }
  for (int64_t k = 0; k < depth; ++k) {
    F columns[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) columns[v] = LoadWords(b + k * kPanel + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kTileRows; ++r) {
      const F factor = Broadcast(a + (kTransposed ? k * a_stride + r : r * a_stride + k));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] = MultiplyAdd(b, factor, columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kTileRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      float* const to = c + r * c_stride + v * kLanes;
      Store(add ? sums[r][v] + Load(to) : sums[r][v], to);
    }
  }
}

// All tiles. A panel of B takes `panel_words` words.
template <bool kTransposed, typename Word>
void MultiplyBlock(const Word* a, int64_t a_stride, const Word* b, int64_t panel_words, int64_t rows, int64_t depth,
                   int64_t columns, float* c, int64_t c_stride, bool add) {
  for (int64_t column = 0; column < columns; column += kPanel, b += panel_words) {
    const bool whole = columns - column > kLanes || kTileVectors == 1;
    for (int64_t row = 0; row < rows; row += kTileRows) {
      const Word* const a_tile = a + row * (kTransposed ? 1 : a_stride);
      float* const c_tile = c + row * c_stride + column;
      if (whole) {
        MultiplyTile<kTransposed, kTileVectors>(a_tile, a_stride, b, depth, c_tile, c_stride, add);
      } else {
        MultiplyTile<kTransposed, 1>(a_tile, a_stride, b, depth, c_tile, c_stride, add);
      }
    }
  }
}

// Packing. All sources are `rows` rows of `size` numbers, `stride` apart; the size is a multiple of 8. What lies after the
// rows and after the size, up to whole tiles and panels, becomes zeros.

// As A: row after row, each of size / kNumbersOf words; `padded` rows in all.
template <typename T>
void PackRows(const T* from, int64_t stride, int64_t rows, int64_t padded, int64_t size, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += size) {
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) Store(Load(from + i), to + i);
    if (i < size) StoreSome(LoadSome(from + i, size - i), to + i, size - i);
  }
  std::fill(to, to + (padded - rows) * size, 0.0f);
}

inline void PackRows(const BFloat16* from, int64_t stride, int64_t rows, int64_t padded, int64_t size,
                     BFloat16Pair* to) {
  for (int64_t row = 0; row < rows; ++row, from += stride, to += size / 2) std::memcpy(to, from, size * 2);
  std::memset(static_cast<void*>(to), 0, (padded - rows) * size * 2);
}

// Words of one row of B, `count` of its columns, from one row or, as pairs, from two.
template <typename T>
TFTRAIN_INLINE void PackVector(const T* from, int64_t /*stride*/, int64_t /*rows*/, int64_t count, float* to) {
  Store(count >= kLanes ? Load(from) : LoadSome(from, count), to);
}

TFTRAIN_INLINE void PackVector(const BFloat16* from, int64_t stride, int64_t rows, int64_t count, BFloat16Pair* to) {
  BFloat16 first[kLanes] = {}, second[kLanes] = {};
  const size_t bytes = std::min<int64_t>(count, kLanes) * sizeof(BFloat16);
  std::memcpy(first, from, bytes);
  if (rows > 1) std::memcpy(second, from + stride, bytes);
  const U words = Bits<U>(Load(second)) | (Bits<U>(Load(first)) >> 16);
  std::memcpy(static_cast<void*>(to), &words, sizeof(words));
}

// As B, the depth along the rows: each panel has `capacity` rows of words, of which those after the rows are left alone.
template <typename T, typename Word>
void PackColumns(const T* from, int64_t stride, int64_t rows, int64_t size, int64_t capacity, Word* to) {
  for (int64_t column = 0; column < size; column += kPanel, to += capacity * kPanel) {
    for (int64_t row = 0; row < rows; row += kNumbersOf<Word>) {
      for (int64_t i = 0; i < kPanel && column + i < size; i += kLanes) {
        PackVector(from + row * stride + column + i, stride, rows - row, size - column - i,
                   to + row / kNumbersOf<Word> * kPanel + i);
      }
    }
  }
}

TFTRAIN_INLINE RegisterF LoadWordRegister(const float* /*for its type*/, const float* from) { return LoadRegister(from); }
template <typename T>
TFTRAIN_INLINE RegisterF LoadWordRegister(const float*, const T* from) {
  return LoadRegister(from);
}
TFTRAIN_INLINE RegisterF LoadWordRegister(const BFloat16Pair*, const BFloat16* from) {
  return LoadRegister(reinterpret_cast<const float*>(from));
}

// Swaps rows and lanes: with as many steps as a lane's number has bits, each of which moves one bit of it to the row's.
TFTRAIN_INLINE void Transpose(RegisterF* rows) {
  constexpr int kHalf = kRegisterLanes / 2;
  RegisterI low, high;
  for (int i = 0; i < kRegisterLanes; ++i) {
    low[i] = i / 2 + i % 2 * kRegisterLanes;
    high[i] = low[i] + kHalf;
  }
#pragma GCC unroll 4
  for (int step = 1; step < kRegisterLanes; step *= 2) {
    RegisterF next[kRegisterLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kHalf; ++i) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + kHalf], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kHalf], high);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kRegisterLanes; ++i) rows[i] = next[i];
  }
}

// As B, the depth along the numbers of a row: a panel has size / kNumbersOf rows of words, and a column for each row of the
// source. Whole panels are written.
template <typename T, typename Word>
void PackTransposed(const T* from, int64_t stride, int64_t rows, int64_t size, Word* to) {
  constexpr int64_t kNumbers = kNumbersOf<Word>;
  constexpr int64_t kStep = kRegisterLanes * kNumbers;  // numbers in a register
  for (int64_t row = 0; row < rows; row += kPanel, to += size / kNumbers * kPanel) {
    for (int64_t in_panel = 0; in_panel < kPanel; in_panel += kRegisterLanes) {
      const int64_t left = std::clamp<int64_t>(rows - row - in_panel, 0, kRegisterLanes);
      for (int64_t i = 0; i < size; i += kStep) {
        const int64_t numbers = std::min(kStep, size - i);
        RegisterF block[kRegisterLanes];
#pragma GCC unroll 16
        for (int r = 0; r < kRegisterLanes; ++r) {
          block[r] = RegisterF{};
          if (r >= left) continue;
          const T* const source = from + (row + in_panel + r) * stride + i;
          if (numbers == kStep) {
            block[r] = LoadWordRegister(to, source);
          } else {
            T buffer[kStep] = {};
            std::memcpy(buffer, source, numbers * sizeof(T));
            block[r] = LoadWordRegister(to, buffer);
          }
        }
        Transpose(block);
#pragma GCC unroll 16
        for (int r = 0; r < kRegisterLanes; ++r) {
          if (r * kNumbers < numbers) {
            std::memcpy(static_cast<void*>(to + (i / kNumbers + r) * kPanel + in_panel), &block[r], sizeof(block[r]));
          }
        }
      }
    }
  }
}
