#include "custom_ops/kernels/layer_norm/layer_norm.h"

#include "custom_ops/kernels/layer_norm/layer_norm_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

constexpr float kEpsilon = 1e-5;

struct Case {
  bool centred;
  Target target;
  DType dtype;
  DType parameter_dtype;
  int64_t rows;
  int64_t hidden;
};

// For all targets, which share what the slow reference gives.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (bool centred : {true, false}) {
    for (DType dtype : kDTypes) {
      for (int hidden : {1, 7, 64, 1000, 2560}) {
        for (int rows : {0, 1, hidden > 100 ? 5 : 131}) {
          cases.push_back({centred, {}, dtype, DType::kFloat32, rows, hidden});
          if (dtype != DType::kFloat32) cases.push_back({centred, {}, dtype, dtype, rows, hidden});
        }
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return std::string(c.centred ? "LayerNorm " : "RMSNorm ") + Name(c.target) + " " + Name(c.dtype) + " parameters " +
         Name(c.parameter_dtype) + " " + std::to_string(c.rows) + "x" + std::to_string(c.hidden);
}

struct Inputs {
  Inputs(const Case& c, std::mt19937& random)
      : x(c.dtype, Normal(random, c.rows * c.hidden, 0.5, 2)),
        dy(c.dtype, Normal(random, c.rows * c.hidden)),
        gamma(c.parameter_dtype, Normal(random, c.hidden, 1, 0.3)),
        beta(c.parameter_dtype, Normal(random, c.hidden)) {}
  Buffer x, dy, gamma, beta;
};

struct Outputs {
  explicit Outputs(const Case& c)
      : y(c.dtype, c.rows * c.hidden), mean(c.rows), rstd(c.rows) {}
  Buffer y;
  std::vector<float> mean, rstd;
};

// RMSNorm gets null for what it does not have.
template <typename T>
T* IfCentred(const Case& c, T* data) {
  return c.centred ? data : nullptr;
}

void Forward(const Case& c, Inputs& in, Outputs& out, const ParallelFor& parallel_for) {
  Launch(LayerNormForward{c.rows, c.hidden, c.centred, kEpsilon, c.dtype, c.parameter_dtype, in.x.data(),
                          in.gamma.data(), IfCentred(c, in.beta.data()), out.y.data(), IfCentred(c, out.mean.data()),
                          out.rstd.data()},
         parallel_for, c.target);
}

struct Gradients {
  explicit Gradients(const Case& c)
      : dx(c.dtype, c.rows * c.hidden), dgamma(c.parameter_dtype, c.hidden), dbeta(c.parameter_dtype, c.hidden) {}
  Buffer dx, dgamma, dbeta;
};

void Backward(const Case& c, Inputs& in, Outputs& out, Gradients& gradients, const ParallelFor& parallel_for) {
  Launch(LayerNormBackward{c.rows, c.hidden, c.centred, c.dtype, c.parameter_dtype, in.dy.data(), in.x.data(),
                           in.gamma.data(), IfCentred(c, out.mean.data()), out.rstd.data(), gradients.dx.data(),
                           gradients.dgamma.data(), IfCentred(c, gradients.dbeta.data())},
         parallel_for, c.target);
}

TEST(LayerNorm, NormalizesRows) {
  std::mt19937 random(1);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    std::vector<double> expected(c.rows * c.hidden);
    ReferenceLayerNorm(in.x.values().data(), in.gamma.values().data(), in.beta.values().data(), c.rows, c.hidden,
                       c.centred, kEpsilon, expected.data());
    for (Target target : Targets()) {
      c.target = target;
      Outputs out(c);
      Forward(c, in, out, ThreadedFor(3));
      ExpectClose(out.y.values(), expected, ForwardTolerance(c.dtype), Describe(c) + " y");
    }
  }
}

TEST(LayerNorm, GradientsAreThoseOfTheReference) {
  std::mt19937 random(3);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    std::vector<double> expected(c.rows * c.hidden), expected_dgamma(c.hidden), expected_dbeta(c.hidden);
    ReferenceLayerNormGradient(in.dy.values().data(), in.x.values().data(), in.gamma.values().data(), c.rows, c.hidden,
                               c.centred, kEpsilon, expected.data(), expected_dgamma.data(), expected_dbeta.data());
    Tolerance tolerance = c.parameter_dtype == DType::kFloat32 ? Tolerance{0, 0} : ForwardTolerance(c.parameter_dtype);
    tolerance.absolute += 5e-6 * std::sqrt(std::max<double>(1, c.rows));
    for (Target target : Targets()) {
      c.target = target;
      Outputs out(c);
      Forward(c, in, out, SerialFor);
      Gradients gradients(c);
      Backward(c, in, out, gradients, ThreadedFor(3));
      ExpectClose(gradients.dx.values(), expected, GradientTolerance(c.dtype), Describe(c) + " dx");
      ExpectClose(gradients.dgamma.values(), expected_dgamma, tolerance, Describe(c) + " dgamma");
      ExpectClose(gradients.dbeta.values(), expected_dbeta, tolerance, Describe(c) + " dbeta");
    }
  }
}

TEST(LayerNorm, IsBitwiseTheSameForAnyNumberOfThreads) {
  std::mt19937 random(4);
  for (bool centred : {true, false}) {
    const Case c{centred, BestTarget(), DType::kFloat32, DType::kFloat32, 1000, 96};
    Inputs in(c, random);
    std::vector<std::vector<double>> results;
    for (int threads : {1, 2, 5}) {
      Outputs out(c);
      Forward(c, in, out, ThreadedFor(threads));
      Gradients gradients(c);
      Backward(c, in, out, gradients, ThreadedFor(threads));
      std::vector<double> all = gradients.dgamma.values();
      for (Buffer* buffer : {&gradients.dbeta, &gradients.dx, &out.y}) {
        const std::vector<double> values = buffer->values();
        all.insert(all.end(), values.begin(), values.end());
      }
      results.push_back(all);
    }
    EXPECT_EQ(results[0], results[1]) << Describe(c);
    EXPECT_EQ(results[0], results[2]) << Describe(c);
  }
}

// A row with a number that is not finite does not change another row.
TEST(LayerNorm, KeepsNumbersThatAreNotFiniteInTheirRow) {
  std::mt19937 random(7);
  for (bool centred : {true, false}) {
    for (Target target : Targets()) {
      const Case c{centred, target, DType::kFloat32, DType::kFloat32, 3, 37};
      Inputs in(c, random);
      float* const x = static_cast<float*>(in.x.data());
      x[3] = INFINITY, x[2 * c.hidden + 36] = NAN;
      Outputs out(c);
      Gradients gradients(c);
      Forward(c, in, out, SerialFor);
      Backward(c, in, out, gradients, SerialFor);
      const std::vector<double> y = out.y.values(), dx = gradients.dx.values();
      for (int64_t i = 0; i < c.rows * c.hidden; ++i) {
        const int64_t row = i / c.hidden;
        // 1 / sqrt(infinity) is 0, and so is everything else in a row that RMSNorm divides by it.
        const bool zero = !centred && row == 0 && i != 3;
        ASSERT_EQ(std::isfinite(y[i]), row == 1 || zero) << Describe(c) << " y " << i;
        ASSERT_EQ(std::isfinite(dx[i]), row == 1) << Describe(c) << " dx " << i;
        if (zero) {
          ASSERT_EQ(y[i], 0) << Describe(c) << " y " << i;
        }
      }
    }
  }
}

TEST(LayerNorm, KeepsPrecisionFarFromZero) {
  // A variance computed as mean of squares minus squared mean would have no correct digit.
  std::mt19937 random(5);
  const Case c{true, BestTarget(), DType::kFloat32, DType::kFloat32, 5, 768};
  Inputs in(c, random);
  in.x = Buffer(c.dtype, Normal(random, c.rows * c.hidden, 1000, 1));
  // The tolerance is twice the spacing of fp32 numbers near 1000, which gamma would scale.
  in.gamma = Buffer(c.dtype, std::vector<double>(c.hidden, 1));
  Outputs out(c);
  Forward(c, in, out, SerialFor);
  std::vector<double> expected(c.rows * c.hidden);
  ReferenceLayerNorm(in.x.values().data(), in.gamma.values().data(), in.beta.values().data(), c.rows, c.hidden,
                     c.centred, kEpsilon, expected.data());
  ExpectClose(out.y.values(), expected, {0, 1000 * 0x1p-23}, "y");
}

TEST(LayerNorm, StreamsLargeResultsIntact) {
  std::mt19937 random(6);
  for (const auto& [dtype, centred] : {std::pair(DType::kFloat32, true), std::pair(DType::kBFloat16, true),
                                       std::pair(DType::kBFloat16, false)}) {
    const int64_t hidden = 256;
    const Case c{centred, BestTarget(), dtype, dtype, StreamedRows(hidden, dtype), hidden};
    Inputs in(Case{centred, c.target, dtype, dtype, 1, hidden}, random);
    std::vector<char> x(c.rows * hidden * SizeOf(dtype));
    for (int64_t i = 0; i < c.rows; ++i) {
      std::memcpy(x.data() + i * in.x.size_bytes(), in.x.data(), in.x.size_bytes());
    }
    Outputs out(c);
    Launch(LayerNormForward{c.rows, hidden, centred, kEpsilon, dtype, dtype, x.data(), in.gamma.data(),
                            IfCentred(c, in.beta.data()), out.y.data(), IfCentred(c, out.mean.data()),
                            out.rstd.data()},
           ThreadedFor(2), c.target);
    const char* y = static_cast<const char*>(out.y.data());
    for (int64_t i = 1; i < c.rows; ++i) {
      ASSERT_EQ(std::memcmp(y, y + i * in.x.size_bytes(), in.x.size_bytes()), 0) << "row " << i;
    }
  }
}

}  // namespace
}  // namespace tftrain
