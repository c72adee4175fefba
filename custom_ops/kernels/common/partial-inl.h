// One step of a loop over a row, written once for whole vectors and for the last, partial one. Included once per target,
// after vector-inl.h.
//
//   int64_t i = 0;
//   for (; i + kLanes <= count; i += kLanes) Step<true>(..., kLanes);
//   if (i < count) Step<false>(..., count - i);

template <bool kWhole, typename T>
TFTRAIN_INLINE F LoadUpTo(const T* from, int64_t count) {
  if constexpr (kWhole) {
    return Load(from);
  } else {
    return LoadSome(from, count);
  }
}

template <bool kWhole, bool kStream, typename T>
TFTRAIN_INLINE void PutUpTo(F v, T* to, int64_t count) {
  if constexpr (kWhole) {
    Put<kStream>(v, to);
  } else {
    StoreSome(v, to, count);
  }
}

// Columns in fp32 with zeros after them, so that a partial step may load and add to a whole vector; all zeros where there
// are none.
inline int64_t PaddedColumns(int64_t count) { return (count + kLanes - 1) / kLanes * kLanes; }

inline std::vector<float> PaddedColumnsFrom(const void* from, DType dtype, int64_t count) {
  std::vector<float> columns;
  if (from != nullptr) columns = ColumnsFrom(from, dtype, count);
  columns.resize(PaddedColumns(count));
  return columns;
}

TFTRAIN_INLINE void AddTo(F v, float* to) { Store(Load(to) + v, to); }
