// Random bits for dropout: Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11), a function
// of a key and a counter. A mask bit depends on seed, step, site, the sample's index in the global batch and the element's
// place in the sample, and on nothing else: any split of the batch or the heads sees the same masks, and backward draws
// them again instead of storing them. The bits are those of TensorFlow's StatelessRandomUniformFullIntV2.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PHILOX_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PHILOX_H_

#include <cstdint>

#if defined(__CUDACC__)
#define TFTRAIN_HOST_DEVICE __host__ __device__
#else
#define TFTRAIN_HOST_DEVICE
#endif

namespace tftrain {

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53;
constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9;
constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85;
constexpr int kPhiloxRounds = 10;

// A counter value gives 16 bytes. An element takes 16 bits, or 8 if it is an attention probability: of these there are so
// many that the draws are a good part of the time.
using ProbabilityDraw = uint8_t;
template <typename Draw>
constexpr int64_t kElementsPerCount = 16 / sizeof(Draw);
constexpr int64_t kSites = 1 << 16;
constexpr int64_t kRateUnit = 1 << 16;

struct PhiloxWords {
  uint32_t word[4];
};

// The halves of a * b.
TFTRAIN_HOST_DEVICE inline void MultiplyWide(uint32_t a, uint32_t b, uint32_t* high, uint32_t* low) {
#if defined(__CUDA_ARCH__)
  asm("{.reg .b64 t; mul.wide.u32 t, %2, %3; mov.b64 {%1, %0}, t;}" : "=r"(*high), "=r"(*low) : "r"(a), "r"(b));
#else
  const uint64_t product = uint64_t{a} * b;
  *high = static_cast<uint32_t>(product >> 32);
  *low = static_cast<uint32_t>(product);
#endif
}

TFTRAIN_HOST_DEVICE inline PhiloxWords Philox(uint64_t key, uint64_t low, uint64_t high) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(low);
  uint32_t c1 = static_cast<uint32_t>(low >> 32);
  uint32_t c2 = static_cast<uint32_t>(high);
  uint32_t c3 = static_cast<uint32_t>(high >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    uint32_t high0, low0, high1, low1;
    MultiplyWide(kPhiloxMultiplier0, c0, &high0, &low0);
    MultiplyWide(kPhiloxMultiplier1, c2, &high1, &low1);
    c0 = high1 ^ c1 ^ key0;
    c1 = low1;
    c2 = high0 ^ c3 ^ key1;
    c3 = low0;
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// Where the masks of one dropout come from, but for the place of the element.
struct Dropout {
  int64_t drop_below;       // of 65536 equally likely draws, how many drop; 0: no dropout; probabilities: n * 256
  int64_t seed;
  int64_t site;             // below kSites, another one for each place in the model that drops
  const int64_t* position;  // [2]: the update's number, and the first sample's index in the global batch
};

// The draws of one sample: with n elements for each counter value, element e has number e % n of counter value low + e / n.
template <typename Draw>
struct SampleDraws {
  using Type = Draw;
  static constexpr int64_t kPerCount = kElementsPerCount<Draw>;


  TFTRAIN_HOST_DEVICE SampleDraws(const Dropout& dropout, int64_t sample, int64_t elements_per_sample)
      : key(dropout.seed),
        // Unsigned: a position may be any number, and wraps.
        low((static_cast<uint64_t>(dropout.position[1]) + sample) *
            static_cast<uint64_t>((elements_per_sample + kPerCount - 1) / kPerCount)),
        high(static_cast<uint64_t>(dropout.position[0]) * kSites + dropout.site) {}

  // Of an element, below 65536.
  TFTRAIN_HOST_DEVICE uint32_t Of(int64_t element) const {
    constexpr int kBits = 8 * sizeof(Draw);
    const PhiloxWords words = Philox(key, low + element / kPerCount, high);
    const int64_t bit = element % kPerCount * kBits;
    return static_cast<Draw>(words.word[bit / 32] >> (bit % 32)) << (16 - kBits);
  }

  uint64_t key;
  uint64_t low;
  uint64_t high;
};

using ProbabilityDraws = SampleDraws<ProbabilityDraw>;

// Factor of an element that is not dropped.
inline float KeepScale(const Dropout& dropout) {
  return static_cast<float>(static_cast<double>(kRateUnit) / static_cast<double>(kRateUnit - dropout.drop_below));
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_COMMON_PHILOX_H_
