// The CUDA kernels of flash attention, run by cuda.h: compared with the fp64 reference, with the CPU kernels, and
// with the errors of the plain core.
#include <algorithm>

#include "custom_ops/kernels/common/testing.h"
#include "custom_ops/kernels/emulation/cuda.h"
#include "custom_ops/kernels/flash_attention/flash_attention.h"
#include "custom_ops/kernels/flash_attention/flash_attention_reference.h"

namespace tftrain {
namespace {

constexpr int64_t kPosition[] = {12, 34};

Dropout WithRate(double rate) { return {std::lround(rate * 256) * 256, int64_t{0x123456789abcdef}, 7, kPosition}; }

struct Case {
  FlashShape shape;
  double rate = 0;
  bool sequence_ids = false;
  bool slopes = false;
  bool padding = true;
};

FlashShape Shape(int64_t batch, int64_t length, int64_t head_size, bool causal = false, int64_t heads = 1,
                 int64_t window = -1, int64_t group = 1) {
  return {batch, length, heads, head_size, 1, heads + 3, causal, window, group};
}

std::string Describe(DType dtype, const Case& c) {
  return std::string(Name(dtype)) + " length " + std::to_string(c.shape.length) + " head size " +
         std::to_string(c.shape.head_size) + " rate " + std::to_string(c.rate) + (c.shape.causal ? " causal" : "") +
         (c.sequence_ids ? " sequence_ids" : "") + (c.slopes ? " slopes" : "") + " window " +
         std::to_string(c.shape.window) + " group " + std::to_string(c.shape.group) + (c.padding ? "" : " without padding");
}

// Each head size of the kernels and between them, lengths that are multiples of tiles, of 8 or of nothing, every mask.
const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = {
      {Shape(2, 1, 64), 0.1},
      {Shape(2, 17, 32, true), 0, false, true},
      {Shape(1, 128, 64), 0.1, false, false, false},
      {Shape(1, 192, 64, true, 2), 0.1, false, false, false},
      {Shape(1, 257, 64, true), 0.1, true},
      {Shape(2, 100, 80), 0.3},
      {Shape(1, 131, 96, true), 0.1, true, true},
      {Shape(1, 72, 128), 0.1, true},
      {Shape(1, 130, 128, true), 0},
      {Shape(1, 67, 256), 0.5},
      {Shape(1, 65, 8), 0, true},
      {Shape(1, 40, 136, true), 0.1, false, true},
      {Shape(1, 400, 32, false, 1, 40), 0.1, false, false, false},
      {Shape(1, 270, 64, true, 2, 64), 0.1, true},
      {Shape(2, 200, 80, false, 1, 33), 0, false, true},
      {Shape(1, 140, 128, false, 1, 0), 0, true},
      {Shape(1, 70, 64, false, 1, 100), 0.1},
      {Shape(2, 100, 64, false, 4, -1, 2), 0.1},
      {Shape(1, 140, 32, true, 3, 50, 3), 0, true, true},
      {Shape(1, 67, 128, true, 2, -1, 2), 0.1, false, false, false},
      {Shape(1, 290, 128, true, 2, 150, 2), 0.1, true, true},
      {Shape(1, 150, 96), 0, true},
      {Shape(0, 5, 64), 0.1},
      {Shape(2, 0, 64), 0.1},
  };
  return cases;
}

struct Results {
  std::vector<double> context, dquery, dkey, dvalue;
  std::vector<std::pair<const char*, const std::vector<double>*>> named() const {
    return {{"context", &context}, {"dquery", &dquery}, {"dkey", &dkey}, {"dvalue", &dvalue}};
  }
};

// Rounded to a storage type.
double Rounded(double value, DType dtype) {
  if (dtype == DType::kFloat32) return static_cast<float>(value);
  return dtype == DType::kFloat16 ? DecodeBits(EncodeBits<Half>(value), Half())
                                  : DecodeBits(EncodeBits<BFloat16>(value), BFloat16());
}

class Attention {
 public:
  Attention(DType dtype, const Case& c, int seed)
      : c_(c), dtype_(dtype), random_(seed), count_(c.shape.batch * c.shape.length * c.shape.row_stride()),
        kv_count_(count_ / c.shape.group) {
    for (Buffer* buffer : {&query_, &dcontext_}) *buffer = Buffer(dtype, Normal(random_, count_));
    for (Buffer* buffer : {&key_, &value_}) *buffer = Buffer(dtype, Normal(random_, kv_count_));
    q_ = query_.values(), k_ = key_.values(), v_ = value_.values(), g_ = dcontext_.values();
    // Every fifth key is padding from the first one on, so that a causal query has no key, and so are 70 at the end if there
    // are so many; the second sample has none at all.
    const int64_t length = c.shape.length;
    mask_.assign(c.shape.batch * length, c.padding ? 0 : 1);
    for (int64_t i = 0; i < std::min<int64_t>(c.shape.batch, 1) * length; ++i) {
      if (c.padding) mask_[i] = length == 1 || (i % 5 != 0 && i < std::max<int64_t>(length - 70, 50)) ? 3 : 0;
    }
    for (int64_t i = 0; i < c.shape.batch * length; ++i) sequence_ids_.push_back(i % length / 60 - 1);
  }

  // Replaces the numbers of all inputs from one on.
  void FillFrom(int64_t begin, double number) {
    for (Buffer* buffer : {&query_, &key_, &value_, &dcontext_}) {
      std::vector<double> values = buffer->values();
      std::fill(values.begin() + begin, values.end(), number);
      *buffer = Buffer(dtype_, values);
    }
  }

  // By the emulated kernels, with gradients in one pass or in two, or by the kernels of the CPU.
  Results Run(bool emulated, bool atomic = false) {
    Buffer context(dtype_, count_), dquery(dtype_, count_), dkey(dtype_, kv_count_), dvalue(dtype_, kv_count_);
    for (Buffer* buffer : {&context, &dquery, &dkey, &dvalue}) std::memset(buffer->data(), 0xff, buffer->size_bytes());
    log_sum_exp.assign(c_.shape.batch * c_.shape.heads * c_.shape.length, NAN);
    const FlashAttentionForward forward{c_.shape, scale(), WithRate(c_.rate), dtype_, query_.data(), key_.data(),
                                        value_.data(), masks(), context.data(), log_sum_exp.data()};
    const FlashAttentionBackward backward{c_.shape, scale(), WithRate(c_.rate), dtype_, dcontext_.data(), query_.data(),
                                          key_.data(), value_.data(), masks(), context.data(), log_sum_exp.data(),
                                          dquery.data(), dkey.data(), dvalue.data(), atomic};
    if (emulated) {
      const FlashShape& shape = c_.shape;
      const int64_t bytes = FlashGradientBytes(shape.batch, shape.length, shape.heads, shape.head_size, atomic);
      std::vector<float> workspace(bytes / sizeof(float) + 4, NAN);
      const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace.data()) + 15) & ~uintptr_t{15};
      for (CudaError error : {Launch(forward, CudaStream{nullptr}),
                              Launch(backward, CudaStream{nullptr, reinterpret_cast<void*>(at), bytes})}) {
        EXPECT_EQ(error, nullptr) << error;
      }
    } else {
      Launch(forward, SerialFor);
      Launch(backward, SerialFor);
    }
    return {context.values(), dquery.values(), dkey.values(), dvalue.values()};
  }

  // By the emulated kernels: with gradients in two passes, and if the storage type has it, in one.
  std::vector<Results> RunBothWays() {
    std::vector<Results> ways = {Run(true)};
    if (dtype_ != DType::kFloat32) ways.push_back(Run(true, true));
    return ways;
  }

  Results Exact(std::vector<double>* exact_log_sum_exp) const {
    Results results = Zeros();
    exact_log_sum_exp->assign(log_sum_exp.size(), 0);
    Reference().Forward(results.context.data(), exact_log_sum_exp->data());
    Reference().Backward(g_.data(), results.dquery.data(), results.dkey.data(), results.dvalue.data());
    return results;
  }

  // By the plain core: each product, the probabilities and the dropped probabilities are rounded to the storage type. Sums
  // and the softmax are exact, so real errors are no smaller.
  Results Plain() const {
    Results results = Zeros();
    const FlashReference reference = Reference();
    const FlashShape& shape = c_.shape;
    const auto add = [&](double factor, const double* from, std::vector<double>& to, int64_t at) {
      for (int64_t i = 0; i < shape.head_size; ++i) to[at + i] += factor * from[i];
    };
    std::vector<double> p, factor;
    for (int64_t sample = 0; sample < shape.batch; ++sample) {
      for (int64_t head = 0; head < shape.heads; ++head) {
        for (int64_t q = 0; q < shape.length; ++q) {
          reference.Row(sample, head, q, &p, &factor);  // the factors
          std::vector<double> scores(shape.length, -INFINITY);
          double largest = -INFINITY, sum = 0, dot = 0;
          for (int64_t k = 0; k < shape.length; ++k) {
            if (!reference.Attends(sample, q, k)) continue;
            const double bias = c_.slopes ? slopes_[head] * static_cast<double>(k - q) : 0;
            scores[k] = scale() * RoundedSum(reference.Dot(q_.data(), q, k_.data(), k, sample, head)) + bias;
            largest = std::max(largest, scores[k]);
          }
          for (double& score : scores) sum += score = largest == -INFINITY ? 0 : std::exp(score - largest);
          const int64_t row = shape.Offset(sample, head, q);
          std::vector<double> g(shape.length, 0), dropped(shape.length, 0);
          for (int64_t k = 0; k < shape.length; ++k) {
            p[k] = sum > 0 ? RoundedSum(scores[k] / sum) : 0;
            dropped[k] = Rounded(p[k] * factor[k], dtype_);
            if (p[k] == 0) continue;
            g[k] = factor[k] * RoundedSum(reference.Dot(g_.data(), q, v_.data(), k, sample, head));
            dot += p[k] * g[k];
            add(dropped[k], &v_[reference.KeyOffset(sample, head, k)], results.context, row);
            add(dropped[k], &g_[row], results.dvalue, reference.KeyOffset(sample, head, k));
          }
          for (int64_t k = 0; k < shape.length; ++k) {
            const double dscore = RoundedSum(scale() * p[k] * (g[k] - dot));
            add(dscore, &k_[reference.KeyOffset(sample, head, k)], results.dquery, row);
            add(dscore, &q_[row], results.dkey, reference.KeyOffset(sample, head, k));
          }
        }
      }
    }
    for (auto* values : {&results.context, &results.dquery, &results.dkey, &results.dvalue}) {
      for (double& value : *values) value = Rounded(value, dtype_);
    }
    return results;
  }

  std::vector<float> log_sum_exp;

 private:
  float scale() const { return 1 / std::sqrt(static_cast<float>(c_.shape.head_size)); }
  FlashMask masks() const {
    return {mask_.data(), c_.sequence_ids ? sequence_ids_.data() : nullptr, c_.slopes ? slopes_ : nullptr};
  }
  FlashReference Reference() const {
    return {c_.shape, scale(), WithRate(c_.rate), masks(), q_.data(), k_.data(), v_.data()};
  }
  Results Zeros() const {
    const std::vector<double> zeros(count_), of_keys(kv_count_);
    return {zeros, zeros, of_keys, of_keys};
  }
  double RoundedSum(double value) const { return Rounded(value, dtype_); }

  const Case c_;
  const DType dtype_;
  std::mt19937 random_;
  const int64_t count_, kv_count_;
  Buffer query_{DType::kFloat32, 0}, key_{DType::kFloat32, 0}, value_{DType::kFloat32, 0}, dcontext_{DType::kFloat32, 0};
  std::vector<double> q_, k_, v_, g_;
  std::vector<int32_t> mask_, sequence_ids_;
  const float slopes_[3] = {0.0625f, 0.003f, 0.5f};
};

double RootMeanSquareError(const std::vector<double>& actual, const std::vector<double>& expected) {
  double sum = 0;
  for (size_t i = 0; i < actual.size(); ++i) sum += (actual[i] - expected[i]) * (actual[i] - expected[i]);
  return std::sqrt(sum / std::max<size_t>(1, actual.size()));
}

// Its errors are 1.5 times those of the plain core in forward and twice in backward, at most: of them, a part is the
// rounding of the results alone.
TEST(CudaFlashAttention, IsTheReferenceWithErrorsLikeThePlainCore) {
  for (DType dtype : kDTypes) {
    for (const Case& c : Cases()) {
      const std::string what = Describe(dtype, c);
      Attention attention(dtype, c, 1);
      const std::vector<Results> ways = attention.RunBothWays();
      std::vector<double> log_sum_exp;
      const Results exact = attention.Exact(&log_sum_exp);
      for (size_t i = 0; i < log_sum_exp.size(); ++i) {
        if (log_sum_exp[i] == -INFINITY) {
          ASSERT_EQ(attention.log_sum_exp[i], -INFINITY) << what << " row " << i;
        } else {
          ASSERT_NEAR(attention.log_sum_exp[i], log_sum_exp[i], 5e-6) << what << " row " << i;
        }
      }
      // With one key, the plain core's gradients are exact zeros.
      const bool has_plain = dtype != DType::kFloat32 && c.shape.length >= 17 && c.shape.window != 0;
      const Results plain = has_plain ? attention.Plain() : Results();
      // Weights are rounded before the products, so an error is relative to the sum of magnitudes.
      const double unit = dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
      for (const Results& actual : ways) {
        for (size_t i = 0; i < 4; ++i) {
          const std::vector<double>& found = *actual.named()[i].second;
          const std::vector<double>& expected = *exact.named()[i].second;
          const std::string name = what + " " + actual.named()[i].first + (&actual == &ways[0] ? "" : " in one pass");
          ExpectClose(found, expected, {unit, unit * (i == 0 ? 1 : 4)}, name);
          if (!has_plain) continue;
          const double of_plain = RootMeanSquareError(*plain.named()[i].second, expected);
          EXPECT_LE(RootMeanSquareError(found, expected), (i == 0 ? 1.5 : 2) * of_plain) << name;
        }
      }
    }
  }
}

// Where value rows are unit vectors, the context is the dropped probabilities, and its zeros are the mask.
TEST(CudaFlashAttention, DropsTheSameAsTheCpu) {
  for (DType dtype : kDTypes) {
    for (int64_t length : {64, 61}) {
      const FlashShape shape = Shape(1, length, 64);
      std::mt19937 random(3);
      const int64_t count = length * 64;
      std::vector<double> units(count);
      for (int64_t i = 0; i < length; ++i) units[i * 64 + i] = 1;
      Buffer query(dtype, Normal(random, count)), key(dtype, Normal(random, count)), value(dtype, units);
      Buffer by_cpu(dtype, count), by_cuda(dtype, count);
      std::vector<float> log_sum_exp(length);
      const std::vector<int32_t> mask(length, 1);
      FlashAttentionForward args{shape, 0.125f, WithRate(0.3), dtype, query.data(), key.data(), value.data(),
                                 {mask.data(), nullptr, nullptr}, by_cpu.data(), log_sum_exp.data()};
      Launch(args, SerialFor);
      args.context = by_cuda.data();
      ASSERT_EQ(Launch(args, CudaStream{nullptr}), nullptr);
      const auto cpu = by_cpu.values(), cuda = by_cuda.values();
      int64_t zeros = 0;
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(cpu[i] == 0, cuda[i] == 0) << Name(dtype) << " query " << i / 64 << " key " << i % 64;
        zeros += cuda[i] == 0 && i % 64 < length;
      }
      EXPECT_NEAR(zeros / static_cast<double>(length * length), 0.3, 0.05);
    }
  }
}

// What is masked as a whole tile is not read: infinity there would make every result that it reaches NaN.
TEST(CudaFlashAttention, SkipsMaskedTiles) {
  for (DType dtype : kDTypes) {
    const FlashShape shape = Shape(1, 256, 32);
    std::mt19937 random(4);
    const int64_t count = 256 * 32;
    std::vector<double> keys = Normal(random, count), values = Normal(random, count);
    for (int64_t i = 128 * 32; i < count; ++i) keys[i] = values[i] = INFINITY;
    Buffer query(dtype, Normal(random, count)), key(dtype, keys), value(dtype, values), context(dtype, count);
    Buffer dcontext(dtype, Normal(random, count)), dquery(dtype, count), dkey(dtype, count), dvalue(dtype, count);
    std::vector<float> log_sum_exp(256), workspace(256 * 33 + 4);
    std::vector<int32_t> mask(256, 1);
    std::fill(mask.begin() + 128, mask.end(), 0);
    const FlashMask masks = {mask.data(), nullptr, nullptr};
    ASSERT_EQ(Launch(FlashAttentionForward{shape, 0.2f, WithRate(0), dtype, query.data(), key.data(), value.data(), masks,
                                           context.data(), log_sum_exp.data()},
                     CudaStream{nullptr}),
              nullptr);
    const uintptr_t at = (reinterpret_cast<uintptr_t>(workspace.data()) + 15) & ~uintptr_t{15};
    for (bool atomic : {false, dtype != DType::kFloat32}) {
      ASSERT_EQ(Launch(FlashAttentionBackward{shape, 0.2f, WithRate(0), dtype, dcontext.data(), query.data(), key.data(),
                                              value.data(), masks, context.data(), log_sum_exp.data(), dquery.data(),
                                              dkey.data(), dvalue.data(), atomic},
                       CudaStream{nullptr, reinterpret_cast<void*>(at), 256 * 33 * 4}),
                nullptr);
      for (double each : context.values()) ASSERT_TRUE(std::isfinite(each)) << Name(dtype);
      for (double each : dquery.values()) ASSERT_TRUE(std::isfinite(each)) << Name(dtype);
      for (Buffer* buffer : {&dkey, &dvalue}) {
        const auto gradient = buffer->values();
        for (int64_t i = 128 * 32; i < count; ++i) ASSERT_EQ(gradient[i], 0) << Name(dtype);
      }
    }
  }
}

// Tiles outside of the window are not read, and a window as long as the row is none; see the test of the CPU kernels.
TEST(CudaFlashAttention, SkipsWhatIsOutsideOfTheWindow) {
  constexpr int64_t kSize = 32, kFar = 320 * kSize, kNear = 128 * kSize;
  for (DType dtype : kDTypes) {
    for (bool causal : {false, true}) {
      const auto results = [&](int64_t window, bool infinite) {
        Attention run(dtype, {Shape(1, 512, kSize, causal, 1, window), 0.1, false, false, false}, 5);
        if (infinite) run.FillFrom(kFar, INFINITY);
        std::vector<double> all;
        for (const Results& made : run.RunBothWays()) {
          for (const auto& [name, values] : made.named()) all.insert(all.end(), values->begin(), values->begin() + kNear);
        }
        return all;
      };
      ExpectClose(results(40, true), results(40, false), {0, 0}, std::string(Name(dtype)) + (causal ? " causal" : ""));
      EXPECT_EQ(results(512, false), results(-1, false)) << Name(dtype);
    }
  }
}

// GPUs of compute capability 8.6 and 8.9.
TEST(CudaFlashAttention, FitsSmallGpusOrNamesThem) {
  cuda::most_shared_bytes = 99 << 10;
  for (int64_t head_size : {64, 80, 96, 128}) {
    Attention attention(DType::kBFloat16, {Shape(1, 140, head_size, true), 0.1}, 6);
    const std::vector<Results> small = attention.RunBothWays();
    cuda::most_shared_bytes = cuda::kMostSharedBytes;
    const std::vector<Results> large = attention.RunBothWays();
    cuda::most_shared_bytes = 99 << 10;
    for (size_t way = 0; way < 2; ++way) {
      for (size_t i = 0; i < 4; ++i) {
        ExpectClose(*small[way].named()[i].second, *large[way].named()[i].second, {0x1p-7, 0x1p-7}, small[way].named()[i].first);
      }
    }
  }
  float numbers[4] = {};
  int32_t mask[1] = {1};
  const CudaError error = Launch(FlashAttentionForward{Shape(1, 1, 256), 1.0f, WithRate(0), DType::kBFloat16, nullptr, nullptr,
                                                       nullptr, {mask, nullptr, nullptr}, nullptr, numbers},
                                 CudaStream{nullptr});
  cuda::most_shared_bytes = cuda::kMostSharedBytes;
  EXPECT_STREQ(error, "flash attention with heads of 256 takes 102192 bytes of shared memory, and the emulated GPU has 101376 "
                      "for a block; choose another --attn_impl than flash");
}

TEST(CudaFlashAttention, RefusesTensorsThatItCannotCopy) {
  float numbers[64] = {};
  int32_t mask[1] = {1};
  float* const odd = numbers + (reinterpret_cast<uintptr_t>(numbers) % 16 == 0 ? 1 : 0);
  const CudaError error = Launch(FlashAttentionForward{Shape(1, 1, 8), 1.0f, WithRate(0), DType::kFloat32, odd, odd, odd,
                                                       {mask, nullptr, nullptr}, odd, numbers},
                                 CudaStream{nullptr});
  EXPECT_STREQ(error, "flash attention expects tensors that are aligned to 16 bytes");
}

}  // namespace
}  // namespace tftrain
