// GeLU and SiLU and their derivatives in vectors. Included once per target, after math-inl.h.
//
// Each is f(x) = x c(x), where c is a distribution function with c(-x) = 1 - c(x): the normal distribution's; sigmoid(2u)
// with u = sqrt(2 / pi) (x + 0.044715 x^3), which is the tanh form; or of SiLU sigmoid(x). With a = |x| all follow from
// the tail q = c(-a), so that nothing cancels where c(x) is small:
//
//   f(x) = max(x, 0) - a q,    f'(x) = d for x < 0, else 1 - d,    d = q - a c'(a).
//
// For the normal distribution q = e^(-a^2 / 2) R(a) with R(a) = erfcx(a / sqrt(2)) / 2, here as a rational minimax
// approximation over [0, 13.5], found by the Remez exchange algorithm. Its coefficients are all positive, so that what
// they and the sums are rounded by stays relative too.
//
// There are three precisions. fp32 has the long forms. Gradients of numbers stored in 16 bits have the short ones,
// whose error of 5e-7 is small enough for sums over rows, which are not rounded to 16 bits before. Values rounded to 16
// bits have the coarse ones, with a relative error of 1.4e-4 where fp16 rounds by up to 4.9e-4.
struct Tail {
  F magnitude;  // a, no larger than where the tail is 0 in fp32, so that infinities do not make NaN
  F tail;       // q
  F slope;      // d
};

constexpr float kNormalDensity = 0.398942280f;  // 1 / sqrt(2 pi)
constexpr float kTanhLinear = 1.59576912f;      // 2 sqrt(2 / pi)
constexpr float kTanhCubic = 0.0713548163f;     // 0.044715 times that

// R(a) with a relative error of 3.8e-7.
TFTRAIN_INLINE F ShortRatio(F a) {
  F p = Set(0.0169176944f);
  p = Fma(p, a, Set(0.118982621f));
  p = Fma(p, a, Set(0.361014277f));
  p = Fma(p, a, Set(0.499999821f));
  F q = Set(0.0424116813f);
  q = Fma(q, a, Set(0.298033953f));
  q = Fma(q, a, Set(0.950809002f));
  q = Fma(q, a, Set(1.51989520f));
  q = Fma(q, a, Set(1.0f));
  return p / q;
}

// R(a) with a relative error of 2.3e-8, less than half a unit in the last place.
TFTRAIN_INLINE F LongRatio(F a) {
  F p = Set(0.00403700862f);
  p = Fma(p, a, Set(0.0400981195f));
  p = Fma(p, a, Set(0.181645989f));
  p = Fma(p, a, Set(0.436146438f));
  p = Fma(p, a, Set(0.5f));
  F q = Set(0.0101191411f);
  q = Fma(q, a, Set(0.100518294f));
  q = Fma(q, a, Set(0.465275645f));
  q = Fma(q, a, Set(1.19589686f));
  q = Fma(q, a, Set(1.67017782f));
  q = Fma(q, a, Set(1.0f));
  return p / q;
}

template <bool kLong>
TFTRAIN_INLINE Tail ErfTail(F a) {
  F exponential;
  F ratio;
  if constexpr (kLong) {
    // What rounding a^2 loses is put back: in the exponential it would grow with a^2.
    const F square = a * a;
    const F lost = Fma(a, a, -square);
    const F rounded = Exp(square * -0.5f);
    exponential = Fma(rounded, lost * -0.5f, rounded);
    ratio = LongRatio(a);
  } else {
    exponential = Exp2(a * a * (-0.5f * kLog2E));
    ratio = ShortRatio(a);
  }
  return {a, exponential * ratio, exponential * Fma(a, Set(-kNormalDensity), ratio)};
}

// q = sigmoid(-2u(a)) = e / (1 + e) with e = e^(-2u), and c'(a) = q (1 - q) 2u'(a).
template <bool kLong>
TFTRAIN_INLINE Tail TanhTail(F a) {
  const F square = a * a;
  F e;
  if constexpr (kLong) {
    e = Exp(-(a * Fma(square, Set(kTanhCubic), Set(kTanhLinear))));
  } else {
    e = Exp2(a * Fma(square, Set(-kTanhCubic * kLog2E), Set(-kTanhLinear * kLog2E)));
  }
  const F rest = 1.0f / (1.0f + e);
  const F tail = e * rest;
  const F growth = Fma(square, Set(3 * kTanhCubic), Set(kTanhLinear));
  return {a, tail, tail * Fma(-(a * rest), growth, Set(1.0f))};
}

// q = sigmoid(-a) = e / (1 + e) with e = e^-a, and c'(a) = q (1 - q).
template <bool kLong>
TFTRAIN_INLINE Tail SiluTail(F a) {
  const F e = kLong ? Exp(-a) : Exp2(a * -kLog2E);
  const F rest = 1.0f / (1.0f + e);
  const F tail = e * rest;
  return {a, tail, tail * Fma(-a, rest, Set(1.0f))};
}

template <Activation kActivation, typename T>
TFTRAIN_INLINE Tail TailOf(F x) {
  constexpr bool kLong = std::is_same_v<T, float>;
  constexpr float kLargest = kActivation == Activation::kSilu ? 88 : 14;
  const F a = Min(Set(kLargest), Abs(x));  // NaN stays
  if constexpr (kActivation == Activation::kSilu) {
    return SiluTail<kLong>(a);
  } else {
    return kActivation == Activation::kGeluTanh ? TanhTail<kLong>(a) : ErfTail<kLong>(a);
  }
}

// f(x) and f'(x).
TFTRAIN_INLINE F ValueOf(F x, const Tail& tail) { return Fma(-tail.magnitude, tail.tail, Max(x, F{})); }

TFTRAIN_INLINE F SlopeOf(F x, const Tail& tail) { return Select(x < 0.0f, tail.slope, 1.0f - tail.slope); }

// 1 / x with a relative error of 2^-14.
TFTRAIN_INLINE F CoarseInverse(F x) {
#if TFTRAIN_VECTOR_BYTES == 64
  return _mm512_rcp14_ps(x);
#else
  return 1.0f / x;
#endif
}

// q = p(a)^-32, where p is the minimax polynomial for q^(-1/32) over [0, 5.5], above which gelu is below 1e-7: a tail
// without an exponential. The power's relative error is 7.3e-5. It overflows, and the tail is 0, before a = 14.
TFTRAIN_INLINE F CoarseErfTail(F a) {
  F p = Set(7.53921597e-7f);
  p = Fma(p, a, Set(1.0175414e-5f));
  p = Fma(p, a, Set(-3.21010011e-5f));
  p = Fma(p, a, Set(0.00131055643f));
  p = Fma(p, a, Set(0.0105924672f));
  p = Fma(p, a, Set(0.0254401602f));
  p = Fma(p, a, Set(1.02189946f));
  p *= p;
  p *= p;
  p *= p;
  p *= p;
  p *= p;
  return CoarseInverse(p);
}

// 1 / (1 + 2^t) for t from 0 to 126; the power by a polynomial with an error of 2.7e-6.
TFTRAIN_INLINE F CoarseSigmoid(F t) {
  const F shifted = t + 12582912.0f;
  const F r = t - (shifted - 12582912.0f);
  F sum = Set(0.00957010221f);
  sum = Fma(sum, r, Set(0.0559178591f));
  sum = Fma(sum, r, Set(0.240247443f));
  sum = Fma(sum, r, Set(0.693121791f));
  sum = Fma(sum, r, Set(0.999999285f));
  return CoarseInverse(1.0f + Bits<F>(Bits<I>(sum) + (Bits<I>(shifted) << 23)));
}

// q with t = 2u log2(e), below 126 for a <= 10.
TFTRAIN_INLINE F CoarseTanhTail(F a) {
  return CoarseSigmoid(a * Fma(a * a, Set(kTanhCubic * kLog2E), Set(kTanhLinear * kLog2E)));
}

template <Activation kActivation>
TFTRAIN_INLINE F CoarseTail(F a) {
  if constexpr (kActivation == Activation::kSilu) {
    return CoarseSigmoid(a * kLog2E);  // below 126 for a <= 87
  } else {
    return kActivation == Activation::kGeluTanh ? CoarseTanhTail(a) : CoarseErfTail(a);
  }
}

// f(x) for a result of type T.
template <Activation kActivation, typename T>
TFTRAIN_INLINE F Activate(F x) {
  if constexpr (std::is_same_v<T, float>) {
    return ValueOf(x, TailOf<kActivation, T>(x));
  } else {
    constexpr float kLargest =
        kActivation == Activation::kSilu ? 87 : kActivation == Activation::kGeluTanh ? 10 : 14;
    const F a = Min(Set(kLargest), Abs(x));  // NaN stays
    return Fma(-a, CoarseTail<kActivation>(a), Max(x, F{}));
  }
}
