// Two registers that take every step together, one right after the other: two independent chains of instructions where
// there would be one. Included by vector-inl.h.

template <typename V>
struct Pair {
  V low;
  V high;
};

#define TFTRAIN_PAIR_OPERATOR(op)                                             \
  template <typename V>                                                       \
  TFTRAIN_INLINE auto operator op(Pair<V> a, Pair<V> b) {                     \
    return Pair<decltype(a.low op b.low)>{a.low op b.low, a.high op b.high};  \
  }                                                                           \
  template <typename V, typename Number>                                      \
  TFTRAIN_INLINE auto operator op(Pair<V> a, Number b) {                      \
    return Pair<decltype(a.low op b)>{a.low op b, a.high op b};               \
  }                                                                           \
  template <typename V, typename Number>                                      \
  TFTRAIN_INLINE auto operator op(Number a, Pair<V> b) {                      \
    return Pair<decltype(a op b.low)>{a op b.low, a op b.high};               \
  }
TFTRAIN_PAIR_OPERATOR(+)
TFTRAIN_PAIR_OPERATOR(-)
TFTRAIN_PAIR_OPERATOR(*)
TFTRAIN_PAIR_OPERATOR(/)
TFTRAIN_PAIR_OPERATOR(&)
TFTRAIN_PAIR_OPERATOR(|)
TFTRAIN_PAIR_OPERATOR(^)
TFTRAIN_PAIR_OPERATOR(<<)
TFTRAIN_PAIR_OPERATOR(>>)
TFTRAIN_PAIR_OPERATOR(<)
TFTRAIN_PAIR_OPERATOR(>)
TFTRAIN_PAIR_OPERATOR(>=)
TFTRAIN_PAIR_OPERATOR(!=)
#undef TFTRAIN_PAIR_OPERATOR

template <typename V>
TFTRAIN_INLINE Pair<V> operator-(Pair<V> a) {
  return {-a.low, -a.high};
}

template <typename V>
TFTRAIN_INLINE void operator+=(Pair<V>& a, Pair<V> b) {
  a = a + b;
}

template <typename V>
TFTRAIN_INLINE void operator*=(Pair<V>& a, Pair<V> b) {
  a = a * b;
}

template <typename To, typename V>
TFTRAIN_INLINE To Bits(Pair<V> from) {
  return {Bits<decltype(To::low)>(from.low), Bits<decltype(To::high)>(from.high)};
}

template <typename M, typename V>
TFTRAIN_INLINE Pair<V> Select(Pair<M> mask, Pair<V> yes, Pair<V> no) {
  return {Select(mask.low, yes.low, no.low), Select(mask.high, yes.high, no.high)};
}

template <typename V>
TFTRAIN_INLINE Pair<V> Max(Pair<V> a, Pair<V> b) {
  return {Max(a.low, b.low), Max(a.high, b.high)};
}

template <typename V>
TFTRAIN_INLINE Pair<V> Min(Pair<V> a, Pair<V> b) {
  return {Min(a.low, b.low), Min(a.high, b.high)};
}

template <typename V>
TFTRAIN_INLINE Pair<V> Fma(Pair<V> a, Pair<V> b, Pair<V> c) {
  return {Fma(a.low, b.low, c.low), Fma(a.high, b.high, c.high)};
}

template <typename V>
TFTRAIN_INLINE Pair<V> SquareRoot(Pair<V> a) {
  return {SquareRoot(a.low), SquareRoot(a.high)};
}

template <typename V>
TFTRAIN_INLINE float Sum(Pair<V> a) {
  return Sum(a.low + a.high);
}

template <typename V>
TFTRAIN_INLINE float Largest(Pair<V> a) {
  return Largest(Max(a.low, a.high));
}
