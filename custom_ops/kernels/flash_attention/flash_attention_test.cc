#include "custom_ops/kernels/flash_attention/flash_attention.h"

#include "custom_ops/kernels/flash_attention/flash_attention_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

constexpr int64_t kPosition[] = {12, 34};

Dropout WithRate(double rate) { return {std::lround(rate * 256) * 256, int64_t{0x123456789abcdef}, 7, kPosition}; }

struct Case {
  DType dtype;
  FlashShape shape;
  double rate;
  bool sequence_ids = false;
  bool slopes = false;
};

std::string Describe(Target target, const Case& c) {
  return std::string(Name(target)) + " " + Name(c.dtype) + " length " + std::to_string(c.shape.length) + " head size " +
         std::to_string(c.shape.head_size) + " rate " + std::to_string(c.rate) + (c.shape.causal ? " causal" : "") +
         (c.sequence_ids ? " sequence_ids" : "") + (c.slopes ? " slopes" : "") + " window " +
         std::to_string(c.shape.window) + " group " + std::to_string(c.shape.group);
}

// Every length and head size with and without each mask, but not each with all others.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes) {
    const auto add = [&](int64_t batch, int64_t length, int64_t size, bool causal, double rate, bool sequence_ids,
                         bool slopes, int64_t window = -1, int64_t heads = 2) {
      const FlashShape shape{batch, length, heads, size, 1, 5, causal, window, heads / 2};
      cases.push_back({dtype, shape, rate, sequence_ids, slopes});
    };
    add(2, 1, 64, false, 0.1, false, false);
    add(2, 17, 32, true, 0.0, false, true);
    add(2, 64, 80, true, 0.1, false, false);
    add(2, 65, 8, false, 0.0, true, false);
    add(1, 131, 24, true, 0.3, true, true);
    add(1, 200, 96, false, 0.1, true, false);
    add(2, 256, 64, true, 0.1, true, false);
    add(1, 256, 64, false, 0.1, false, false);
    add(1, 150, 128, true, 0.1, false, true);
    add(1, 67, 256, false, 0.5, false, false);
    add(1, 700, 64, false, 0.1, false, false, 64);
    add(1, 515, 24, true, 0.0, true, false, 130);
    add(2, 300, 16, false, 0.0, false, true, 33);
    add(1, 70, 32, false, 0.0, true, false, 0);
    add(1, 333, 8, true, 0.1, false, false, 1);
    add(2, 150, 64, false, 0.1, false, false, -1, 4);
    add(1, 300, 24, true, 0.1, true, true, 50, 4);
    add(0, 5, 64, false, 0.1, false, false);
    add(2, 0, 64, false, 0.1, false, false);
  }
  return cases;
}

// The first sample has every fifth key padded from the first one on, so that a causal query has no key, and 70 at the end
// if there are so many; the second sample has none at all.
std::vector<int32_t> KeyMask(const FlashShape& shape) {
  std::vector<int32_t> mask(shape.batch * shape.length);
  for (int64_t i = 0; i < std::min<int64_t>(shape.batch, 1) * shape.length; ++i) {
    mask[i] = shape.length == 1 || (i % 5 != 0 && i < std::max<int64_t>(shape.length - 70, 50)) ? 3 : 0;
  }
  if ((shape.length == 256 || shape.length == 700) && !shape.causal) std::fill(mask.begin(), mask.end(), 1);
  return mask;
}

std::vector<int32_t> SequenceIds(const FlashShape& shape) {
  std::vector<int32_t> ids(shape.batch * shape.length);
  for (int64_t i = 0; i < shape.batch * shape.length; ++i) ids[i] = i % shape.length / 60 - 1;
  return ids;
}

struct Attention {
  Attention(const Case& c, std::mt19937& random)
      : c(c),
        count(c.shape.batch * c.shape.length * c.shape.row_stride()),
        kv_count(c.shape.batch * c.shape.length * c.shape.kv_stride()),
        query(c.dtype, Normal(random, count)),
        key(c.dtype, Normal(random, kv_count)),
        value(c.dtype, Normal(random, kv_count)),
        dcontext(c.dtype, Normal(random, count)),
        context(c.dtype, count),
        dquery(c.dtype, count),
        dkey(c.dtype, kv_count),
        dvalue(c.dtype, kv_count),
        log_sum_exp(c.shape.batch * c.shape.heads * c.shape.length),
        mask(KeyMask(c.shape)),
        sequence_ids(SequenceIds(c.shape)) {}

  float scale() const { return 1 / std::sqrt(static_cast<float>(c.shape.head_size)); }
  FlashMask masks() const {
    return {mask.data(), c.sequence_ids ? sequence_ids.data() : nullptr, c.slopes ? slopes : nullptr};
  }
  FlashReference Reference() {
    for (auto [buffer, to] : {std::pair{&query, &q}, std::pair{&key, &k}, std::pair{&value, &v}}) *to = buffer->values();
    return {c.shape, scale(), WithRate(c.rate), masks(), q.data(), k.data(), v.data()};
  }

  void Forward(int threads, Target target = BestTarget()) {
    Launch(FlashAttentionForward{c.shape, scale(), WithRate(c.rate), c.dtype, query.data(), key.data(), value.data(),
                                 masks(), context.data(), log_sum_exp.data()},
           ThreadedFor(threads), target);
  }
  void Backward(int threads, Target target = BestTarget()) {
    Launch(FlashAttentionBackward{c.shape, scale(), WithRate(c.rate), c.dtype, dcontext.data(), query.data(), key.data(),
                                  value.data(), masks(), context.data(), log_sum_exp.data(), dquery.data(), dkey.data(),
                                  dvalue.data()},
           ThreadedFor(threads), target);
  }

  const Case c;
  const int64_t count, kv_count;
  Buffer query, key, value, dcontext, context, dquery, dkey, dvalue;
  std::vector<float> log_sum_exp;
  std::vector<int32_t> mask;
  const std::vector<int32_t> sequence_ids;
  const float slopes[4] = {0.0625f, 0.003f, 0.5f, 0.01f};
  std::vector<double> q, k, v;
};

// Weights are rounded to 16 bits before the products, so an error is relative to the sum of magnitudes, which is about 1.
Tolerance ProductTolerance(DType dtype, double magnitude) {
  const double unit = dtype == DType::kFloat32 ? 2e-6 : dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7;
  return {unit, unit * magnitude};
}

// The reference takes longer than the kernels: all targets share what it gives.
TEST(FlashAttention, IsTheReferenceForwardAndBackward) {
  std::mt19937 random(1);
  for (const Case& c : Cases()) {
    Attention run(c, random);
    std::vector<double> context(run.count), log_sum_exp(run.log_sum_exp.size());
    std::vector<double> dquery(run.count), dkey(run.kv_count), dvalue(run.kv_count);
    const FlashReference reference = run.Reference();
    reference.Forward(context.data(), log_sum_exp.data());
    reference.Backward(run.dcontext.values().data(), dquery.data(), dkey.data(), dvalue.data());
    for (Target target : Targets()) {
      const std::string what = Describe(target, c);
      for (Buffer* to : {&run.context, &run.dquery, &run.dkey, &run.dvalue}) {
        std::memset(to->data(), 0xff, to->size_bytes());
      }
      run.log_sum_exp.assign(log_sum_exp.size(), NAN);
      run.Forward(2, target);
      run.Backward(2, target);
      ExpectClose(run.context.values(), context, ProductTolerance(c.dtype, 1), what + " context");
      for (size_t i = 0; i < log_sum_exp.size(); ++i) {
        if (log_sum_exp[i] == -INFINITY) {
          ASSERT_EQ(run.log_sum_exp[i], -INFINITY) << what;
        } else {
          ASSERT_NEAR(run.log_sum_exp[i], log_sum_exp[i], 5e-6) << what << " row " << i;
        }
      }
      const Tolerance tolerance = ProductTolerance(c.dtype, 4);
      ExpectClose(run.dquery.values(), dquery, tolerance, what + " dquery");
      ExpectClose(run.dkey.values(), dkey, tolerance, what + " dkey");
      ExpectClose(run.dvalue.values(), dvalue, tolerance, what + " dvalue");
    }
  }
}

TEST(FlashAttention, IsBitEqualForAnyNumberOfThreads) {
  for (DType dtype : kDTypes) {
    const Case c{dtype, {2, 333, 6, 40, 0, 6, true, -1, 2}, 0.1, true};
    std::vector<std::vector<double>> first;
    for (int threads : {1, 2, 5}) {
      std::mt19937 random(3);
      Attention run(c, random);
      run.Forward(threads);
      run.Backward(threads);
      const std::vector<std::vector<double>> results = {run.context.values(), run.dquery.values(), run.dkey.values(),
                                                        run.dvalue.values()};
      if (first.empty()) first = results;
      EXPECT_EQ(results, first) << Name(dtype) << " threads " << threads;
    }
  }
}

// What is masked as a whole block is not read: infinity there would make every result that it reaches NaN.
TEST(FlashAttention, SkipsMaskedBlocks) {
  std::mt19937 random(4);
  for (DType dtype : kDTypes) {
    const Case c{dtype, {1, 512, 1, 64, 0, 1}, 0.1};
    Attention run(c, random);
    std::vector<double> keys = run.key.values(), values = run.value.values();
    for (int64_t i = 256 * 64; i < 512 * 64; ++i) keys[i] = values[i] = INFINITY;
    Buffer key(dtype, keys), value(dtype, values);
    std::vector<int32_t> mask(512, 1);
    std::fill(mask.begin() + 256, mask.end(), 0);
    Launch(FlashAttentionForward{c.shape, run.scale(), WithRate(c.rate), dtype, run.query.data(), key.data(),
                                 value.data(), {mask.data(), nullptr, nullptr}, run.context.data(),
                                 run.log_sum_exp.data()},
           SerialFor);
    for (double each : run.context.values()) ASSERT_TRUE(std::isfinite(each)) << Name(dtype);
  }
}

// Tiles outside of the window are not read: infinity there would make every result that it reaches NaN. A window as long as
// the row is none.
TEST(FlashAttention, SkipsWhatIsOutsideOfTheWindow) {
  constexpr int64_t kSize = 32, kFar = 640 * kSize;
  constexpr int64_t kNear = 384 * kSize;  // of the keys after it, some share a block with one that query 570 attends to
  for (DType dtype : kDTypes) {
    for (bool causal : {false, true}) {
      const auto results = [&](int64_t window, bool infinite) {
        std::mt19937 random(6);
        Attention run({dtype, {1, 1024, 1, kSize, 0, 1, causal, window}, 0.1}, random);
        std::fill(run.mask.begin(), run.mask.end(), 1);
        for (Buffer* buffer : {&run.query, &run.key, &run.value, &run.dcontext}) {
          std::vector<double> values = buffer->values();
          if (infinite) std::fill(values.begin() + kFar, values.end(), INFINITY);
          *buffer = Buffer(dtype, values);
        }
        run.Forward(2);
        run.Backward(2);
        std::vector<double> all;
        for (Buffer* buffer : {&run.context, &run.dquery, &run.dkey, &run.dvalue}) {
          const std::vector<double> values = buffer->values();
          all.insert(all.end(), values.begin(), values.begin() + kNear);
        }
        return all;
      };
      ExpectClose(results(70, true), results(70, false), {0, 0}, std::string(Name(dtype)) + (causal ? " causal" : ""));
      for (int64_t window : {int64_t{1024}, int64_t{1} << 40}) {
        EXPECT_EQ(results(window, false), results(-1, false)) << Name(dtype) << " window " << window;
      }
    }
  }
}

TEST(FlashAttention, MasksDoNotDependOnHowHeadsAndSamplesAreSplit) {
  std::mt19937 random(5);
  const FlashShape whole{2, 90, 4, 16, 0, 4}, part{1, 90, 2, 16, 2, 4};  // the last two heads of the second sample
  const int64_t count = 2 * 90 * 4 * 16;
  const std::vector<double> query = Normal(random, count), key = Normal(random, count), value = Normal(random, count);
  const auto of_part = [&](const std::vector<double>& all) {
    std::vector<double> some;
    for (int64_t token = 90; token < 180; ++token) {
      for (int64_t i = 32; i < 64; ++i) some.push_back(all[token * 64 + i]);
    }
    return some;
  };
  const std::vector<int32_t> mask(180, 1);
  const auto context = [&](const FlashShape& shape, const int64_t* position, Buffer q, Buffer k, Buffer v) {
    Dropout dropout = WithRate(0.3);
    dropout.position = position;
    Buffer result(DType::kFloat32, q.size_bytes() / 4);
    std::vector<float> log_sum_exp(shape.batch * shape.heads * shape.length);
    Launch(FlashAttentionForward{shape, 0.25f, dropout, DType::kFloat32, q.data(), k.data(), v.data(),
                                 {mask.data(), nullptr, nullptr}, result.data(), log_sum_exp.data()},
           SerialFor);
    return result.values();
  };
  const auto buffer = [](const std::vector<double>& values) { return Buffer(DType::kFloat32, values); };
  const int64_t second[] = {kPosition[0], kPosition[1] + 1};
  EXPECT_EQ(context(part, second, buffer(of_part(query)), buffer(of_part(key)), buffer(of_part(value))),
            of_part(context(whole, kPosition, buffer(query), buffer(key), buffer(value))));
}

}  // namespace
}  // namespace tftrain
