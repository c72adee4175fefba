// Vectors of parameters, one number a column, in fp32 whatever their storage type. Included after vector-inl.h, once per
// target; a row's kernel reads them as often as there are rows, so they are converted once.

template <typename T>
void DecodeColumns(const T* from, int64_t count, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(Load(from + i), to + i);
  if (i < count) StoreSome(LoadSome(from + i, count - i), to + i, count - i);
}

template <typename T>
void EncodeColumns(const float* from, int64_t count, T* to) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) Store(Load(from + i), to + i);
  if (i < count) StoreSome(LoadSome(from + i, count - i), to + i, count - i);
}

inline std::vector<float> ColumnsFrom(const void* from, DType dtype, int64_t count) {
  std::vector<float> columns(count);
  WithType(dtype, [&](auto t) { DecodeColumns(static_cast<const decltype(t)*>(from), count, columns.data()); });
  return columns;
}

inline void ColumnsTo(const float* from, int64_t count, DType dtype, void* to) {
  WithType(dtype, [&](auto t) { EncodeColumns(from, count, static_cast<decltype(t)*>(to)); });
}

// Adds `parts` arrays of `count` numbers, which lie one after the other, into the first.
inline void SumParts(float* parts, int64_t number, int64_t count) {
  for (int64_t part = 1; part < number; ++part) {
    const float* from = parts + part * count;
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) Store(Load(parts + i) + Load(from + i), parts + i);
    for (; i < count; ++i) parts[i] += from[i];
  }
}
