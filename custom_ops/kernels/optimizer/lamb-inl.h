// LAMB and AdamW on the CPU; see lamb.h.

struct Moments {
  F m;
  F v;
};

TFTRAIN_INLINE Moments NextMoments(const UpdateScalars& at, F gradient, F m, F v) {
  const F g = gradient * at.gradient_factor;
  return {Fma(m, Set(at.beta1), -(g * at.minus_one_minus_beta1)),
          Fma(v, Set(at.beta2), g * g * at.one_minus_beta2)};
}

// u of lamb.h.
TFTRAIN_INLINE F Direction(const UpdateScalars& at, float epsilon, float weight_decay, Moments moments, F weight) {
  const F adam = (moments.m * at.m_correction) / (SquareRoot(moments.v * at.v_correction) + epsilon);
  return Fma(weight, Set(weight_decay), adam);
}

// Loads and stores that know whether a vector is whole; the lanes past the end of a partial one hold zeros, of which all
// sums below come out as zero.
template <bool kWhole, typename T>
TFTRAIN_INLINE F Take(const T* from, int64_t count) {
  if constexpr (kWhole) return Load(from);
  return LoadSome(from, count);
}

template <bool kWhole, typename T>
TFTRAIN_INLINE void Give(F v, T* to, int64_t count) {
  if constexpr (kWhole) {
    Store(v, to);
  } else {
    StoreSome(v, to, count);
  }
}

// The copy of a tensor that has none.
struct NoCopy {};

template <bool kWhole, typename Copy>
TFTRAIN_INLINE void GiveWeight(F v, const UpdateTensor& tensor, int64_t i, int64_t count) {
  Give<kWhole>(v, tensor.weight + i, count);
  if constexpr (!std::is_same_v<Copy, NoCopy>) Give<kWhole>(v, static_cast<Copy*>(tensor.copy) + i, count);
}

struct Squares {
  F weight;
  F update;
};

template <bool kWhole, typename Gradient>
TFTRAIN_INLINE Moments NextMomentsAt(const UpdateScalars& at, const UpdateTensor& tensor, int64_t i, int64_t count) {
  return NextMoments(at, Take<kWhole>(static_cast<const Gradient*>(tensor.gradient) + i, count),
                     Take<kWhole>(tensor.m + i, count), Take<kWhole>(tensor.v + i, count));
}

template <bool kWhole, typename Gradient>
TFTRAIN_INLINE void MomentsStep(const UpdateScalars& at, float epsilon, float decay, const UpdateTensor& tensor, int64_t i,
                                int64_t count, Squares* squares) {
  const F weight = Take<kWhole>(tensor.weight + i, count);
  const Moments moments = NextMomentsAt<kWhole, Gradient>(at, tensor, i, count);
  Give<kWhole>(moments.m, tensor.m + i, count);
  Give<kWhole>(moments.v, tensor.v + i, count);
  const F update = Direction(at, epsilon, decay, moments, weight);
  squares->weight = Fma(weight, weight, squares->weight);
  squares->update = Fma(update, update, squares->update);
}

template <bool kWhole, typename Copy>
TFTRAIN_INLINE void WeightStep(const UpdateScalars& at, float epsilon, float decay, float rate, const UpdateTensor& tensor,
                               int64_t i, int64_t count) {
  const F weight = Take<kWhole>(tensor.weight + i, count);
  const Moments moments = {Take<kWhole>(tensor.m + i, count), Take<kWhole>(tensor.v + i, count)};
  const F update = Direction(at, epsilon, decay, moments, weight);
  GiveWeight<kWhole, Copy>(Fma(update, Set(-rate), weight), tensor, i, count);
}

template <bool kWhole, typename Gradient, typename Copy>
TFTRAIN_INLINE void AdamWStep(const UpdateScalars& at, float epsilon, float decay, const UpdateTensor& tensor, int64_t i,
                              int64_t count) {
  const F weight = Take<kWhole>(tensor.weight + i, count);
  const Moments moments = NextMomentsAt<kWhole, Gradient>(at, tensor, i, count);
  Give<kWhole>(moments.m, tensor.m + i, count);
  Give<kWhole>(moments.v, tensor.v + i, count);
  const F update = Direction(at, epsilon, decay, moments, weight);
  GiveWeight<kWhole, Copy>(Fma(update, Set(-at.learning_rate), weight), tensor, i, count);
}

// A long fp32 sum would lose digits; so blocks of it are added up in fp64.
constexpr int64_t kSumBlock = 2048;

template <typename Gradient>
void MomentsChunk(const LambMoments& args, const TensorChunk& chunk, double* weight_part, double* update_part) {
  const UpdateScalars at = *args.scalars;
  const float decay = args.weight_decays[chunk.tensor];
  const UpdateTensor& tensor = args.tensors[chunk.tensor];
  for (int64_t block = chunk.begin; block < chunk.end; block += kSumBlock) {
    const int64_t end = std::min(chunk.end, block + kSumBlock);
    Squares squares = {};
    int64_t i = block;
    for (; i + kLanes <= end; i += kLanes) MomentsStep<true, Gradient>(at, args.epsilon, decay, tensor, i, kLanes, &squares);
    if (i < end) MomentsStep<false, Gradient>(at, args.epsilon, decay, tensor, i, end - i, &squares);
    *weight_part += Sum(squares.weight);
    *update_part += Sum(squares.update);
  }
}

template <typename Copy>
void WeightsChunk(const LambWeights& args, const TensorChunk& chunk) {
  const UpdateScalars at = *args.scalars;
  const float decay = args.weight_decays[chunk.tensor];
  const float rate = args.rates[chunk.tensor];
  const UpdateTensor& tensor = args.tensors[chunk.tensor];
  int64_t i = chunk.begin;
  for (; i + kLanes <= chunk.end; i += kLanes) WeightStep<true, Copy>(at, args.epsilon, decay, rate, tensor, i, kLanes);
  if (i < chunk.end) WeightStep<false, Copy>(at, args.epsilon, decay, rate, tensor, i, chunk.end - i);
}

template <typename Gradient, typename Copy>
void AdamWChunk(const AdamW& args, const TensorChunk& chunk) {
  const UpdateScalars at = *args.scalars;
  const float decay = args.weight_decays[chunk.tensor];
  const UpdateTensor& tensor = args.tensors[chunk.tensor];
  int64_t i = chunk.begin;
  for (; i + kLanes <= chunk.end; i += kLanes) AdamWStep<true, Gradient, Copy>(at, args.epsilon, decay, tensor, i, kLanes);
  if (i < chunk.end) AdamWStep<false, Gradient, Copy>(at, args.epsilon, decay, tensor, i, chunk.end - i);
}

template <typename T>
double SquaresOfChunk(const T* tensor, int64_t begin, int64_t end) {
  double total = 0;
  for (int64_t block = begin; block < end; block += kSumBlock) {
    const int64_t block_end = std::min(end, block + kSumBlock);
    F squares[4] = {};
    int64_t i = block;
    for (; i + 4 * kLanes <= block_end; i += 4 * kLanes) {
      for (int k = 0; k < 4; ++k) {
        const F value = Load(tensor + i + k * kLanes);
        squares[k] = Fma(value, value, squares[k]);
      }
    }
    for (; i < block_end; i += kLanes) {
      const F value = i + kLanes <= block_end ? Load(tensor + i) : LoadSome(tensor + i, block_end - i);
      squares[0] = Fma(value, value, squares[0]);
    }
    total += Sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
  }
  return total;
}

// Calls `run(Copy())` with the type of the tensor's copy.
template <typename Run>
void WithCopy(const UpdateTensor& tensor, const Run& run) {
  if (tensor.copy == nullptr) return run(NoCopy());
  return tensor.copy_dtype == DType::kFloat16 ? run(Half()) : run(BFloat16());
}

inline std::vector<TensorChunk> ChunksOf(const std::vector<UpdateTensor>& tensors) {
  std::vector<int64_t> sizes;
  for (const UpdateTensor& tensor : tensors) sizes.push_back(tensor.size);
  return CutTensors(sizes);
}

inline void RunLamb(const LambMoments& args, const ParallelFor& parallel_for) {
  const int64_t tensors = args.tensors.size();
  const std::vector<TensorChunk> chunks =
      args.scalars->gradient_factor == 0 ? std::vector<TensorChunk>() : ChunksOf(args.tensors);
  std::vector<double> weight_parts(chunks.size()), update_parts(chunks.size());
  parallel_for(chunks.size(), 4 * kChunkElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      WithType(args.tensors[chunks[i].tensor].gradient_dtype, [&](auto gradient) {
        MomentsChunk<decltype(gradient)>(args, chunks[i], &weight_parts[i], &update_parts[i]);
      });
    }
  });
  SumChunks(chunks, weight_parts, tensors, args.weight_squares);
  SumChunks(chunks, update_parts, tensors, args.update_squares);
}

inline void RunLamb(const LambWeights& args, const ParallelFor& parallel_for) {
  if (args.scalars->gradient_factor == 0) return;
  const std::vector<TensorChunk> chunks = ChunksOf(args.tensors);
  parallel_for(chunks.size(), 3 * kChunkElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      WithCopy(args.tensors[chunks[i].tensor], [&](auto copy) { WeightsChunk<decltype(copy)>(args, chunks[i]); });
    }
  });
}

inline void RunLamb(const AdamW& args, const ParallelFor& parallel_for) {
  if (args.scalars->gradient_factor == 0) return;
  const std::vector<TensorChunk> chunks = ChunksOf(args.tensors);
  parallel_for(chunks.size(), 5 * kChunkElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const UpdateTensor& tensor = args.tensors[chunks[i].tensor];
      WithType(tensor.gradient_dtype, [&](auto gradient) {
        WithCopy(tensor, [&](auto copy) { AdamWChunk<decltype(gradient), decltype(copy)>(args, chunks[i]); });
      });
    }
  });
}

inline void RunLamb(const SquaredNorms& args, const ParallelFor& parallel_for) {
  const std::vector<TensorChunk> chunks = CutTensors(args.sizes);
  std::vector<double> parts(chunks.size());
  parallel_for(chunks.size(), kChunkElements, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const TensorChunk& chunk = chunks[i];
      WithType(args.dtypes[chunk.tensor], [&](auto type) {
        const auto* tensor = static_cast<const decltype(type)*>(args.tensors[chunk.tensor]);
        parts[i] = SquaresOfChunk(tensor, chunk.begin, chunk.end);
      });
    }
  });
  SumChunks(chunks, parts, args.sizes.size(), args.squares);
}
