// Attention softmax on the GPU; see attention_softmax.h. A row of keys lies in the registers of a half warp, if a load of 16
// bytes by each lane is enough, or of a warp, or of a block where it is longer than 512 keys. Each of these teams runs down
// rows that lie one after the other: lanes load the next while they work on one, and the mask of a sample's keys is read
// once for all of them and kept as one bit for each key. For rows that do not fit there is long.cuh.
#include <algorithm>

#include "custom_ops/kernels/attention_softmax/attention_softmax.h"
#include "custom_ops/kernels/attention_softmax/long.cuh"
#include "custom_ops/kernels/attention_softmax/row.cuh"
#include "custom_ops/kernels/attention_softmax/team.cuh"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

constexpr int kBlockThreads = 128;  // where a team is a warp or a half of one
constexpr int kMostThreads = 512;
constexpr int kMostKeys = 16;  // of a thread; with more, its registers run out
constexpr int kRun = 8;        // rows

template <bool kCausal, bool kDropout, int kLanes, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kLanes ? kBlockThreads : kMostThreads)
    SoftmaxKernel(AttentionSoftmaxForward args, float keep_scale) {
  using Part = RowPart<kLanes, T, kSize, kPacks>;
  __shared__ float scratch[2][kMostThreads / kWarp];
  const Team<kLanes> team;
  const int keys = static_cast<int>(args.shape.keys);
  const int64_t rows = args.shape.rows();
  const float factor = args.scale * kLog2E;  // powers of 2 from here on
  const Position position(args.dropout);
  for (int64_t begin = team.number() * kRun; begin < rows; begin += team.teams() * kRun) {
    const int64_t end = begin + kRun < rows ? begin + kRun : rows;
    RowCursor cursor(args.shape, begin);
    uint32_t bits = OwnKeyBits<kLanes, T, kSize, kPacks>(args.key_mask, cursor.sample, keys);
    Part next = {};
    if (kLanes) next.Load(args.scores, begin, keys, KeyEnd<kCausal>(args.shape, cursor.query));
    for (int64_t row = begin; row < end; ++row) {
      const int key_end = static_cast<int>(KeyEnd<kCausal>(args.shape, cursor.query));
      const auto is_before = [key_end](int p) { return !kCausal || Part::KeyOf(p) < key_end; };
      const auto bits_of = [key_end, bits](int p) {
        const uint32_t pack_bits = bits >> (p * kSize) & kAllBits<kSize>;
        return kCausal ? pack_bits & BitsBefore<kSize>(key_end, Part::KeyOf(p)) : pack_bits;
      };
      if (!kLanes) next.Load(args.scores, row, keys, key_end);
      const Part part = next;
      if (kLanes && row + 1 < end) {
        next.Load(args.scores, row + 1, keys, KeyEnd<kCausal>(args.shape, cursor.NextQuery()));
      }
      float value[kPacks][kSize] = {};
      float largest = -INFINITY;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!is_before(p)) continue;
        part.pack[p].Decode(value[p]);
        largest = LargestOf(value[p], bits_of(p), factor, largest);
      }
      largest = team.template Reduce<Larger>(largest, scratch[0]);
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!is_before(p)) continue;
        Powers(bits_of(p), factor, largest, value[p]);
#pragma unroll
        for (int i = 0; i < kSize; ++i) sum += value[p][i];
      }
      sum = team.template Reduce<Add>(sum, scratch[1]);
      const float inverse = InverseOf(sum);
      const DropMask mask = {position.DrawsOf<ProbabilityDraw>(cursor.sample, args.shape.ElementsPerSample()), args.dropout.drop_below,
                             keep_scale};
      const int64_t element = cursor.Element(args.shape);
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (Part::KeyOf(p) >= keys) continue;
        if (!is_before(p)) {
          Part::StoreZeros(args.probabilities, row, keys, p);
          if (kDropout) Part::StoreZeros(args.dropped, row, keys, p);
          continue;
        }
#pragma unroll
        for (int i = 0; i < kSize; ++i) value[p][i] *= inverse;
        Part::Store(value[p], args.probabilities, row, keys, p);
        if (kDropout) {
          mask.Apply(element + Part::KeyOf(p), value[p]);
          Part::Store(value[p], args.dropped, row, keys, p);
        }
      }
      if (row + 1 < end && cursor.Next()) {
        bits = OwnKeyBits<kLanes, T, kSize, kPacks>(args.key_mask, cursor.sample, keys);
      }
    }
  }
}

template <bool kCausal, bool kDropout, int kLanes, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kLanes ? kBlockThreads : kMostThreads)
    SoftmaxGradientKernel(AttentionSoftmaxBackward args, float keep_scale) {
  using Part = RowPart<kLanes, T, kSize, kPacks>;
  __shared__ float scratch[2][kMostThreads / kWarp];
  const Team<kLanes> team;
  const int keys = static_cast<int>(args.shape.keys);
  const int64_t rows = args.shape.rows();
  const Position position(args.dropout);
  int turn = 0;
  for (int64_t begin = team.number() * kRun; begin < rows; begin += team.teams() * kRun) {
    const int64_t end = begin + kRun < rows ? begin + kRun : rows;
    RowCursor cursor(args.shape, begin);
    Part next_gradient = {}, next_probabilities = {};
    const auto load = [&](int64_t row, int64_t query) {
      next_gradient.Load(args.ddropped, row, keys, KeyEnd<kCausal>(args.shape, query));
      next_probabilities.Load(args.probabilities, row, keys, KeyEnd<kCausal>(args.shape, query));
    };
    if (kLanes) load(begin, cursor.query);
    for (int64_t row = begin; row < end; ++row) {
      const int key_end = static_cast<int>(KeyEnd<kCausal>(args.shape, cursor.query));
      const auto is_before = [key_end](int p) { return !kCausal || Part::KeyOf(p) < key_end; };
      if (!kLanes) load(row, cursor.query);
      const Part gradient = next_gradient;
      const Part probabilities = next_probabilities;
      if (kLanes && row + 1 < end) load(row + 1, cursor.NextQuery());
      const DropMask mask = {position.DrawsOf<ProbabilityDraw>(cursor.sample, args.shape.ElementsPerSample()), args.dropout.drop_below,
                             keep_scale};
      const int64_t element = cursor.Element(args.shape);
      // Of what reaches the probabilities through the mask.
      float value[kPacks][kSize] = {};
      float sum = 0;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (!is_before(p)) continue;
        gradient.pack[p].Decode(value[p]);
        float probability[kSize];
        probabilities.pack[p].Decode(probability);
        if (kCausal) KeepFirst(key_end - Part::KeyOf(p), value[p], probability);
        if (kDropout && Part::KeyOf(p) < keys) {
          float dropped[kSize];
          probabilities.pack[p].Decode(dropped);
          if (kCausal) KeepFirst(key_end - Part::KeyOf(p), dropped);
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
        if (!is_before(p)) {
          Part::StoreZeros(args.dscores, row, keys, p);
          if (kDropout) Part::StoreZeros(args.dropped, row, keys, p);
          continue;
        }
        float probability[kSize];
        probabilities.pack[p].Decode(probability);
        if (kCausal) KeepFirst(key_end - Part::KeyOf(p), probability);
        ScoreGradient(probability, sum, args.scale, value[p]);
        Part::Store(value[p], args.dscores, row, keys, p);
      }
      cursor.Next();
    }
  }
}

// Calls run(lanes of a team or 0 for a block, pack size, packs of each thread, threads of a block); false if the row is too
// long.
template <int kSize, int kPacks, typename Run>
bool WithPacks(int64_t keys, const Run& run) {
  const int64_t packs = keys / kSize;
  if constexpr (kPacks == 1 && kSize > 1) {
    if (packs <= kWarp / 2) {
      run(Number<kWarp / 2>(), Number<kSize>(), Number<kPacks>(), kBlockThreads);
      return true;
    }
  }
  if (packs <= kPacks * kWarp) {
    run(Number<kWarp>(), Number<kSize>(), Number<kPacks>(), kBlockThreads);
    return true;
  }
  if constexpr (kSize * kPacks < kMostKeys) {
    return WithPacks<kSize, kPacks * (kSize == 1 ? 4 : 2)>(keys, run);
  } else {
    if (packs > kPacks * kMostThreads) return false;
    run(Number<0>(), Number<kSize>(), Number<kPacks>(), DivideUp(DivideUp(packs, kPacks), kWarp) * kWarp);
    return true;
  }
}

// The kernels of one direction: Direction::Short for rows in registers, Direction::Long for others.
template <typename Direction, bool kCausal, bool kDropout, typename T, int kSize, typename Args>
void Run(const Args& args, const CudaStream& stream) {
  const int64_t rows = args.shape.rows();
  const float keep_scale = KeepScale(args.dropout);
  const auto launch = [&](auto lanes, auto size, auto packs, int threads) {
    const auto kernel = Direction::template Short<kCausal, kDropout, lanes, T, size, packs>();
    const int teams = DivideUp(rows, kRun);
    const int blocks = lanes ? DivideUp(teams, kBlockThreads / lanes) : teams;
    LaunchKernel(kernel, {std::min(blocks, BlocksThatFit(kernel, threads))}, threads, stream.handle, args, keep_scale);
  };
  if (WithPacks<kSize, 1>(args.shape.keys, launch)) return;
  const auto kernel = Direction::template Long<kCausal, kDropout, T, kSize>();
  LaunchKernel(kernel, {LongRowBlocks(kernel, rows)}, kLongRowThreads, stream.handle, args, keep_scale);
}

template <typename Direction, typename Args>
CudaError Run(const Args& args, bool aligned, const CudaStream& stream) {
  if (args.shape.rows() == 0 || args.shape.keys == 0) return nullptr;
  WithType(args.dtype, [&](auto t) {
    using T = decltype(t);
    const auto run = [&](auto causal, auto dropout) {
      constexpr bool kCausal = decltype(causal)::value, kDropout = decltype(dropout)::value;
      const bool wide = aligned && args.shape.keys * sizeof(T) % 16 == 0;
      wide ? Run<Direction, kCausal, kDropout, T, kWidest<T>>(args, stream)
           : Run<Direction, kCausal, kDropout, T, 1>(args, stream);
    };
    const auto run_with = [&](auto dropout) {
      args.shape.causal ? run(std::true_type(), dropout) : run(std::false_type(), dropout);
    };
    args.dropped == nullptr ? run_with(std::false_type()) : run_with(std::true_type());
  });
  return LastError();
}

struct Forward {
  template <bool kCausal, bool kDropout, int kLanes, typename T, int kSize, int kPacks>
  static auto Short() {
    return SoftmaxKernel<kCausal, kDropout, kLanes, T, kSize, kPacks>;
  }
  template <bool kCausal, bool kDropout, typename T, int kSize>
  static auto Long() {
    return LongSoftmaxKernel<kCausal, kDropout, T, kSize>;
  }
};

struct Backward {
  template <bool kCausal, bool kDropout, int kLanes, typename T, int kSize, int kPacks>
  static auto Short() {
    return SoftmaxGradientKernel<kCausal, kDropout, kLanes, T, kSize, kPacks>;
  }
  template <bool kCausal, bool kDropout, typename T, int kSize>
  static auto Long() {
    return LongSoftmaxGradientKernel<kCausal, kDropout, T, kSize>;
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
