#include "custom_ops/kernels/optimizer/lamb.h"

#include "custom_ops/kernels/optimizer/lamb_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

constexpr float kEpsilon = 1e-6;
constexpr UpdateScalars kScalars = {0.5, 1e-2, 0.9, 0.999, -0.1, 0.001, 2.5, 120};

// Tensors of awkward sizes, and their state before an update. Gradients are of `dtype`; if that has 16 bits, the tensors
// with odd numbers have copies.
struct Model {
  explicit Model(std::mt19937& random, DType dtype = DType::kFloat32) : sizes{1, 7, 0, 1000, 70001}, dtype(dtype) {
    for (int64_t size : sizes) {
      weights.emplace_back(DType::kFloat32, Normal(random, size));
      gradients.emplace_back(dtype, Normal(random, size));
      copies.emplace_back(dtype, std::vector<double>(size, 99));
      m.emplace_back(DType::kFloat32, Normal(random, size, 0, 0.1));
      std::vector<double> squares = Normal(random, size, 0, 0.1);
      for (double& value : squares) value *= value;
      v.emplace_back(DType::kFloat32, squares);
      decays.push_back(size % 2 ? 0.01 : 0);
    }
  }

  std::vector<UpdateTensor> tensors() {
    std::vector<UpdateTensor> result;
    for (size_t i = 0; i < sizes.size(); ++i) {
      result.push_back({sizes[i], gradients[i].data(), static_cast<float*>(m[i].data()),
                        static_cast<float*>(v[i].data()), static_cast<float*>(weights[i].data()), dtype, dtype,
                        has_copy(i) ? copies[i].data() : nullptr});
    }
    return result;
  }

  bool has_copy(size_t i) const { return dtype != DType::kFloat32 && i % 2 == 1; }

  std::vector<std::vector<double>> state() {
    std::vector<std::vector<double>> result;
    for (auto* buffers : {&weights, &m, &v}) {
      for (Buffer& buffer : *buffers) result.push_back(buffer.values());
    }
    return result;
  }

  std::vector<int64_t> sizes;
  DType dtype;
  std::vector<Buffer> weights, gradients, m, v, copies;
  std::vector<float> decays;
};

struct LambResult {
  std::vector<float> weight_squares, update_squares;
};

LambResult RunLamb(Model& model, const UpdateScalars& scalars, const ParallelFor& parallel_for, Target target) {
  LambResult result{std::vector<float>(model.sizes.size()), std::vector<float>(model.sizes.size())};
  Launch(LambMoments{model.tensors(), kEpsilon, &scalars, model.decays.data(), result.weight_squares.data(),
                     result.update_squares.data()},
         parallel_for, target);
  std::vector<float> rates(model.sizes.size(), 0.25f * scalars.learning_rate);
  Launch(LambWeights{model.tensors(), kEpsilon, &scalars, model.decays.data(), rates.data()}, parallel_for, target);
  return result;
}

TEST(Lamb, MomentsWeightsAndSquaresAreThoseOfTheReference) {
  for (Target target : Targets()) {
    std::mt19937 random(1);
    Model before(random);
    random.seed(1);
    Model model(random);
    const LambResult result = RunLamb(model, kScalars, ThreadedFor(3), target);
    for (size_t t = 0; t < model.sizes.size(); ++t) {
      const std::vector<double> w = before.weights[t].values(), m = before.m[t].values(), v = before.v[t].values(),
                                g = before.gradients[t].values();
      std::vector<double> next_w, next_m, next_v;
      double weight_squares = 0, update_squares = 0;
      for (size_t i = 0; i < w.size(); ++i) {
        ReferenceParameter parameter{w[i], m[i], v[i]};
        ReferenceMoments(kScalars, g[i], &parameter);
        const double update = ReferenceUpdate(kScalars, kEpsilon, model.decays[t], parameter);
        weight_squares += w[i] * w[i];
        update_squares += update * update;
        next_w.push_back(w[i] - 0.25 * kScalars.learning_rate * update);
        next_m.push_back(parameter.m);
        next_v.push_back(parameter.v);
      }
      const std::string what = std::string(Name(target)) + " tensor " + std::to_string(t);
      ExpectClose(model.weights[t].values(), next_w, {1e-6, 1e-6}, what + " weight");
      ExpectClose(model.m[t].values(), next_m, {1e-6, 1e-7}, what + " m");
      ExpectClose(model.v[t].values(), next_v, {1e-6, 1e-7}, what + " v");
      EXPECT_NEAR(result.weight_squares[t], weight_squares, 1e-5 * weight_squares) << what;
      EXPECT_NEAR(result.update_squares[t], update_squares, 1e-5 * update_squares) << what;
    }
  }
}

TEST(Lamb, AdamWIsLambWithTheLearningRateForItsRate) {
  for (Target target : Targets()) {
    std::mt19937 random(2);
    Model lamb(random);
    random.seed(2);
    Model adamw(random);
    UpdateScalars scalars = kScalars;
    RunLamb(lamb, scalars, ThreadedFor(2), target);
    scalars.learning_rate *= 0.25f;
    Launch(AdamW{adamw.tensors(), kEpsilon, &scalars, adamw.decays.data()}, ThreadedFor(3), target);
    EXPECT_EQ(lamb.state(), adamw.state()) << Name(target);
  }
}

// The same bits as with gradients widened before, and weights rounded after.
TEST(Lamb, Reads16BitGradientsAndWrites16BitCopies) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (Target target : Targets()) {
      for (bool adamw : {false, true}) {
        std::mt19937 random(6);
        Model narrow(random, dtype);
        random.seed(6);
        Model wide(random);
        for (size_t t = 0; t < wide.sizes.size(); ++t) {
          wide.gradients[t] = Buffer(DType::kFloat32, narrow.gradients[t].values());
        }
        for (Model* model : {&narrow, &wide}) {
          if (adamw) {
            Launch(AdamW{model->tensors(), kEpsilon, &kScalars, model->decays.data()}, ThreadedFor(2), target);
          } else {
            RunLamb(*model, kScalars, ThreadedFor(2), target);
          }
        }
        EXPECT_EQ(narrow.state(), wide.state()) << Name(target);
        for (size_t t = 0; t < wide.sizes.size(); ++t) {
          const std::vector<double> expected = narrow.has_copy(t)
                                                   ? Buffer(dtype, wide.weights[t].values()).values()
                                                   : std::vector<double>(wide.sizes[t], 99);
          EXPECT_EQ(narrow.copies[t].values(), Buffer(dtype, expected).values()) << Name(target) << " tensor " << t;
        }
      }
    }
  }
}

TEST(Lamb, AFactorOfZeroChangesNothing) {
  std::mt19937 random(3);
  Model model(random);
  static_cast<float*>(model.gradients[3].data())[5] = INFINITY;
  const std::vector<std::vector<double>> before = model.state();
  UpdateScalars scalars = kScalars;
  scalars.gradient_factor = 0;
  const LambResult result = RunLamb(model, scalars, SerialFor, BestTarget());
  Launch(AdamW{model.tensors(), kEpsilon, &scalars, model.decays.data()}, SerialFor);
  EXPECT_EQ(model.state(), before);
  EXPECT_EQ(result.update_squares, std::vector<float>(model.sizes.size(), 0.0f));
}

TEST(Lamb, IsBitwiseTheSameForAnyNumberOfThreads) {
  std::vector<std::vector<std::vector<double>>> states;
  std::vector<std::vector<float>> squares;
  for (int threads : {1, 2, 5}) {
    std::mt19937 random(4);
    Model model(random);
    squares.push_back(RunLamb(model, kScalars, ThreadedFor(threads), BestTarget()).update_squares);
    states.push_back(model.state());
  }
  EXPECT_EQ(states[0], states[1]);
  EXPECT_EQ(states[0], states[2]);
  EXPECT_EQ(squares[0], squares[1]);
  EXPECT_EQ(squares[0], squares[2]);
}

TEST(Lamb, SquaredNormsOfManyTensors) {
  for (Target target : Targets()) {
    std::mt19937 random(5);
    const std::vector<DType> dtypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kBFloat16,
                                       DType::kFloat16};
    Model model(random);
    SquaredNorms args{model.sizes, {}, dtypes, nullptr};
    for (size_t t = 0; t < dtypes.size(); ++t) {
      model.gradients[t] = Buffer(dtypes[t], model.gradients[t].values());
      args.tensors.push_back(model.gradients[t].data());
    }
    std::vector<float> squares(model.sizes.size());
    args.squares = squares.data();
    Launch(args, ThreadedFor(3), target);
    for (size_t t = 0; t < squares.size(); ++t) {
      double expected = 0;
      for (double value : model.gradients[t].values()) expected += value * value;
      EXPECT_NEAR(squares[t], expected, 1e-6 * expected) << Name(target) << " tensor " << t;
    }
  }
}

}  // namespace
}  // namespace tftrain
