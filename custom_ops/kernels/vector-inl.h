// A vector of fp32 lanes as wide as the target's registers, loaded from and stored to any storage type. Included by
// foreach_target.h once per target, inside that target's namespace; hence no include guard and no includes.
//
// Arithmetic is the compiler's own on vector types; only conversions between storage types need a target's instructions.

#define TFTRAIN_INLINE inline __attribute__((always_inline))

constexpr int kLanes = TFTRAIN_VECTOR_BYTES / 4;
typedef float F __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef int32_t I __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef uint32_t U __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef uint16_t S __attribute__((vector_size(TFTRAIN_VECTOR_BYTES / 2)));  // as many lanes of 16 bits

TFTRAIN_INLINE F Set(float value) { return F{} + value; }

template <typename To, typename From>
TFTRAIN_INLINE To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

TFTRAIN_INLINE F Select(I mask, F yes, F no) { return mask ? yes : no; }
TFTRAIN_INLINE F Max(F a, F b) { return Select(a > b, a, b); }
TFTRAIN_INLINE F Min(F a, F b) { return Select(a < b, a, b); }
TFTRAIN_INLINE F Abs(F a) { return Bits<F>(Bits<I>(a) & 0x7fffffff); }

TFTRAIN_INLINE F Fma(F a, F b, F c) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// In a fixed order of pairs, so that a sum is the same in every run.
TFTRAIN_INLINE float Sum(F v) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_reduce_add_ps(v);
#endif
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof(v));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}

TFTRAIN_INLINE float Largest(F v) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_reduce_max_ps(v);
#endif
  float lane[kLanes];
  std::memcpy(lane, &v, sizeof(v));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  }
  return lane[0];
}

// 16-bit lanes to 32-bit lanes and back; back keeps the lower half.
TFTRAIN_INLINE U Widen(S s) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<U>(_mm512_cvtepu16_epi32(Bits<__m256i>(s)));
#elif TFTRAIN_VECTOR_BYTES == 32
  return Bits<U>(_mm256_cvtepu16_epi32(Bits<__m128i>(s)));
#else
  return __builtin_convertvector(s, U);
#endif
}

TFTRAIN_INLINE S Narrow(U u) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<S>(_mm512_cvtepi32_epi16(Bits<__m512i>(u)));
#elif TFTRAIN_VECTOR_BYTES == 32
  const __m256i packed = _mm256_packus_epi32(Bits<__m256i>(u & 0xffff), _mm256_setzero_si256());
  return Bits<S>(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
#else
  return __builtin_convertvector(u, S);
#endif
}

TFTRAIN_INLINE F Decode(S s, BFloat16) { return Bits<F>(Widen(s) << 16); }

// To the nearest, ties to even; NaN stays NaN. The instruction takes subnormal numbers for zero.
TFTRAIN_INLINE S Encode(F v, BFloat16) {
#if defined(TFTRAIN_BF16_INSTRUCTIONS)
  return Bits<S>(_mm512_cvtneps_pbh(v));
#endif
  const U bits = Bits<U>(v);
  const U rounded = bits + 0x7fff + ((bits >> 16) & 1);
  const U quiet = bits | 0x400000;
  return Narrow((v != v ? quiet : rounded) >> 16);
}

TFTRAIN_INLINE F Decode(S s, Half) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_cvtph_ps(Bits<__m256i>(s));
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_cvtph_ps(Bits<__m128i>(s));
#else
  // The exponent is moved to where binary32 has it, and corrected by a multiplication, which also normalizes subnormals.
  const U bits = Widen(s);
  const F scaled = Bits<F>((bits & 0x7fff) << 13) * 0x1p112f;
  const U special = Bits<U>(Bits<I>(bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return Bits<F>(Bits<U>(scaled) | special | ((bits & 0x8000) << 16));
#endif
}

TFTRAIN_INLINE S Encode(F v, Half) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<S>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif TFTRAIN_VECTOR_BYTES == 32
  return Bits<S>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  const U bits = Bits<U>(v);
  const U magnitude = bits & 0x7fffffff;
  // Normal results: round the mantissa to ten bits, ties to even, and move the exponent by 112.
  const U normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (uint32_t{112} << 23)) >> 13;
  // Subnormal ones: adding 2^-1 leaves the mantissa rounded in the lowest bits.
  const U subnormal = Bits<U>(Bits<F>(magnitude) + 0.5f) - Bits<U>(Set(0.5f));
  const U is_subnormal = Bits<U>(Bits<I>(magnitude) < 0x38800000);
  const U is_large = Bits<U>(Bits<I>(magnitude) >= 0x477ff000);  // rounds to infinity
  const U is_nan = Bits<U>(Bits<I>(magnitude) > 0x7f800000);
  U result = (subnormal & is_subnormal) | (normal & ~is_subnormal);
  result = (result & ~is_large) | (0x7c00 & is_large);
  result = result | (is_nan & 0x200);
  return Narrow(result | ((bits >> 16) & 0x8000));
#endif
}

TFTRAIN_INLINE F Load(const float* from) {
  F v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

template <typename T>
TFTRAIN_INLINE F Load(const T* from) {
  S s;
  std::memcpy(&s, from, sizeof(s));
  return Decode(s, T());
}

TFTRAIN_INLINE void Store(F v, float* to) { std::memcpy(to, &v, sizeof(v)); }

template <typename T>
TFTRAIN_INLINE void Store(F v, T* to) {
  const S s = Encode(v, T());
  std::memcpy(to, &s, sizeof(s));
}

// The first `count` lanes; the others come as zeros, and are not stored.
template <typename T>
TFTRAIN_INLINE F LoadSome(const T* from, int64_t count) {
  T buffer[kLanes] = {};
  std::memcpy(buffer, from, static_cast<size_t>(count) * sizeof(T));
  return Load(buffer);
}

template <typename T>
TFTRAIN_INLINE void StoreSome(F v, T* to, int64_t count) {
  T buffer[kLanes];
  Store(v, buffer);
  std::memcpy(to, buffer, static_cast<size_t>(count) * sizeof(T));
}

// Past the cache; `to` is aligned to what is stored.
TFTRAIN_INLINE void Stream(F v, float* to) {
#if TFTRAIN_VECTOR_BYTES == 64
  _mm512_stream_ps(to, v);
#elif TFTRAIN_VECTOR_BYTES == 32
  _mm256_stream_ps(to, v);
#else
  Store(v, to);
#endif
}

template <typename T>
TFTRAIN_INLINE void Stream(F v, T* to) {
#if TFTRAIN_VECTOR_BYTES == 64
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), Bits<__m256i>(Encode(v, T())));
#elif TFTRAIN_VECTOR_BYTES == 32
  _mm_stream_si128(reinterpret_cast<__m128i*>(to), Bits<__m128i>(Encode(v, T())));
#else
  Store(v, to);
#endif
}

// Makes streamed results visible to other threads; once at the end of a range.
TFTRAIN_INLINE void FinishStreams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

template <bool kStream, typename T>
TFTRAIN_INLINE void Put(F v, T* to) {
  if constexpr (kStream) {
    Stream(v, to);
  } else {
    Store(v, to);
  }
}
