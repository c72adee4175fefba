// Exponentials of vectors. Included once per target, after vector-inl.h.

constexpr float kLog2E = 1.44269504f;

// e^x to about one unit in the last place; 0 below -87, where the result would soon be subnormal; the largest results for
// x above 88. NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2, e^r by its series, which then leaves out less than 5e-9, and n added to the
// exponent. Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest bits.
TFTRAIN_INLINE F Exp(F x) {
  const F clamped = Min(Set(88.0f), x);
  const F shifted = Fma(clamped, Set(kLog2E), Set(12582912.0f));
  const F n = shifted - 12582912.0f;
  F r = Fma(n, Set(-0.693359375f), clamped);  // ln 2 in two parts, the first exact with any n
  r = Fma(n, Set(2.12194440e-4f), r);
  F sum = Set(1.0f / 5040);
  sum = Fma(sum, r, Set(1.0f / 720));
  sum = Fma(sum, r, Set(1.0f / 120));
  sum = Fma(sum, r, Set(1.0f / 24));
  sum = Fma(sum, r, Set(1.0f / 6));
  sum = Fma(sum, r, Set(0.5f));
  sum = Fma(sum, r, Set(1.0f));
  sum = Fma(sum, r, Set(1.0f));
  const F result = Bits<F>(Bits<U>(sum) + (Bits<U>(shifted) << 23));
  return Select(x < -87.0f, F{}, result);
}

// 2^t for t <= 0, also minus infinity; NaN stays NaN. A minimax polynomial between integers, with a relative error of
// 1.6e-7.
//
// Adding 1.5 * 2^23 + 127 rounds to an integer and leaves the exponent of its power in the lowest bits, which for -127 is
// that of 0.
TFTRAIN_INLINE F Exp2(F t) {
  const F clamped = Max(Set(-127.0f), t);
  const F shifted = clamped + 12583039.0f;
  const F r = clamped - (shifted - 12583039.0f);
  F sum = Set(0.0013276469f);
  sum = Fma(sum, r, Set(0.00967554189f));
  sum = Fma(sum, r, Set(0.0555071346f));
  sum = Fma(sum, r, Set(0.240221202f));
  sum = Fma(sum, r, Set(0.693146944f));
  sum = Fma(sum, r, Set(1.00000012f));
  return sum * Bits<F>(Bits<U>(shifted) << 23);
}
