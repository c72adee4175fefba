// Philox in vectors: each 32-bit word of a counter value in a 64-bit lane, where one instruction multiplies to 64 bits. The
// upper halves of lanes are left dirty: multiplication ignores them. Included once per target; see philox.h.

#if TFTRAIN_VECTOR_BYTES > 16
typedef uint64_t W __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
constexpr int kWideLanes = TFTRAIN_VECTOR_BYTES / 8;

TFTRAIN_INLINE W MultiplyLow(W a, W b) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<W>(_mm512_mul_epu32(Bits<__m512i>(a), Bits<__m512i>(b)));
#else
  return Bits<W>(_mm256_mul_epu32(Bits<__m256i>(a), Bits<__m256i>(b)));
#endif
}

TFTRAIN_INLINE W ExclusiveOr(W a, W b, W c) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<W>(_mm512_ternarylogic_epi64(Bits<__m512i>(a), Bits<__m512i>(b), Bits<__m512i>(c), 0x96));
#else
  return a ^ b ^ c;
#endif
}

// The lanes' counter values, in such an order that the unpacking below leaves them in sequence.
TFTRAIN_INLINE W LaneCounts() {
  W counts;
  for (int i = 0; i < kWideLanes; ++i) counts[i] = i / 2 + (i % 2) * (kWideLanes / 2);
  return counts;
}
#endif

constexpr int64_t kDrawSlack = TFTRAIN_VECTOR_BYTES;  // draws that DrawRange may write past the last

// Draws for the elements from `element` on, at the returned place in `buffer`, which has room for count + 8 + kDrawSlack.
inline const uint16_t* DrawRange(const SampleDraws& draws, int64_t element, int64_t count, uint16_t* buffer) {
  const int64_t first = element / kElementsPerCount;
  const int64_t groups = (element + count - 1) / kElementsPerCount - first + 1;
  int64_t group = 0;
#if TFTRAIN_VECTOR_BYTES > 16
  const W lane_counts = LaneCounts();
  const W multiplier0 = W{} + kPhiloxMultiplier0;
  const W multiplier1 = W{} + kPhiloxMultiplier1;
  const W low_half = W{} + 0xffffffff;
  uint64_t round_key[kPhiloxRounds][2];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    round_key[round][0] = static_cast<uint32_t>(draws.key) + round * kPhiloxWeyl0;
    round_key[round][1] = static_cast<uint32_t>(draws.key >> 32) + round * kPhiloxWeyl1;
  }
  for (; group < groups; group += kWideLanes) {
    const W low = lane_counts + (draws.low + first + group);
    W c0 = low;
    W c1 = low >> 32;
    W c2 = W{} + draws.high;
    W c3 = c2 >> 32;
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      const W product0 = MultiplyLow(multiplier0, c0);
      const W product1 = MultiplyLow(multiplier1, c2);
      c0 = ExclusiveOr(product1 >> 32, c1, W{} + round_key[round][0]);
      c1 = product1;
      c2 = ExclusiveOr(product0 >> 32, c3, W{} + round_key[round][1]);
      c3 = product0;
    }
    const W first_half = (c0 & low_half) | (c1 << 32);
    const W second_half = (c2 & low_half) | (c3 << 32);
    uint16_t* to = buffer + group * kElementsPerCount;
#if TFTRAIN_VECTOR_BYTES == 64
    _mm512_storeu_si512(to, _mm512_unpacklo_epi64(Bits<__m512i>(first_half), Bits<__m512i>(second_half)));
    _mm512_storeu_si512(to + 32, _mm512_unpackhi_epi64(Bits<__m512i>(first_half), Bits<__m512i>(second_half)));
#else
    __m256i* wide = reinterpret_cast<__m256i*>(to);
    _mm256_storeu_si256(wide, _mm256_unpacklo_epi64(Bits<__m256i>(first_half), Bits<__m256i>(second_half)));
    _mm256_storeu_si256(wide + 1, _mm256_unpackhi_epi64(Bits<__m256i>(first_half), Bits<__m256i>(second_half)));
#endif
  }
#endif
  for (; group < groups; ++group) {
    const PhiloxWords words = Philox(draws.key, draws.low + first + group, draws.high);
    std::memcpy(buffer + group * kElementsPerCount, &words, sizeof(words));
  }
  return buffer + element % kElementsPerCount;
}

// All ones in the lanes whose element is kept.
TFTRAIN_INLINE I Kept(const uint16_t* draws, int32_t drop_below) {
  S s;
  std::memcpy(&s, draws, sizeof(s));
  return Bits<I>(Widen(s)) >= drop_below;
}

TFTRAIN_INLINE F Zero(I kept, F v) { return Bits<F>(Bits<I>(v) & kept); }
