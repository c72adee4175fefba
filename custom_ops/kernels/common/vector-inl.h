// A vector of fp32 lanes, loaded from and stored to any storage type. Included by foreach_target.h once per target,
// inside that target's namespace; hence no include guard and no includes of headers that have one.
//
// Arithmetic is the compiler's own on vector types; only conversions between storage types need a target's instructions.
// For AVX2 a vector is two registers (pair-inl.h): a processor that looks only some iterations ahead is idle for much of
// a long chain of dependent instructions, such as an exponential, and two chains fill it. 16-bit numbers then fill whole
// registers too.

#include "custom_ops/kernels/common/register-inl.h"

#include "custom_ops/kernels/common/pair-inl.h"

#if TFTRAIN_VECTOR_BYTES == 32
typedef Pair<RegisterF> F;
typedef Pair<RegisterI> I;
typedef Pair<RegisterU> U;
#else
typedef RegisterF F;
typedef RegisterI I;
typedef RegisterU U;
#endif
constexpr int kLanes = sizeof(F) / sizeof(float);
typedef uint16_t S __attribute__((vector_size(kLanes * 2)));  // as many lanes of 16 bits

TFTRAIN_INLINE F Set(float value) { return F{} + value; }

TFTRAIN_INLINE F Abs(F a) { return Bits<F>(Bits<I>(a) & 0x7fffffff); }

// The lower halves of lanes, for AVX2 of lanes whose upper halves are 0.
TFTRAIN_INLINE S Narrow(U u) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<S>(_mm512_cvtepi32_epi16(Bits<__m512i>(u)));
#elif TFTRAIN_VECTOR_BYTES == 32
  // Packs the lower quarters of both registers, then the upper ones.
  const __m256i packed = _mm256_packus_epi32(Bits<__m256i>(u.low), Bits<__m256i>(u.high));
  return Bits<S>(_mm256_permute4x64_epi64(packed, 0xd8));
#else
  return __builtin_convertvector(u, S);
#endif
}

// To the nearest, ties to even; NaN stays NaN. The instruction takes subnormal numbers for zero.
TFTRAIN_INLINE S Encode(F v, BFloat16) {
#if defined(TFTRAIN_BF16_INSTRUCTIONS)
  return Bits<S>(_mm512_cvtneps_pbh(v));
#else
  const U bits = Bits<U>(v);
  const U rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return Narrow((rounded | Bits<U>(v != v)) >> 16);
#endif
}

TFTRAIN_INLINE S Encode(F v, Half) {
#if TFTRAIN_VECTOR_BYTES == 64
  return Bits<S>(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif TFTRAIN_VECTOR_BYTES == 32
  return Bits<S>(_mm256_set_m128i(_mm256_cvtps_ph(v.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                                  _mm256_cvtps_ph(v.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
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

template <typename T>
TFTRAIN_INLINE F Load(const T* from) {
#if TFTRAIN_VECTOR_BYTES == 32
  return {LoadRegister(from), LoadRegister(from + kRegisterLanes)};
#else
  return LoadRegister(from);
#endif
}

// Numbers of 16 or 8 bits as they are, not the bits of floating point.
template <typename T>
TFTRAIN_INLINE U LoadIntegers(const T* from) {
#if TFTRAIN_VECTOR_BYTES == 32
  return {LoadLower(from), LoadLower(from + kRegisterLanes)};
#else
  return LoadLower(from);
#endif
}

TFTRAIN_INLINE void Store(F v, float* to) {
#if TFTRAIN_VECTOR_BYTES == 32
  std::memcpy(to, &v.low, sizeof(v.low));
  std::memcpy(to + kRegisterLanes, &v.high, sizeof(v.high));
#else
  std::memcpy(to, &v, sizeof(v));
#endif
}

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
  _mm256_stream_ps(to, v.low);
  _mm256_stream_ps(to + kRegisterLanes, v.high);
#else
  Store(v, to);
#endif
}

template <typename T>
TFTRAIN_INLINE void Stream(F v, T* to) {
#if TFTRAIN_VECTOR_BYTES > 16
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), Bits<__m256i>(Encode(v, T())));
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
