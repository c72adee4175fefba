// The tensor cores and asynchronous copies of cuda/matrix.cuh, on the CPU. The fragments are those of the PTX ISA ("Matrix
// Fragments for mma.m16n8k16", "Warp-level matrix load instruction: ldmatrix"), so a kernel that takes an element from
// another lane or register than the hardware would is wrong here too. A copy is done when its thread waits for it, not
// before.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_MATRIX_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_MATRIX_H_

#include <cstdint>
#include <cstring>

#include "custom_ops/kernels/emulation/cuda.h"

namespace tftrain::cuda {

template <typename T>
void Multiply16x8x16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, T type) {
  struct Fragments {
    float a[8];  // registers 0 to 3, two numbers each
    float b[4];
  } own;
  for (int i = 0; i < 4; ++i) PairToFloats(a[i], type, &own.a[2 * i], &own.a[2 * i + 1]);
  PairToFloats(b0, type, &own.b[0], &own.b[1]);
  PairToFloats(b1, type, &own.b[2], &own.b[3]);
  const auto all = Block::Share(own);
  const unsigned group = Block::Lane() / 4, column = Block::Lane() % 4 * 2;
  for (unsigned quarter = 0; quarter < 4; ++quarter) {  // k is 2 * quarter + i + 8 * half
    const Fragments row = all[group * 4 + quarter];
    const Fragments columns[2] = {all[column * 4 + quarter], all[(column + 1) * 4 + quarter]};
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 2; ++i) {
        for (int x = 0; x < 2; ++x) {
          c[x] += row.a[4 * half + i] * columns[x].b[2 * half + i];
          c[2 + x] += row.a[4 * half + 2 + i] * columns[x].b[2 * half + i];
        }
      }
    }
  }
}

using SharedAddress = char*;

inline SharedAddress AddressOf(const void* shared) { return static_cast<char*>(const_cast<void*>(shared)); }

inline void LoadMatrices(uint32_t (&matrix)[4], SharedAddress row) {
  const auto rows = Block::Share(row);
  const unsigned lane = Block::Lane();
  for (unsigned m = 0; m < 4; ++m) {
    std::memcpy(&matrix[m], rows[8 * m + lane / 4] + lane % 4 * 4, 4);
  }
}

inline void LoadMatricesTransposed(uint32_t (&matrix)[4], SharedAddress row) {
  const auto rows = Block::Share(row);
  const unsigned lane = Block::Lane();
  for (unsigned m = 0; m < 4; ++m) {
    uint16_t pair[2];
    for (unsigned i = 0; i < 2; ++i) {
      std::memcpy(&pair[i], rows[8 * m + lane % 4 * 2 + i] + lane / 4 * 2, 2);
    }
    std::memcpy(&matrix[m], pair, 4);
  }
}

inline void CopyAsync16(SharedAddress to, const void* from, bool exists) {
  Block::PendingCopies().back().push_back([=] {
    if (exists) {
      std::memcpy(to, from, 16);
    } else {
      std::memset(to, 0, 16);
    }
  });
}

// Ends a group of copies.
inline void CommitCopies() { Block::PendingCopies().emplace_back(); }

// Waits for the groups that the thread has ended.
inline void WaitForCopies() {
  auto& groups = Block::PendingCopies();
  while (groups.size() > 1) {
    for (const auto& copy : groups.front()) copy();
    groups.erase(groups.begin());
  }
}

template <int kValues>
void ShuffleFrom(const float (&values)[kValues], int lane, float (&out)[kValues]) {
  struct Values {
    float value[kValues];
  } own;
  std::memcpy(own.value, values, sizeof(values));
  const Values other = Block::Share(own)[lane];
  std::memcpy(out, other.value, sizeof(values));
}

inline uint32_t ShuffleFrom(uint32_t value, int lane) { return Block::Share(value)[lane]; }

inline int32_t LeastOfWarp(int32_t value) {
  const auto all = Block::Share(value);
  for (unsigned lane = 0; lane < Block::kWarpThreads; ++lane) value = std::min(value, all[lane]);
  return value;
}

inline int32_t GreatestOfWarp(int32_t value) {
  const auto all = Block::Share(value);
  for (unsigned lane = 0; lane < Block::kWarpThreads; ++lane) value = std::max(value, all[lane]);
  return value;
}

}  // namespace tftrain::cuda

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_EMULATION_MATRIX_H_
