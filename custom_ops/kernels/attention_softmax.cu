// Attention softmax on the GPU; see attention_softmax.h. A row of keys lies in the registers of a warp, or of a block where
// it is longer than 512 keys. Each of these teams runs down rows that lie one behind the other: a warp loads the next while
// it works on one, and the mask of a sample's keys is read once for all of them and kept as one bit for each key. For rows
// that do not fit there is attention_softmax_long.cuh.
#include <algorithm>

#include "custom_ops/kernels/attention_softmax_long.cuh"
#include "custom_ops/kernels/attention_softmax_row.cuh"
#include "custom_ops/kernels/cuda_kernels.h"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

constexpr int kBlockThreads = 128;  // where a team is a warp
constexpr int kMostThreads = 512;
constexpr int kMostKeys = 16;  // of a thread; with more, its registers run out
constexpr int kRun = 8;        // rows

// The threads that share a row.
template <bool kWarpTeam>
struct Team {
  __device__ int size() const { return kWarpTeam ? kWarp : blockDim.x; }
  __device__ int thread() const { return kWarpTeam ? threadIdx.x % kWarp : threadIdx.x; }
  __device__ int64_t number() const {
    return kWarpTeam ? int64_t{blockIdx.x} * (blockDim.x / kWarp) + threadIdx.x / kWarp : blockIdx.x;
  }
  __device__ int64_t teams() const { return kWarpTeam ? int64_t{gridDim.x} * (blockDim.x / kWarp) : gridDim.x; }

  template <typename How>
  __device__ float Reduce(float value, float* scratch) const {
    float values[1] = {value};
    if (kWarpTeam) {
      ReduceWarp<How>(values);
    } else {
      ReduceBlock<How>(values, scratch);
    }
    return values[0];
  }
};

// A thread's part of a row.
template <bool kWarpTeam, typename T, int kSize, int kPacks>
struct RowPart {
  Pack<T, kSize> pack[kPacks];

  __device__ static int KeyOf(int p) { return (p * Team<kWarpTeam>().size() + Team<kWarpTeam>().thread()) * kSize; }

  __device__ void Load(const void* from, int64_t row, int64_t keys) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (KeyOf(p) < keys) pack[p] = Pack<T, kSize>::Load(static_cast<const T*>(from) + row * keys + KeyOf(p));
    }
  }

  __device__ static void Store(const float (&values)[kSize], void* to, int64_t row, int64_t keys, int p) {
    Pack<T, kSize>::Encode(values).Store(static_cast<T*>(to) + row * keys + KeyOf(p));
  }
};

// The next rows of a team, by sample and place in it.
struct RowCursor {
  __device__ RowCursor(const AttentionShape& shape, int64_t row)
      : rows_of_sample(shape.heads * shape.queries), sample(row / rows_of_sample), row_of_sample(row % rows_of_sample) {}

  // Whether a sample begins.
  __device__ bool Next() {
    if (++row_of_sample < rows_of_sample) return false;
    row_of_sample = 0;
    ++sample;
    return true;
  }

  // The row's first element in its sample, among all heads.
  __device__ int64_t Element(const AttentionShape& shape) const {
    return (shape.first_head * shape.queries + row_of_sample) * shape.keys;
  }

  int64_t rows_of_sample;
  int64_t sample;
  int64_t row_of_sample;
};

template <bool kWarpTeam, typename T, int kSize, int kPacks>
__device__ __forceinline__ uint32_t OwnKeyBits(const int32_t* key_mask, int64_t sample, int keys) {
  using Part = RowPart<kWarpTeam, T, kSize, kPacks>;
  uint32_t bits = 0;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (Part::KeyOf(p) < keys) bits |= KeyBits<kSize>(key_mask, sample * keys + Part::KeyOf(p)) << (p * kSize);
  }
  return bits;
}

template <bool kDropout, bool kWarpTeam, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kWarpTeam ? kBlockThreads : kMostThreads)
    SoftmaxKernel(AttentionSoftmaxForward args, float keep_scale) {
  using Part = RowPart<kWarpTeam, T, kSize, kPacks>;
  __shared__ float scratch[2][kMostThreads / kWarp];
  const Team<kWarpTeam> team;
  const int keys = static_cast<int>(args.shape.keys);
  const int64_t rows = args.shape.rows();
  const float factor = args.scale * kLog2E;  // powers of 2 from here on
  const Position position(args.dropout);
  for (int64_t begin = team.number() * kRun; begin < rows; begin += team.teams() * kRun) {
    const int64_t end = begin + kRun < rows ? begin + kRun : rows;
    RowCursor cursor(args.shape, begin);
    uint32_t bits = OwnKeyBits<kWarpTeam, T, kSize, kPacks>(args.key_mask, cursor.sample, keys);
    Part next = {};
    if (kWarpTeam) next.Load(args.scores, begin, keys);
    for (int64_t row = begin; row < end; ++row) {
      if (!kWarpTeam) next.Load(args.scores, row, keys);
      const Part part = next;
      if (kWarpTeam && row + 1 < end) next.Load(args.scores, row + 1, keys);
      float value[kPacks][kSize];
      float largest = -INFINITY;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        part.pack[p].Decode(value[p]);
        largest = LargestOf(value[p], bits >> (p * kSize), factor, largest);
      }
      largest = team.template Reduce<Larger>(largest, scratch[0]);
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        Powers(bits >> (p * kSize), factor, largest, value[p]);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum += value[p][i];
      }
      sum = team.template Reduce<Add>(sum, scratch[1]);
      const float inverse = InverseOf(sum);
      const DropMask mask = {position.DrawsOf(cursor.sample, args.shape.ElementsPerSample()), args.dropout.drop_below,
                             keep_scale};
      const int64_t element = cursor.Element(args.shape);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (Part::KeyOf(p) >= keys) continue;
#pragma unroll
        for (int i = 0; i < kSize; ++i) value[p][i] *= inverse;
        Part::Store(value[p], args.probabilities, row, keys, p);
        if (kDropout) {
          mask.Apply(element + Part::KeyOf(p), value[p]);
          Part::Store(value[p], args.dropped, row, keys, p);
        }
      }
      if (row + 1 < end && cursor.Next()) {
        bits = OwnKeyBits<kWarpTeam, T, kSize, kPacks>(args.key_mask, cursor.sample, keys);
      }
    }
  }
}

template <bool kDropout, bool kWarpTeam, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kWarpTeam ? kBlockThreads : kMostThreads)
    SoftmaxGradientKernel(AttentionSoftmaxBackward args, float keep_scale) {
  using Part = RowPart<kWarpTeam, T, kSize, kPacks>;
  __shared__ float scratch[2][kMostThreads / kWarp];
  const Team<kWarpTeam> team;
  const int keys = static_cast<int>(args.shape.keys);
  const int64_t rows = args.shape.rows();
  const Position position(args.dropout);
  int turn = 0;
  for (int64_t begin = team.number() * kRun; begin < rows; begin += team.teams() * kRun) {
    const int64_t end = begin + kRun < rows ? begin + kRun : rows;
    RowCursor cursor(args.shape, begin);
    Part next_gradient = {}, next_probabilities = {};
    const auto load = [&](int64_t row) {
      next_gradient.Load(args.ddropped, row, keys);
      next_probabilities.Load(args.probabilities, row, keys);
    };
    if (kWarpTeam) load(begin);
    for (int64_t row = begin; row < end; ++row) {
      if (!kWarpTeam) load(row);
      const Part gradient = next_gradient;
      const Part probabilities = next_probabilities;
      if (kWarpTeam && row + 1 < end) load(row + 1);
      const DropMask mask = {position.DrawsOf(cursor.sample, args.shape.ElementsPerSample()), args.dropout.drop_below,
                             keep_scale};
      const int64_t element = cursor.Element(args.shape);
      // Of what reaches the probabilities through the mask.
      float value[kPacks][kSize];
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        gradient.pack[p].Decode(value[p]);
        float probability[kSize];
        probabilities.pack[p].Decode(probability);
        if (kDropout && Part::KeyOf(p) < keys) {
          float dropped[kSize];
          probabilities.pack[p].Decode(dropped);
          mask.Apply(element + Part::KeyOf(p), value[p], dropped);
          Part::Store(dropped, args.dropped, row, keys, p);
        }
        sum = AddProducts(value[p], probability, sum);
      }
      sum = team.template Reduce<Add>(sum, scratch[turn]);
      turn ^= 1;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (Part::KeyOf(p) >= keys) continue;
        float probability[kSize];
        probabilities.pack[p].Decode(probability);
        ScoreGradient(probability, sum, args.scale, value[p]);
        Part::Store(value[p], args.dscores, row, keys, p);
      }
      cursor.Next();
    }
  }
}

// Calls run(whether a team is a warp, pack size, packs of each thread, threads of a block); false if the row is too long.
template <int kSize, int kPacks, typename Run>
bool WithPacks(int64_t keys, const Run& run) {
  const int64_t packs = keys / kSize;
  if (packs <= kPacks * kWarp) {
    run(std::true_type(), Number<kSize>(), Number<kPacks>(), kBlockThreads);
    return true;
  }
  if constexpr (kSize * kPacks < kMostKeys) {
    return WithPacks<kSize, kPacks * (kSize == 1 ? 4 : 2)>(keys, run);
  } else {
    if (packs > kPacks * kMostThreads) return false;
    run(std::false_type(), Number<kSize>(), Number<kPacks>(), DivideUp(DivideUp(packs, kPacks), kWarp) * kWarp);
    return true;
  }
}

// The kernels of one direction: Direction::Short for rows in registers, Direction::Long for others.
template <typename Direction, bool kDropout, typename T, int kSize, typename Args>
void Run(const Args& args, const CudaStream& stream) {
  const int64_t rows = args.shape.rows();
  const float keep_scale = KeepScale(args.dropout);
  const auto launch = [&](auto warp_team, auto size, auto packs, int threads) {
    constexpr bool kWarpTeam = decltype(warp_team)::value;
    const auto kernel = Direction::template Short<kDropout, kWarpTeam, T, size, packs>();
    const int teams = DivideUp(rows, kRun);
    const int blocks = kWarpTeam ? DivideUp(teams, kBlockThreads / kWarp) : teams;
    LaunchKernel(kernel, {std::min(blocks, BlocksThatFit(kernel, threads))}, threads, stream.handle, args, keep_scale);
  };
  if (WithPacks<kSize, 1>(args.shape.keys, launch)) return;
  const auto kernel = Direction::template Long<kDropout, T, kSize>();
  LaunchKernel(kernel, {LongRowBlocks(kernel, rows)}, kLongRowThreads, stream.handle, args, keep_scale);
}

template <typename Direction, typename Args>
CudaError Run(const Args& args, bool aligned, const CudaStream& stream) {
  if (args.shape.rows() == 0 || args.shape.keys == 0) return nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto dropout) {
      constexpr bool kDropout = decltype(dropout)::value;
      const bool wide = aligned && args.shape.keys * sizeof(T) % 16 == 0;
      wide ? Run<Direction, kDropout, T, kWidest<T>>(args, stream) : Run<Direction, kDropout, T, 1>(args, stream);
    };
    args.dropped == nullptr ? run(std::false_type()) : run(std::true_type());
  });
  return LastError();
}

struct Forward {
  template <bool kDropout, bool kWarpTeam, typename T, int kSize, int kPacks>
  static auto Short() {
    return SoftmaxKernel<kDropout, kWarpTeam, T, kSize, kPacks>;
  }
  template <bool kDropout, typename T, int kSize>
  static auto Long() {
    return LongSoftmaxKernel<kDropout, T, kSize>;
  }
};

struct Backward {
  template <bool kDropout, bool kWarpTeam, typename T, int kSize, int kPacks>
  static auto Short() {
    return SoftmaxGradientKernel<kDropout, kWarpTeam, T, kSize, kPacks>;
  }
  template <bool kDropout, typename T, int kSize>
  static auto Long() {
    return LongSoftmaxGradientKernel<kDropout, T, kSize>;
  }
};

}  // namespace

CudaError Launch(const AttentionSoftmaxForward& args, const CudaStream& stream) {
  return Run<Forward>(args, Aligned16(0, args.scores, args.probabilities, args.dropped), stream);
}

CudaError Launch(const AttentionSoftmaxBackward& args, const CudaStream& stream) {
  return Run<Backward>(args, Aligned16(0, args.ddropped, args.probabilities, args.dscores, args.dropped), stream);
}

}  // namespace tftrain
