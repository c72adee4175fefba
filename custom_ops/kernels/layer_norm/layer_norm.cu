// Layer normalization on the GPU, and RMSNorm where kCentred is false; see layer_norm.h. A block takes a few rows at a
// time and stays on the GPU for many: each thread keeps its columns of gamma, beta and their gradients in registers, and
// the rows' packs until they are normalized. For rows that do not fit there is long.cuh.
#include <algorithm>

#include "custom_ops/kernels/cuda/column_sums.cuh"
#include "custom_ops/kernels/layer_norm/layer_norm.h"
#include "custom_ops/kernels/layer_norm/long.cuh"
#include "custom_ops/kernels/layer_norm/row.cuh"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

constexpr int kMostWarps = 640 / kWarp;
constexpr int kMostColumns = 16;  // of a thread; with more, its registers run out

// Several rows are loaded before the first is used, if their packs fit.
template <int kPacks>
constexpr int kRowsAtOnce = std::max(1, 4 / kPacks);

// The limits that leave each thread as many registers as it needs and not more: the fewer it takes, the more threads have
// loads under way. Where one pack to a thread is enough, two blocks of the largest size fit.
template <int kSize, int kPacks>
constexpr int kMostThreads = kSize == 1 && kPacks == 8 ? 640 : 512;
template <int kSize, int kPacks>
constexpr int kMostGradientThreads = kPacks == 1 ? 320 : kMostThreads<kSize, kPacks>;
template <int kPacks>
constexpr int kBlocksAtLeast = kPacks == 1 ? 2 : 1;

// The first column of a thread's pack p.
__device__ __forceinline__ int ColumnOf(int p, int size) { return (p * blockDim.x + threadIdx.x) * size; }

template <bool kCentred, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kMostThreads<kSize, kPacks>, kBlocksAtLeast<kPacks>)
    LayerNormKernel(LayerNormForward args) {
  constexpr int kRows = kRowsAtOnce<kPacks>;
  __shared__ float scratch[2][kRows * kMostWarps];
  const int hidden = static_cast<int>(args.hidden);
  const float inverse = 1.0f / hidden;
  const T* const x = static_cast<const T*>(args.x);
  float gamma[kPacks][kSize] = {};
  float beta[kPacks][kSize] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ColumnOf(p, kSize) >= hidden) continue;
    LoadColumns(args.gamma, args.parameter_dtype, ColumnOf(p, kSize), gamma[p]);
    if constexpr (kCentred) LoadColumns(args.beta, args.parameter_dtype, ColumnOf(p, kSize), beta[p]);
  }
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < args.rows; first += int64_t{gridDim.x} * kRows) {
    Pack<T, kSize> pack[kRows][kPacks] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (first + r < args.rows && ColumnOf(p, kSize) < hidden) {
          pack[r][p] = Pack<T, kSize>::Load(x + (first + r) * args.hidden + ColumnOf(p, kSize));
        }
      }
    }
    float mean[kRows] = {};
    float rstd[kRows] = {};
    if constexpr (kCentred) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          float v[kSize];
          pack[r][p].Decode(v);  // zeros after the row's end
          AddValues(v, &mean[r]);
        }
      }
      ReduceBlock<Add>(mean, scratch[turn]);
      turn ^= 1;
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] *= inverse;
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (ColumnOf(p, kSize) >= hidden) continue;
        float v[kSize];
        pack[r][p].Decode(v);
        AddSquares<kCentred>(v, mean[r], &rstd[r]);
      }
    }
    ReduceBlock<Add>(rstd, scratch[turn]);
    turn ^= 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= args.rows) break;
      rstd[r] = RstdOf(rstd[r], inverse, args.epsilon);
      if (threadIdx.x == 0) {
        if constexpr (kCentred) args.mean[first + r] = mean[r];
        args.rstd[first + r] = rstd[r];
      }
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (ColumnOf(p, kSize) >= hidden) continue;
        float v[kSize];
        pack[r][p].Decode(v);
        Normalize<kCentred>(mean[r], rstd[r], gamma[p], beta[p], v);
        Pack<T, kSize>::Encode(v).Store(static_cast<T*>(args.y) + (first + r) * args.hidden + ColumnOf(p, kSize));
      }
    }
  }
}

// Rows come in pairs where they fit; each needs the sums of g and of g * n.
template <int kPacks>
constexpr int kGradientRows = kPacks == 1 ? 2 : 1;

template <bool kCentred, typename T, int kSize, int kPacks>
__global__ void __launch_bounds__(kMostGradientThreads<kSize, kPacks>, kBlocksAtLeast<kPacks>)
    LayerNormGradientKernel(LayerNormBackward args, float* parts) {
  constexpr int kRows = kGradientRows<kPacks>;
  __shared__ float scratch[2][2 * kRows * kMostWarps];
  const int hidden = static_cast<int>(args.hidden);
  const float inverse = 1.0f / hidden;
  float gamma[kPacks][kSize] = {};
  float dgamma[kPacks][kSize] = {};
  float dbeta[kPacks][kSize] = {};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ColumnOf(p, kSize) < hidden) LoadColumns(args.gamma, args.parameter_dtype, ColumnOf(p, kSize), gamma[p]);
  }
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * kRows; first < args.rows; first += int64_t{gridDim.x} * kRows) {
    Pack<T, kSize> dy[kRows][kPacks] = {};
    Pack<T, kSize> x[kRows][kPacks] = {};
    float mean[kRows] = {};
    float rstd[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= args.rows) break;
      if constexpr (kCentred) mean[r] = args.mean[first + r];
      rstd[r] = args.rstd[first + r];
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (ColumnOf(p, kSize) >= hidden) continue;
        const int64_t at = (first + r) * args.hidden + ColumnOf(p, kSize);
        dy[r][p] = Pack<T, kSize>::Load(static_cast<const T*>(args.dy) + at);
        x[r][p] = Pack<T, kSize>::Load(static_cast<const T*>(args.x) + at);
      }
    }
    float sums[2 * kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        float d[kSize], v[kSize];
        dy[r][p].Decode(d);  // zeros where there is no element, so that all sums stay as they are
        x[r][p].Decode(v);
        AddGradients<kCentred>(d, v, mean[r], rstd[r], gamma[p], &sums[2 * r], &sums[2 * r + 1], dgamma[p], dbeta[p]);
      }
    }
    ReduceBlock<Add>(sums, scratch[turn]);
    turn ^= 1;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= args.rows) break;
      const GradientRow at_row = {mean[r], rstd[r], sums[2 * r] * inverse, sums[2 * r + 1] * inverse};
#pragma unroll
      for (int p = 0; p < kPacks; ++p) {
        if (ColumnOf(p, kSize) >= hidden) continue;
        const int64_t at = (first + r) * args.hidden + ColumnOf(p, kSize);
        float d[kSize], v[kSize];
        dy[r][p].Decode(d);
        x[r][p].Decode(v);
        InputGradient<kCentred>(d, gamma[p], at_row, v);
        Pack<T, kSize>::Encode(v).Store(static_cast<T*>(args.dx) + at);
      }
    }
  }
  float* const part = parts + int64_t{blockIdx.x} * kSums<kCentred> * hidden;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (ColumnOf(p, kSize) >= hidden) continue;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      part[ColumnOf(p, kSize) + i] = dgamma[p][i];
      if constexpr (kCentred) part[hidden + ColumnOf(p, kSize) + i] = dbeta[p][i];
    }
  }
}

// Calls run(pack size, packs of each thread, threads) with numbers that suit; false if the row is too long.
template <int kSize, int kPacks, typename Run>
bool WithPacks(int64_t hidden, bool gradient, const Run& run) {
  const int64_t packs = hidden / kSize;
  const int most = gradient ? kMostGradientThreads<kSize, kPacks> : kMostThreads<kSize, kPacks>;
  if (packs <= int64_t{kPacks} * most) {
    run(Number<kSize>(), Number<kPacks>(), DivideUp(DivideUp(packs, kPacks), kWarp) * kWarp);
    return true;
  }
  if constexpr (kSize > 1 && kSize * kPacks < kMostColumns) return WithPacks<kSize, kPacks * 2>(hidden, gradient, run);
  if constexpr (kSize == 1 && kPacks < 8) return WithPacks<1, 8>(hidden, gradient, run);
  return false;
}

// As WithPacks, or calls run_long(pack size).
template <typename T, typename Run, typename RunLong>
void Spread(int64_t hidden, bool wide, bool gradient, const Run& run, const RunLong& run_long) {
  if (wide) {
    if (!WithPacks<kWidest<T>, 1>(hidden, gradient, run)) run_long(Number<kWidest<T>>());
  } else {
    if (!WithPacks<1, 1>(hidden, gradient, run)) run_long(Number<1>());
  }
}

// Calls run(kCentred).
template <typename Run>
void WithCentred(bool centred, const Run& run) {
  centred ? run(std::true_type()) : run(std::false_type());
}

template <bool kCentred, typename T>
void Run(const LayerNormForward& args, void* stream) {
  const bool wide = Aligned16(args.hidden * sizeof(T), args.x, args.y);
  const auto run = [&](auto size, auto packs, int threads) {
    constexpr int kSize = size, kPacks = packs;
    const auto kernel = LayerNormKernel<kCentred, T, kSize, kPacks>;
    const int groups = DivideUp(args.rows, kRowsAtOnce<kPacks>);
    LaunchKernel(kernel, {std::min(groups, BlocksThatFit(kernel, threads))}, threads, stream, args);
  };
  const auto run_long = [&](auto size) {
    const auto kernel = LongLayerNormKernel<kCentred, T, size>;
    LaunchKernel(kernel, {LongRowBlocks(kernel, args.rows)}, kLongRowThreads, stream, args);
  };
  Spread<T>(args.hidden, wide, false, run, run_long);
}

template <bool kCentred, typename T>
CudaError Run(const LayerNormBackward& args, const CudaStream& stream) {
  CudaError error = nullptr;
  const auto launch = [&](auto kernel, int64_t most_blocks, int threads) {
    const int blocks = static_cast<int>(std::min(most_blocks, MostRowParts(args.rows, args.hidden)));
    float* parts = nullptr;
    const ColumnSums sums = {args.hidden, args.parameter_dtype, {args.dgamma, kCentred ? args.dbeta : nullptr}};
    error = TakeWorkspace(stream, blocks * sums.total(), &parts);
    if (error != nullptr) return;
    LaunchKernel(kernel, {blocks}, threads, stream.handle, args, parts);
    SumParts(parts, blocks, sums, stream);
  };
  const bool wide = Aligned16(args.hidden * sizeof(T), args.dy, args.x, args.dx);
  const auto run = [&](auto size, auto packs, int threads) {
    constexpr int kSize = size, kPacks = packs;
    const auto kernel = LayerNormGradientKernel<kCentred, T, kSize, kPacks>;
    // Without rows one block still writes the zeros.
    const int groups = std::max(1, DivideUp(args.rows, kGradientRows<kPacks>));
    launch(kernel, std::min(groups, BlocksThatFit(kernel, threads)), threads);
  };
  const auto run_long = [&](auto size) {
    const auto kernel = LongLayerNormGradientKernel<kCentred, T, size>;
    launch(kernel, LongRowBlocks(kernel, args.rows), kLongRowThreads);
  };
  Spread<T>(args.hidden, wide, true, run, run_long);
  return error != nullptr ? error : LastError();
}

}  // namespace

CudaError Launch(const LayerNormForward& args, const CudaStream& stream) {
  if (args.rows == 0 || args.hidden == 0) return nullptr;
  WithType(args.dtype, [&](auto t) {
    WithCentred(args.centred, [&](auto centred) { Run<centred, decltype(t)>(args, stream.handle); });
  });
  return LastError();
}

CudaError Launch(const LayerNormBackward& args, const CudaStream& stream) {
  if (args.hidden == 0) return nullptr;
  CudaError error = nullptr;
  WithType(args.dtype, [&](auto t) {
    WithCentred(args.centred, [&](auto centred) { error = Run<centred, decltype(t)>(args, stream); });
  });
  return error;
}

}  // namespace tftrain
