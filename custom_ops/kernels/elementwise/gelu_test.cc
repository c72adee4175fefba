#include "custom_ops/kernels/elementwise/gelu.h"

#include "custom_ops/kernels/elementwise/gelu_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

struct Case {
  Target target;
  DType dtype;
  DType parameter_dtype;
  bool approximate;
  int64_t rows;
  int64_t columns;
};

// For all targets, which share what the slow reference gives.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes) {
    for (bool approximate : {false, true}) {
      for (int columns : {1, 7, 64, 1000}) {
        for (int rows : {0, 1, columns > 100 ? 5 : 131}) {
          cases.push_back({{}, dtype, DType::kFloat32, approximate, rows, columns});
          if (dtype != DType::kFloat32) cases.push_back({{}, dtype, dtype, approximate, rows, columns});
        }
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return std::string(Name(c.target)) + " " + Name(c.dtype) + " bias " + Name(c.parameter_dtype) +
         (c.approximate ? " tanh " : " erf ") + std::to_string(c.rows) + "x" + std::to_string(c.columns);
}

struct Inputs {
  Inputs(const Case& c, std::mt19937& random)
      : x(c.dtype, Normal(random, c.rows * c.columns, 0, 2)),
        dy(c.dtype, Normal(random, c.rows * c.columns)),
        bias(c.parameter_dtype, Normal(random, c.columns)) {}
  Buffer x, dy, bias;
};

TEST(Gelu, IsTheReferenceOfTheBiasedInput) {
  std::mt19937 random(1);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    std::vector<double> expected(c.rows * c.columns);
    ReferenceGelu(in.x.values().data(), in.bias.values().data(), c.rows, c.columns, c.approximate, expected.data());
    for (Target target : Targets()) {
      c.target = target;
      Buffer y(c.dtype, c.rows * c.columns);
      Launch(GeluForward{c.rows, c.columns, c.approximate, c.dtype, c.parameter_dtype, in.x.data(), in.bias.data(),
                         y.data()},
             ThreadedFor(3), target);
      ExpectClose(y.values(), expected, ForwardTolerance(c.dtype), Describe(c));
    }
  }
}

TEST(Gelu, GradientsAreThoseOfTheReference) {
  std::mt19937 random(2);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    std::vector<double> expected(c.rows * c.columns), expected_dbias(c.columns);
    ReferenceGeluGradient(in.dy.values().data(), in.x.values().data(), in.bias.values().data(), c.rows, c.columns,
                          c.approximate, expected.data(), expected_dbias.data());
    Tolerance tolerance = c.parameter_dtype == DType::kFloat32 ? Tolerance{0, 0} : ForwardTolerance(c.parameter_dtype);
    tolerance.absolute += 5e-6 * std::sqrt(std::max<double>(1, c.rows));
    for (Target target : Targets()) {
      c.target = target;
      Buffer dx(c.dtype, c.rows * c.columns), dbias(c.parameter_dtype, c.columns);
      Launch(GeluBackward{c.rows, c.columns, c.approximate, c.dtype, c.parameter_dtype, in.dy.data(), in.x.data(),
                          in.bias.data(), dx.data(), dbias.data()},
             ThreadedFor(3), target);
      ExpectClose(dx.values(), expected, GradientTolerance(c.dtype), Describe(c) + " dx");
      ExpectClose(dbias.values(), expected_dbias, tolerance, Describe(c) + " dbias");
    }
  }
}

// fp32 numbers of every exponent and both signs: all that matter between 0 and 20, and the largest.
std::vector<float> WholeRange() {
  std::vector<float> values = {0.0f, -0.0f, 1e30f, -1e30f, 3e38f, -3e38f};
  for (uint32_t bits = 0x30000000; bits < 0x41a00000; bits += 997) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
    values.push_back(-value);
  }
  return values;
}

TEST(Gelu, IsRoundedAboutAsFp32OverTheWholeRange) {
  const std::vector<float> x = WholeRange();
  const int64_t count = x.size();
  const std::vector<float> ones(count, 1.0f);
  std::vector<float> y(count), slope(count);
  const double unit = 0x1p-24;
  for (bool approximate : {false, true}) {
    std::vector<GeluValue> expected;
    for (float each : x) expected.push_back(ReferenceGelu(each, approximate));
    for (Target target : Targets()) {
      Launch(GeluForward{1, count, approximate, DType::kFloat32, DType::kFloat32, x.data(), nullptr, y.data()},
             SerialFor, target);
      Launch(GeluBackward{1, count, approximate, DType::kFloat32, DType::kFloat32, ones.data(), x.data(), nullptr,
                          slope.data(), nullptr},
             SerialFor, target);
      // Without FMA, and in the tanh form, the tail's exponent is rounded: e^-t has a relative error of t units.
      const bool exact_exponent = !approximate && target != Target::kPortable;
      for (int64_t i = 0; i < count; ++i) {
        const double units = x[i] > -2 || exact_exponent ? 8 : 200;
        ASSERT_NEAR(y[i], expected[i].value, units * unit * std::fabs(expected[i].value) + 1e-36)
            << Name(target) << (approximate ? " tanh " : " erf ") << x[i];
        ASSERT_NEAR(slope[i], expected[i].slope, 4 * unit)
            << Name(target) << (approximate ? " tanh " : " erf ") << x[i];
      }
    }
  }
}

// All finite numbers of a type.
std::vector<double> AllNumbers(DType dtype) {
  std::vector<double> values;
  for (int bits = 0; bits < 65536; ++bits) {
    const double value = dtype == DType::kFloat16 ? DecodeBits(bits, Half()) : DecodeBits(bits, BFloat16());
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

TEST(Gelu, IsWithinOneUnitForEveryNumberOfSixteenBits) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const std::vector<double> values = AllNumbers(dtype);
    const int64_t count = values.size();
    Buffer x(dtype, values), y(dtype, count);
    const double unit = dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7;  // the last place of a number from 1 to 2
    for (bool approximate : {false, true}) {
      std::vector<double> expected;
      for (double value : values) expected.push_back(ReferenceGelu(value, approximate).value);
      for (Target target : Targets()) {
        Launch(GeluForward{1, count, approximate, dtype, dtype, x.data(), nullptr, y.data()}, SerialFor, target);
        const std::vector<double> actual = y.values();
        for (int64_t i = 0; i < count; ++i) {
          ASSERT_NEAR(actual[i], expected[i], 0.7 * unit * std::fabs(expected[i]) + 1e-7)
              << Name(target) << " " << Name(dtype) << (approximate ? " tanh " : " erf ") << values[i];
        }
      }
    }
  }
}

TEST(Gelu, TakesInfinityAndNan) {
  const std::vector<float> x = {INFINITY, -INFINITY, NAN};
  const std::vector<float> ones(3, 1.0f);
  for (Target target : Targets()) {
    for (bool approximate : {false, true}) {
      std::vector<float> y(3), slope(3);
      Launch(GeluForward{1, 3, approximate, DType::kFloat32, DType::kFloat32, x.data(), nullptr, y.data()}, SerialFor,
             target);
      Launch(GeluBackward{1, 3, approximate, DType::kFloat32, DType::kFloat32, ones.data(), x.data(), nullptr,
                          slope.data(), nullptr},
             SerialFor, target);
      EXPECT_EQ(y[0], INFINITY);
      EXPECT_EQ(y[1], 0);
      EXPECT_TRUE(std::isnan(y[2]));
      EXPECT_EQ(slope[0], 1);
      EXPECT_EQ(slope[1], 0);
      EXPECT_TRUE(std::isnan(slope[2]));
    }
  }
}

TEST(Gelu, IsBitwiseTheSameForAnyNumberOfThreads) {
  std::mt19937 random(4);
  const Case c{BestTarget(), DType::kFloat32, DType::kFloat32, false, 1000, 96};
  Inputs in(c, random);
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 5}) {
    Buffer dx(c.dtype, c.rows * c.columns), dbias(c.dtype, c.columns);
    Launch(GeluBackward{c.rows, c.columns, c.approximate, c.dtype, c.dtype, in.dy.data(), in.x.data(), in.bias.data(),
                        dx.data(), dbias.data()},
           ThreadedFor(threads), c.target);
    results.push_back(dbias.values());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Gelu, StreamsLargeResultsIntact) {
  std::mt19937 random(5);
  for (DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t columns = 256;
    const int64_t rows = StreamedRows(columns, dtype);
    Inputs in(Case{BestTarget(), dtype, dtype, false, 1, columns}, random);
    Buffer x(dtype, rows * columns), y(dtype, rows * columns);
    for (int64_t i = 0; i < rows; ++i) {
      std::memcpy(static_cast<char*>(x.data()) + i * in.x.size_bytes(), in.x.data(), in.x.size_bytes());
    }
    Launch(GeluForward{rows, columns, false, dtype, dtype, x.data(), in.bias.data(), y.data()}, ThreadedFor(2));
    const char* result = static_cast<const char*>(y.data());
    for (int64_t i = 1; i < rows; ++i) {
      ASSERT_EQ(std::memcmp(result, result + i * in.x.size_bytes(), in.x.size_bytes()), 0) << "row " << i;
    }
  }
}

}  // namespace
}  // namespace tftrain
