// One vector register of the target: its types, and the operations that need the target's instructions. Included by
// vector-inl.h, which makes the kernels' vectors of it.

#define TFTRAIN_INLINE inline __attribute__((always_inline))

constexpr int kRegisterLanes = TFTRAIN_VECTOR_BYTES / 4;
typedef float RegisterF __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef int32_t RegisterI __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));
typedef uint32_t RegisterU __attribute__((vector_size(TFTRAIN_VECTOR_BYTES)));

template <typename To, typename From>
TFTRAIN_INLINE To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "as many bits");
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

TFTRAIN_INLINE RegisterF Select(RegisterI mask, RegisterF yes, RegisterF no) { return mask ? yes : no; }

// The larger and the smaller; b if either is NaN.
TFTRAIN_INLINE RegisterF Max(RegisterF a, RegisterF b) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_max_ps(a, b);
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_max_ps(a, b);
#else
  return Select(a > b, a, b);
#endif
}

TFTRAIN_INLINE RegisterF Min(RegisterF a, RegisterF b) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_min_ps(a, b);
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_min_ps(a, b);
#else
  return Select(a < b, a, b);
#endif
}

TFTRAIN_INLINE RegisterF Fma(RegisterF a, RegisterF b, RegisterF c) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_fmadd_ps(a, b, c);
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

TFTRAIN_INLINE RegisterF SquareRoot(RegisterF v) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_sqrt_ps(v);
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_sqrt_ps(v);
#else
  for (int i = 0; i < kRegisterLanes; ++i) v[i] = std::sqrt(v[i]);
  return v;
#endif
}

// Sum and Largest first combine the lanes that lie furthest apart, so that a sum is the same in every run.
TFTRAIN_INLINE float Sum(RegisterF v) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_reduce_add_ps(v);
#else
#if TFTRAIN_VECTOR_BYTES == 32
  v += __builtin_shuffle(v, RegisterI{4, 5, 6, 7, 4, 5, 6, 7});
#endif
  const float even = v[0] + v[2];
  return even + (v[1] + v[3]);
#endif
}

TFTRAIN_INLINE float Largest(RegisterF v) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_reduce_max_ps(v);
#else
#if TFTRAIN_VECTOR_BYTES == 32
  v = Max(v, __builtin_shuffle(v, RegisterI{4, 5, 6, 7, 4, 5, 6, 7}));
#endif
  return std::max(std::max(v[0], v[2]), std::max(v[1], v[3]));
#endif
}

// 8-bit numbers in the lowest quarters of lanes.
TFTRAIN_INLINE RegisterU LoadLower(const uint8_t* from) {
  typedef uint8_t Narrower __attribute__((vector_size(TFTRAIN_VECTOR_BYTES / 4)));
  Narrower s;
  std::memcpy(&s, from, sizeof(s));
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<RegisterU>(_mm512_cvtepu8_epi32(Bits<__m128i>(s)));
#elif TFTRAIN_VECTOR_BYTES == 32
  return Bits<RegisterU>(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(Bits<int64_t>(s))));
#else
  return __builtin_convertvector(s, RegisterU);
#endif
}

// 16-bit numbers in the lower halves of lanes.
TFTRAIN_INLINE RegisterU LoadLower(const void* from) {
  typedef uint16_t Narrower __attribute__((vector_size(TFTRAIN_VECTOR_BYTES / 2)));
  Narrower s;
  std::memcpy(&s, from, sizeof(s));
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<RegisterU>(_mm512_cvtepu16_epi32(Bits<__m256i>(s)));
#elif TFTRAIN_VECTOR_BYTES == 32
  // The load doubles the numbers for nothing, and a shuffle within halves is cheaper than one across them.
  const __m256i twice = _mm256_broadcastsi128_si256(Bits<__m128i>(s));
  return Bits<RegisterU>(_mm256_shuffle_epi8(
      twice, _mm256_setr_epi8(0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12,
                              13, -1, -1, 14, 15, -1, -1)));
#else
  return __builtin_convertvector(s, RegisterU);
#endif
}

TFTRAIN_INLINE RegisterF LoadRegister(const float* from) {
  RegisterF v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

TFTRAIN_INLINE RegisterF LoadRegister(const BFloat16* from) {
#if TFTRAIN_VECTOR_BYTES == 32
  const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  return Bits<RegisterF>(_mm256_shuffle_epi8(
      twice, _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, -1, -1, 8, 9, -1, -1, 10, 11, -1,
                              -1, 12, 13, -1, -1, 14, 15)));
#else
  return Bits<RegisterF>(LoadLower(from) << 16);
#endif
}

TFTRAIN_INLINE RegisterF LoadRegister(const Half* from) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif TFTRAIN_VECTOR_BYTES == 32
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  // The exponent is moved to where binary32 has it, and corrected by a multiplication, which also normalizes subnormals.
  const RegisterU bits = LoadLower(from);
  const RegisterF scaled = Bits<RegisterF>((bits & 0x7fff) << 13) * 0x1p112f;
  const RegisterU special = Bits<RegisterU>(Bits<RegisterI>(bits & 0x7c00) == 0x7c00) & 0x7f800000;
  return Bits<RegisterF>(Bits<RegisterU>(scaled) | special | ((bits & 0x8000) << 16));
#endif
}
