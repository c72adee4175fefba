// Philox in vectors: each 32-bit word of a counter value in a 64-bit lane, where one instruction multiplies to 64 bits.
// The upper halves of lanes are left dirty: multiplication ignores them. A round needs the result of the one before, so
// two vectors go through the rounds together. Included once per target, after vector-inl.h; see philox.h.

#if TFTRAIN_VECTOR_BYTES > 16
typedef uint64_t RegisterW __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef Pair<RegisterW> W;
constexpr int kWideLanes = TFTRAIN_VECTOR_BYTES / 8;  // of a register

TFTRAIN_INLINE RegisterW MultiplyLow(RegisterW a, RegisterW b) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<RegisterW>(_mm512_mul_epu32(Bits<__m512i>(a), Bits<__m512i>(b)));
#else
  return Bits<RegisterW>(_mm256_mul_epu32(Bits<__m256i>(a), Bits<__m256i>(b)));
#endif
}

TFTRAIN_INLINE W MultiplyLow(uint64_t a, W b) {
  const RegisterW factor = RegisterW{} + a;
  return {MultiplyLow(factor, b.low), MultiplyLow(factor, b.high)};
}

TFTRAIN_INLINE RegisterW ExclusiveOr(RegisterW a, RegisterW b, RegisterW c) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<RegisterW>(_mm512_ternarylogic_epi64(Bits<__m512i>(a), Bits<__m512i>(b), Bits<__m512i>(c), 0x96));
#else
  return a ^ b ^ c;
#endif
}

TFTRAIN_INLINE W ExclusiveOr(W a, W b, RegisterW c) {
  return {ExclusiveOr(a.low, b.low, c), ExclusiveOr(a.high, b.high, c)};
}

// The lanes' counter values, in such an order that the unpacking below leaves them in sequence.
TFTRAIN_INLINE RegisterW LaneCounts() {
  RegisterW counts;
  for (int i = 0; i < kWideLanes; ++i) counts[i] = i / 2 + (i % 2) * (kWideLanes / 2);
  return counts;
}

// The 16 bytes of each of a register's counter values, of which each half holds one word in the lower and one in the upper
// half of a lane.
TFTRAIN_INLINE void StoreDraws(RegisterW first_half, RegisterW second_half, void* to) {
#if TFTRAIN_VECTOR_BYTES == 64
  char* wide = static_cast<char*>(to);
  _mm512_storeu_si512(wide, _mm512_unpacklo_epi64(Bits<__m512i>(first_half), Bits<__m512i>(second_half)));
  _mm512_storeu_si512(wide + 64, _mm512_unpackhi_epi64(Bits<__m512i>(first_half), Bits<__m512i>(second_half)));
#else
  __m256i* wide = static_cast<__m256i*>(to);
  _mm256_storeu_si256(wide, _mm256_unpacklo_epi64(Bits<__m256i>(first_half), Bits<__m256i>(second_half)));
  _mm256_storeu_si256(wide + 1, _mm256_unpackhi_epi64(Bits<__m256i>(first_half), Bits<__m256i>(second_half)));
#endif
}

// The lower word of each lane from a, the upper one from the lower word of b.
TFTRAIN_INLINE W LowerWords(W a, W b) { return (a & 0xffffffffu) | (b << 32); }
#endif

// The buffer of DrawRange has room for so many draws more than are asked for.
template <typename Draw>
constexpr int64_t kDrawSlack = kElementsPerCount<Draw> + 4 * TFTRAIN_VECTOR_BYTES / sizeof(Draw) + kLanes;

// The key of each round, which all rows of an op share: made once, since a short row takes little longer than they do.
struct RoundKeys {
  explicit RoundKeys(const Dropout& dropout) {
#if TFTRAIN_VECTOR_BYTES > 16
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const uint32_t key0 = static_cast<uint32_t>(dropout.seed) + round * kPhiloxWeyl0;
      const uint32_t key1 = static_cast<uint32_t>(dropout.seed >> 32) + round * kPhiloxWeyl1;
      of_round[round][0] = RegisterW{} + key0;
      of_round[round][1] = RegisterW{} + key1;
    }
#endif
  }
#if TFTRAIN_VECTOR_BYTES > 16
  RegisterW of_round[kPhiloxRounds][2];
#endif
};

// Draws for the elements from `element` on, at the returned place in `buffer`, which has room for count + kDrawSlack.
template <typename Draw>
inline const Draw* DrawRange(const RoundKeys& keys, const SampleDraws<Draw>& draws, int64_t element, int64_t count,
                             typename SampleDraws<Draw>::Type* buffer) {
  constexpr int64_t kPerCount = kElementsPerCount<Draw>;
  const int64_t first = element / kPerCount;
  const int64_t groups = (element + count - 1) / kPerCount - first + 1;
  int64_t group = 0;
#if TFTRAIN_VECTOR_BYTES > 16
  const RegisterW lane_counts = LaneCounts();
  for (; group < groups; group += 2 * kWideLanes) {
    const uint64_t lowest = draws.low + first + group;
    const W low = {lane_counts + lowest, lane_counts + (lowest + kWideLanes)};
    const RegisterW high = RegisterW{} + draws.high;
    W c0 = low;
    W c1 = low >> 32;
    W c2 = {high, high};
    W c3 = c2 >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const W product0 = MultiplyLow(kPhiloxMultiplier0, c0);
      const W product1 = MultiplyLow(kPhiloxMultiplier1, c2);
      c0 = ExclusiveOr(product1 >> 32, c1, keys.of_round[round][0]);
      c1 = product1;
      c2 = ExclusiveOr(product0 >> 32, c3, keys.of_round[round][1]);
      c3 = product0;
    }
    const W first_half = LowerWords(c0, c1);
    const W second_half = LowerWords(c2, c3);
    Draw* to = buffer + group * kPerCount;
    StoreDraws(first_half.low, second_half.low, to);
    StoreDraws(first_half.high, second_half.high, to + kWideLanes * kPerCount);
  }
#endif
  for (; group < groups; ++group) {
    const PhiloxWords words = Philox(draws.key, draws.low + first + group, draws.high);
    std::memcpy(buffer + group * kPerCount, &words, sizeof(words));
  }
  return buffer + element % kPerCount;
}

// All ones in the lanes whose element is kept.
template <typename Draw>
TFTRAIN_INLINE I Kept(const Draw* draws, int32_t drop_below) {
  return Bits<I>(LoadIntegers(draws)) >= drop_below >> (16 - 8 * sizeof(Draw));
}

TFTRAIN_INLINE F Zero(I kept, F v) { return Bits<F>(Bits<I>(v) & kept); }

// Starts to load a row. While draws are made nothing else keeps memory busy, and the processor's own prefetching, which
// follows loads, loses the track.
template <typename T>
TFTRAIN_INLINE void Prefetch(const T* row, int64_t columns) {
  for (int64_t i = 0; i < columns; i += 64 / sizeof(T)) __builtin_prefetch(row + i);
}
