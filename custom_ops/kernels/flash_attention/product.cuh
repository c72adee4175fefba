// The products of flash attention on the GPU, between rows of a head in shared memory and the registers of a warp.
//
// A warp has kRowTiles tiles of 16 rows. A product with n columns has a fragment for each tile of rows and each 8 columns,
// of which lane 4g + c holds the rows g and g + 8, columns 2c and 2c + 1 (cuda/matrix.cuh). 16-bit numbers are multiplied by
// tensor cores. Numbers in fp32 are multiplied and added one by one, in the same registers: tensor cores would round them.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_PRODUCT_CUH_
#define TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_PRODUCT_CUH_

#include <cstdint>
#include <type_traits>

#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/cuda/matrix.cuh"
#include "custom_ops/kernels/common/philox.h"

namespace tftrain::cuda {

// Of a product: [tile of rows][8 columns][(g, 2c), (g, 2c + 1), (g + 8, 2c), (g + 8, 2c + 1)].
template <int kRowTiles, int kColumns>
using Fragments = float[kRowTiles][kColumns / 8][4];

__device__ __forceinline__ int LaneGroup() { return threadIdx.x % kWarp / 4; }   // g
__device__ __forceinline__ int LaneColumn() { return threadIdx.x % 4 * 2; }     // 2c

__device__ __forceinline__ float SumOfQuad(float value) {
  value += __shfl_xor_sync(0xffffffff, value, 1);
  return value + __shfl_xor_sync(0xffffffff, value, 2);
}

// Rows of a head in shared memory, one a token. A row is 16 bytes longer than its numbers, an odd number of times 16 bytes:
// so 8 rows one below the other never meet in a bank.
template <typename T, int kHead>
struct HeadRows {
  static constexpr int kStride = kHead + kWidest<T>;
  static constexpr int64_t Bytes(int rows) { return int64_t{rows} * kStride * sizeof(T); }
  // From the place of one number to that of another.
  TFTRAIN_HOST_DEVICE static constexpr int BytesTo(int rows, int columns) {
    return (rows * kStride + columns) * static_cast<int>(sizeof(T));
  }

  T* data;

  __device__ T* at(int row, int column) const { return data + row * kStride + column; }
};

// Begins to copy kRows rows of a head, whose first one is at `from`. There are `rows` of them with `head_size` numbers each;
// the others become zeros.
template <int kRows, int kThreads, typename T, int kHead>
__device__ __forceinline__ void CopyRows(const T* from, int64_t stride, int rows, int head_size, HeadRows<T, kHead> to) {
  constexpr int kPacks = kHead / kWidest<T>;
  constexpr int kTeam = kPacks <= 4 ? 4 : kPacks <= 8 ? 8 : kPacks <= 16 ? 16 : kPacks <= 32 ? 32 : 64;  // threads of a row
  constexpr int kRowsAtOnce = kThreads / kTeam;
  static_assert(kRows % kRowsAtOnce == 0 && kPacks <= kTeam);
  const int first = threadIdx.x / kTeam, column = threadIdx.x % kTeam * kWidest<T>;
  if (kPacks < kTeam && column >= kHead) return;
  SharedAddress at = AddressOf(to.at(first, column));
  const T* next = from + first * stride + column;
  rows = column < head_size ? rows - first : 0;
#pragma unroll
  for (int row = 0; row < kRows; row += kRowsAtOnce) {
    CopyAsync16(at + HeadRows<T, kHead>::BytesTo(row, 0), row < rows ? next : from, row < rows);
    next += kRowsAtOnce * stride;
  }
}

// The left operand of a product over the head: the rows of a warp. In registers, they are read once.
template <typename T, int kHead, int kRowTiles, bool kInRegisters>
class RowOperand {
 public:
  // `rows` are those of the warp, and have been copied.
  __device__ explicit RowOperand(HeadRows<T, kHead> rows)
      : rows_(rows), address_(AddressOf(rows.at(threadIdx.x % kWarp % 16, threadIdx.x % kWarp / 16 * 8))) {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int k = 0; k < kHead / 16; ++k) Read(k, held_[k]);
    }
  }

  // The fragments of columns 16k to 16k + 15.
  __device__ __forceinline__ void Get(int k, uint32_t (&fragment)[kRowTiles][4]) const {
    if constexpr (kInRegisters) {
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int i = 0; i < 4; ++i) fragment[r][i] = held_[k][r][i];
      }
    } else {
      Read(k, fragment);
    }
  }

  __device__ HeadRows<T, kHead> rows() const { return rows_; }

 private:
  __device__ __forceinline__ void Read(int k, uint32_t (&fragment)[kRowTiles][4]) const {
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) LoadMatrices(fragment[r], address_ + HeadRows<T, kHead>::BytesTo(16 * r, 16 * k));
  }

  const HeadRows<T, kHead> rows_;
  const SharedAddress address_;
  uint32_t held_[kInRegisters ? kHead / 16 : 1][kRowTiles][4];
};

// out = rows * columns', over the head: the columns are the kColumns rows of `columns` from the first one on.
template <int kColumns, typename T, int kHead, int kRowTiles, bool kInRegisters>
__device__ __forceinline__ void MultiplyOverHead(const RowOperand<T, kHead, kRowTiles, kInRegisters>& rows,
                                                 HeadRows<T, kHead> columns, Fragments<kRowTiles, kColumns>& out) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) out[r][j][0] = out[r][j][1] = out[r][j][2] = out[r][j][3] = 0.0f;
  }
  if constexpr (std::is_same_v<T, float>) {
    const int group = LaneGroup(), column = LaneColumn();
#pragma unroll 1
    for (int k = 0; k < kHead; k += 4) {
      float a[2 * kRowTiles][4];
#pragma unroll
      for (int r = 0; r < 2 * kRowTiles; ++r) Load16(rows.rows().at(8 * r + group, k), a[r]);
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float b[4];
          Load16(columns.at(8 * j + column + i, k), b);
#pragma unroll
          for (int r = 0; r < 2 * kRowTiles; ++r) {
            float& sum = out[r / 2][j][r % 2 * 2 + i];
#pragma unroll
            for (int x = 0; x < 4; ++x) sum = fmaf(a[r][x], b[x], sum);
          }
        }
      }
    }
  } else {
    const int lane = threadIdx.x % kWarp;
    const SharedAddress from = AddressOf(columns.at(lane % 8 + lane / 16 * 8, lane / 8 % 2 * 8));
#pragma unroll
    for (int k = 0; k < kHead / 16; ++k) {
      uint32_t a[kRowTiles][4];
      rows.Get(k, a);
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        uint32_t b[4];  // of 8 columns the halves of k, then those of the next 8
        LoadMatrices(b, from + HeadRows<T, kHead>::BytesTo(16 * n, 16 * k));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Multiply16x8x16(out[r][2 * n], a[r], b[0], b[1], T());
          Multiply16x8x16(out[r][2 * n + 1], a[r], b[2], b[3], T());
        }
      }
    }
  }
}

// sums += weights * rows, over 8 * kDepth rows and 8 * kOut of their columns, from `first_column` on. The weights are in the
// registers that the product over the head left them in, which are those of a left operand, too.
template <typename T, int kHead, int kRowTiles, int kDepth, int kOut>
__device__ __forceinline__ void MultiplyOverRows(const float (&weights)[kRowTiles][kDepth][4], HeadRows<T, kHead> rows,
                                                 int first_column, float (&sums)[kRowTiles][kOut][4]) {
  if constexpr (std::is_same_v<T, float>) {
    const int quad = threadIdx.x % kWarp / 4 * 4, column = LaneColumn();
#pragma unroll
    for (int j = 0; j < kDepth; ++j) {
#pragma unroll(kOut > 8 ? 1 : 4)  // with all of a wide head at once, the registers run out
      for (int lane = 0; lane < 4; ++lane) {
        float weight[kRowTiles][4];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) ShuffleFrom(weights[r][j], quad + lane, weight[r]);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float* const row = rows.at(8 * j + 2 * lane + i, first_column + column);
#pragma unroll
          for (int n = 0; n < kOut; ++n) {
            const float2 b = *reinterpret_cast<const float2*>(row + 8 * n);
#pragma unroll
            for (int r = 0; r < kRowTiles; ++r) {
              sums[r][n][0] = fmaf(weight[r][i], b.x, sums[r][n][0]);
              sums[r][n][1] = fmaf(weight[r][i], b.y, sums[r][n][1]);
              sums[r][n][2] = fmaf(weight[r][2 + i], b.x, sums[r][n][2]);
              sums[r][n][3] = fmaf(weight[r][2 + i], b.y, sums[r][n][3]);
            }
          }
        }
      }
    }
  } else {
    const int lane = threadIdx.x % kWarp;
    const SharedAddress from = AddressOf(rows.at(lane % 16, first_column + lane / 16 * 8));
#pragma unroll
    for (int k = 0; k < kDepth / 2; ++k) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float(&from)[4] = weights[r][2 * k + half];
          a[r][2 * half] = PairFromFloats(from[0], from[1], T());
          a[r][2 * half + 1] = PairFromFloats(from[2], from[3], T());
        }
      }
#pragma unroll
      for (int n = 0; n < kOut / 2; ++n) {
        uint32_t b[4];  // of 8 columns the halves of k, then those of the next 8
        LoadMatricesTransposed(b, from + HeadRows<T, kHead>::BytesTo(16 * k, 16 * n));
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
          Multiply16x8x16(sums[r][2 * n], a[r], b[0], b[1], T());
          Multiply16x8x16(sums[r][2 * n + 1], a[r], b[2], b[3], T());
        }
      }
    }
  }
}

// Writes a warp's fragments to its rows of shared memory: number_of(r, half, v) for each v, of row 16 r + 8 half + g.
template <typename T, int kWidth, int kRowTiles, int kTiles, typename NumberOf>
__device__ __forceinline__ void StoreToRows(const float (&fragments)[kRowTiles][kTiles][4], HeadRows<T, kWidth> rows,
                                            const NumberOf& number_of) {
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float low = number_of(r, half, fragments[r][j][2 * half]);
        const float high = number_of(r, half, fragments[r][j][2 * half + 1]);
        T* const at = rows.at(16 * r + 8 * half + LaneGroup(), 8 * j + LaneColumn());
        if constexpr (std::is_same_v<T, float>) {
          at[0] = low;
          at[1] = high;
        } else {
          *reinterpret_cast<uint32_t*>(at) = PairFromFloats(low, high, T());
        }
      }
    }
  }
}

// Writes a warp's fragments times the factors of their rows, [tile of rows][g, g + 8]: the first `rows` rows and the first
// `columns` columns. They pass through rows of shared memory that are the warp's own, so that 16 bytes are written at once.
template <typename T, int kHead, int kRowTiles, int kTiles>
__device__ __forceinline__ void StoreFragments(const float (&fragments)[kRowTiles][kTiles][4],
                                               const float (&factors)[kRowTiles][2], HeadRows<T, kHead> through, int rows,
                                               int columns, T* to, int64_t stride) {
  const int lane = threadIdx.x % kWarp;
  __syncwarp();  // all lanes have read what the rows held
  StoreToRows(fragments, through, [&](int r, int half, float v) { return v * factors[r][half]; });
  __syncwarp();
  constexpr int kPacks = kTiles * 8 / kWidest<T>;
#pragma unroll 4
  for (int i = lane; i < 16 * kRowTiles * kPacks; i += kWarp) {
    const int row = i / kPacks, first = i % kPacks * kWidest<T>;
    if (row < rows && first < columns) {
      Pack<T, kWidest<T>>::Load(through.at(row, first)).Store(to + row * stride + first);
    }
  }
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_FLASH_ATTENTION_PRODUCT_CUH_
