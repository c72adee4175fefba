// Elementary functions of vectors, to about one unit in the last place. Included once per target, after vector-inl.h.

// e^x; 0 below -87, where the result would soon be subnormal; the largest results for x above 88. NaN stays NaN.
//
// x = n ln 2 + r with |r| <= ln(2) / 2, e^r by its series, which then leaves out less than 5e-9, and n added to the
// exponent. Adding 1.5 * 2^23 rounds to an integer and leaves it in the lowest bits.
TFTRAIN_INLINE F Exp(F x) {
  const F clamped = Select(x > 88.0f, Set(88.0f), x);
  const F shifted = Fma(clamped, Set(1.44269504f), Set(12582912.0f));
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

// The normal distribution at x: `below`, the share that lies below x, and the density.
struct NormalAt {
  F below;
  F density;
};

// For |x| the share above is E * t * P(t), with E = e^(-x^2/2) and t = 1 / (1 + 0.3 |x|): what remains after E is smooth,
// and the polynomial P was fitted to it with a relative error below 5e-8 everywhere. So the tail keeps its precision.
TFTRAIN_INLINE NormalAt Normal(F x) {
  const F size = Abs(x);
  const F gaussian = Exp(x * x * -0.5f);
  const F t = 1.0f / Fma(size, Set(0.3f), Set(1.0f));
  F sum = Set(0.0375480643f);
  sum = Fma(sum, t, Set(-0.165077647f));
  sum = Fma(sum, t, Set(0.220085458f));
  sum = Fma(sum, t, Set(-0.0665247117f));
  sum = Fma(sum, t, Set(0.135496612f));
  sum = Fma(sum, t, Set(0.097755989f));
  sum = Fma(sum, t, Set(0.121111222f));
  sum = Fma(sum, t, Set(0.119605038f));
  const F above = gaussian * (t * sum);
  return {Select(x > 0.0f, 1.0f - above, above), gaussian * 0.39894228f};
}
