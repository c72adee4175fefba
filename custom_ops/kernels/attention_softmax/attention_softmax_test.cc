#include "custom_ops/kernels/attention_softmax/attention_softmax.h"

#include "custom_ops/kernels/attention_softmax/attention_softmax_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

constexpr float kScale = 0.25;
constexpr int64_t kPosition[] = {12, 34};

Dropout WithRate(double rate) { return {std::lround(rate * 256) * 256, int64_t{0x123456789abcdef}, 7, kPosition}; }

struct Case {
  Target target;
  DType dtype;
  AttentionShape shape;
  double rate;
};

// For all targets, which share what the slow reference gives.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes) {
    for (bool causal : {false, true}) {
      for (int64_t length : {1, 17, 64, 100}) {
        for (double rate : {0.0, 0.1}) cases.push_back({{}, dtype, {2, 3, length, length, 2, 8, causal}, rate});
      }
      cases.push_back({{}, dtype, {1, 1, 2, 2049, 0, 1, causal}, 0.5});
      cases.push_back({{}, dtype, {0, 2, 3, 3, 0, 2, causal}, 0.5});
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return std::string(Name(c.target)) + " " + Name(c.dtype) + " keys " + std::to_string(c.shape.keys) + " rate " +
         std::to_string(c.rate) + (c.shape.causal ? " causal" : "");
}

// The first sample has every third key padded from the first one on, so that a causal query has no key; the second sample
// has none at all.
std::vector<int32_t> KeyMask(const AttentionShape& shape) {
  std::vector<int32_t> mask(shape.batch * shape.keys);
  for (int64_t i = 0; i < std::min<int64_t>(shape.batch, 1) * shape.keys; ++i) mask[i] = i % 3 != 0 || shape.keys == 1;
  return mask;
}

// With infinity, which makes every result that it reaches infinite or NaN, where nothing is to be read.
std::vector<double> InfiniteBehindQueries(const AttentionShape& shape, std::vector<double> values) {
  if (!shape.causal) return values;
  for (int64_t i = 0; i < static_cast<int64_t>(values.size()); ++i) {
    const int64_t query = i / shape.keys % shape.queries;
    if (i % shape.keys > query + shape.keys - shape.queries) values[i] = INFINITY;
  }
  return values;
}

struct Attention {
  Attention(const Case& c, std::mt19937& random)
      : count(c.shape.rows() * c.shape.keys),
        mask(KeyMask(c.shape)),
        scores(c.dtype, InfiniteBehindQueries(c.shape, Normal(random, count, 0, 8))),
        probabilities(c.dtype, count),
        dropped(c.dtype, count) {
    Forward(c);
  }
  void Forward(const Case& c) {
    for (Buffer* buffer : {&probabilities, &dropped}) std::memset(buffer->data(), 0xff, buffer->size_bytes());
    Launch(AttentionSoftmaxForward{c.shape, kScale, WithRate(c.rate), c.dtype, scores.data(), mask.data(),
                                   probabilities.data(), c.rate > 0 ? dropped.data() : nullptr},
           ThreadedFor(3), c.target);
  }
  int64_t count;
  std::vector<int32_t> mask;
  Buffer scores, probabilities, dropped;
};

TEST(AttentionSoftmax, IsTheSoftmaxOverUnmaskedKeys) {
  std::mt19937 random(1);
  for (Case& c : Cases()) {
    Attention run(c, random);
    std::vector<double> probabilities(run.count), dropped(run.count);
    ReferenceAttentionSoftmax(c.shape, kScale, WithRate(c.rate), run.scores.values().data(), run.mask.data(),
                              probabilities.data(), dropped.data());
    for (Target target : Targets()) {
      c.target = target;
      run.Forward(c);
      ExpectClose(run.probabilities.values(), probabilities, ForwardTolerance(c.dtype), Describe(c) + " probabilities");
      if (c.rate > 0) ExpectClose(run.dropped.values(), dropped, ForwardTolerance(c.dtype), Describe(c) + " dropped");
    }
  }
}

TEST(AttentionSoftmax, GradientIsThatOfTheReference) {
  std::mt19937 random(2);
  for (Case& c : Cases()) {
    Attention run(c, random);
    Buffer ddropped(c.dtype, InfiniteBehindQueries(c.shape, Normal(random, run.count)));
    Buffer probabilities(c.dtype, InfiniteBehindQueries(c.shape, run.probabilities.values()));
    std::vector<double> expected(run.count);
    ReferenceAttentionSoftmaxGradient(c.shape, kScale, WithRate(c.rate), ddropped.values().data(),
                                      run.probabilities.values().data(), expected.data());
    for (Target target : Targets()) {
      c.target = target;
      Buffer dscores(c.dtype, run.count), dropped(c.dtype, run.count);
      Launch(AttentionSoftmaxBackward{c.shape, kScale, WithRate(c.rate), c.dtype, ddropped.data(),
                                      probabilities.data(), dscores.data(), c.rate > 0 ? dropped.data() : nullptr},
             ThreadedFor(2), target);
      ExpectClose(dscores.values(), expected, GradientTolerance(c.dtype), Describe(c) + " dscores");
      if (c.rate > 0) {
        ExpectClose(dropped.values(), run.dropped.values(), ForwardTolerance(c.dtype), Describe(c) + " dropped again");
      }
    }
  }
}

// Heads with the same scores, so many that the results are streamed, against one head.
TEST(AttentionSoftmax, StreamsCausalRows) {
  std::mt19937 random(5);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t length = 96;  // rows are whole cache lines
    const AttentionShape one{1, 1, length, length, 0, 1, true};
    const int64_t heads = StreamedRows(length, dtype) / length + 1, count = length * length;
    const AttentionShape all{1, heads, length, length, 0, heads, true};
    Buffer scores(dtype, InfiniteBehindQueries(one, Normal(random, count))), probabilities(dtype, count),
        dscores(dtype, count);
    const int64_t bytes = scores.size_bytes();
    Buffer all_scores(dtype, heads * count), all_probabilities(dtype, heads * count), all_dscores(dtype, heads * count);
    for (int64_t i = 0; i < heads; ++i) {
      std::memcpy(static_cast<char*>(all_scores.data()) + i * bytes, scores.data(), bytes);
    }
    const std::vector<int32_t> mask(length, 1);
    const auto launch = [&](const AttentionShape& shape, Buffer& scores, Buffer& probabilities, Buffer& dscores) {
      void *const p = probabilities.data(), *const s = scores.data();
      Launch(AttentionSoftmaxForward{shape, kScale, {}, dtype, s, mask.data(), p, nullptr}, ThreadedFor(2));
      Launch(AttentionSoftmaxBackward{shape, kScale, {}, dtype, s, p, dscores.data(), nullptr}, ThreadedFor(2));
    };
    launch(one, scores, probabilities, dscores);
    launch(all, all_scores, all_probabilities, all_dscores);
    for (int64_t i = 0; i < heads; ++i) {
      for (auto [many, single] : {std::pair{&all_probabilities, &probabilities}, std::pair{&all_dscores, &dscores}}) {
        const char* const head = static_cast<const char*>(many->data()) + i * bytes;
        ASSERT_EQ(std::memcmp(head, single->data(), bytes), 0) << Name(dtype) << " head " << i;
      }
    }
  }
}

TEST(AttentionSoftmax, MasksDoNotDependOnHowHeadsAndSamplesAreSplit) {
  std::mt19937 random(3);
  const AttentionShape whole{2, 4, 9, 9, 0, 4};
  const int64_t per_head = 9 * 9;
  const Dropout dropout = WithRate(0.3);
  Buffer scores(DType::kFloat32, std::vector<double>(whole.rows() * 9, 0.0));
  const std::vector<int32_t> mask(2 * 9, 1);
  const auto dropped = [&](const AttentionShape& shape, const int64_t* position) {
    Buffer probabilities(DType::kFloat32, shape.rows() * 9), out(DType::kFloat32, shape.rows() * 9);
    Dropout here = dropout;
    here.position = position;
    Launch(AttentionSoftmaxForward{shape, 1, here, DType::kFloat32, scores.data(), mask.data(), probabilities.data(),
                                   out.data()},
           SerialFor);
    return out.values();
  };
  const std::vector<double> all = dropped(whole, kPosition);
  for (int64_t sample = 0; sample < 2; ++sample) {
    const int64_t position[] = {kPosition[0], kPosition[1] + sample};
    for (int64_t head = 0; head < 4; head += 2) {
      const std::vector<double> part = dropped({1, 2, 9, 9, head, 4}, position);
      const auto begin = all.begin() + (sample * 4 + head) * per_head;
      EXPECT_EQ(part, std::vector<double>(begin, begin + 2 * per_head));
    }
  }
}

TEST(AttentionSoftmax, KeepsTheRateWithinFourSigma) {
  const AttentionShape shape{4, 8, 64, 64, 0, 8};
  const int64_t count = shape.rows() * shape.keys;
  Buffer scores(DType::kFloat32, std::vector<double>(count, 0.0)), probabilities(DType::kFloat32, count),
      dropped(DType::kFloat32, count);
  const std::vector<int32_t> mask(shape.batch * shape.keys, 1);
  for (double rate : {0.1, 0.5}) {
    Launch(AttentionSoftmaxForward{shape, 1, WithRate(rate), DType::kFloat32, scores.data(), mask.data(),
                                   probabilities.data(), dropped.data()},
           SerialFor);
    double kept = 0;
    for (double value : dropped.values()) kept += value > 0;
    EXPECT_NEAR(kept / count, 1 - rate, 4 * std::sqrt(rate * (1 - rate) / count));
  }
}

TEST(AttentionSoftmax, KeepsWhatIsNotANumber) {
  for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
    for (int64_t keys : {1, 33, 64}) {
      const AttentionShape shape{1, 1, 3, keys, 0, 1};
      std::vector<double> values(3 * keys, 0.5);
      std::fill_n(values.begin() + keys, keys, NAN);
      Buffer scores(dtype, values);
      const std::vector<int32_t> mask(keys, 1);
      for (Target target : Targets()) {
        Buffer probabilities(dtype, 3 * keys);
        Launch(AttentionSoftmaxForward{shape, kScale, {}, dtype, scores.data(), mask.data(), probabilities.data(),
                                       nullptr},
               SerialFor, target);
        const std::vector<double> found = probabilities.values();
        for (int64_t i = 0; i < 3 * keys; ++i) {
          ASSERT_EQ(std::isnan(found[i]), i / keys == 1) << Name(target) << " " << Name(dtype) << " element " << i;
        }
      }
    }
  }
}

TEST(AttentionSoftmax, LeavesItsInputsAlone) {
  std::mt19937 random(4);
  const Case c{BestTarget(), DType::kBFloat16, {1, 2, 33, 33, 0, 2}, 0.1};
  std::mt19937 again = random;
  Attention run(c, random);
  EXPECT_EQ(run.scores.values(), Buffer(c.dtype, Normal(again, run.count, 0, 8)).values());
}

}  // namespace
}  // namespace tftrain
