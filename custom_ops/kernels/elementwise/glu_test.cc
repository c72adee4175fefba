#include "custom_ops/kernels/elementwise/glu.h"

#include "custom_ops/kernels/elementwise/glu_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

struct Case {
  Target target;
  DType dtype;
  Activation activation;
  int64_t rows;
  int64_t columns;
};

constexpr Activation kActivations[] = {Activation::kGeluErf, Activation::kGeluTanh, Activation::kSilu};

const char* Name(Activation activation) {
  const char* const names[] = {" gelu erf ", " gelu tanh ", " silu "};
  return names[static_cast<int>(activation)];
}

// For all targets, which share what the slow reference gives.
std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (DType dtype : kDTypes) {
    for (Activation activation : kActivations) {
      for (int columns : {1, 7, 64, 1000}) {
        for (int rows : {0, 1, columns > 100 ? 5 : 131}) cases.push_back({{}, dtype, activation, rows, columns});
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return std::string(Name(c.target)) + " " + Name(c.dtype) + Name(c.activation) + std::to_string(c.rows) + "x" +
         std::to_string(c.columns);
}

struct Inputs {
  Inputs(const Case& c, std::mt19937& random)
      : gate(c.dtype, Normal(random, c.rows * c.columns, 0, 2)),
        up(c.dtype, Normal(random, c.rows * c.columns)),
        dy(c.dtype, Normal(random, c.rows * c.columns)),
        gate_bias(DType::kFloat32, Normal(random, c.columns)),
        up_bias(DType::kFloat32, Normal(random, c.columns)) {}
  Buffer gate, up, dy, gate_bias, up_bias;
};

struct Gradients {
  explicit Gradients(const Case& c)
      : dgate(c.dtype, c.rows * c.columns),
        dup(c.dtype, c.rows * c.columns),
        dgate_bias(DType::kFloat32, c.columns),
        dup_bias(DType::kFloat32, c.columns) {}
  Buffer dgate, dup, dgate_bias, dup_bias;
};

void Backward(const Case& c, Inputs& in, Gradients& out, const ParallelFor& parallel_for) {
  Launch(GluBackward{c.rows, c.columns, c.activation, c.dtype, DType::kFloat32, in.dy.data(), in.gate.data(),
                     in.up.data(), in.gate_bias.data(), in.up_bias.data(), out.dgate.data(), out.dup.data(),
                     out.dgate_bias.data(), out.dup_bias.data()},
         parallel_for, c.target);
}

TEST(Glu, IsTheReferenceOfTheBiasedInputs) {
  std::mt19937 random(1);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    std::vector<double> expected(c.rows * c.columns);
    ReferenceGlu(in.gate.values().data(), in.up.values().data(), in.gate_bias.values().data(),
                 in.up_bias.values().data(), c.rows, c.columns, c.activation, expected.data());
    for (Target target : Targets()) {
      c.target = target;
      Buffer y(c.dtype, c.rows * c.columns);
      Launch(GluForward{c.rows, c.columns, c.activation, c.dtype, DType::kFloat32, in.gate.data(), in.up.data(),
                        in.gate_bias.data(), in.up_bias.data(), y.data()},
             ThreadedFor(3), target);
      ExpectClose(y.values(), expected, ForwardTolerance(c.dtype), Describe(c));
    }
  }
}

TEST(Glu, GradientsAreThoseOfTheReference) {
  std::mt19937 random(2);
  for (Case& c : Cases()) {
    Inputs in(c, random);
    const int64_t count = c.rows * c.columns;
    std::vector<double> dgate(count), dup(count), dgate_bias(c.columns), dup_bias(c.columns);
    ReferenceGluGradient(in.dy.values().data(), in.gate.values().data(), in.up.values().data(),
                         in.gate_bias.values().data(), in.up_bias.values().data(), c.rows, c.columns, c.activation,
                         dgate.data(), dup.data(), dgate_bias.data(), dup_bias.data());
    const double absolute = 5e-6 * std::sqrt(std::max<double>(1, c.rows));
    for (Target target : Targets()) {
      c.target = target;
      Gradients out(c);
      Backward(c, in, out, ThreadedFor(3));
      ExpectClose(out.dgate.values(), dgate, GradientTolerance(c.dtype), Describe(c) + " dgate");
      ExpectClose(out.dup.values(), dup, GradientTolerance(c.dtype), Describe(c) + " dup");
      ExpectClose(out.dgate_bias.values(), dgate_bias, {0, absolute}, Describe(c) + " dgate_bias");
      ExpectClose(out.dup_bias.values(), dup_bias, {0, absolute}, Describe(c) + " dup_bias");
    }
  }
}

TEST(Glu, IsBitwiseTheSameForAnyNumberOfThreads) {
  std::mt19937 random(3);
  const Case c{BestTarget(), DType::kFloat32, Activation::kSilu, 1000, 96};
  Inputs in(c, random);
  std::vector<std::vector<double>> results;
  for (int threads : {1, 2, 5}) {
    Gradients out(c);
    Backward(c, in, out, ThreadedFor(threads));
    std::vector<double> all = out.dgate_bias.values();
    for (double value : out.dup_bias.values()) all.push_back(value);
    results.push_back(all);
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Glu, NeedsNoBiases) {
  std::mt19937 random(4);
  for (Target target : Targets()) {
    const Case c{target, DType::kFloat32, Activation::kSilu, 3, 37};
    Inputs in(c, random);
    in.gate_bias = Buffer(DType::kFloat32, std::vector<double>(c.columns, 0.0));
    in.up_bias = in.gate_bias;
    Gradients with(c), without(c);
    Backward(c, in, with, SerialFor);
    Launch(GluBackward{c.rows, c.columns, c.activation, c.dtype, DType::kFloat32, in.dy.data(), in.gate.data(),
                       in.up.data(), nullptr, nullptr, without.dgate.data(), without.dup.data(), nullptr, nullptr},
           SerialFor, target);
    EXPECT_EQ(with.dgate.values(), without.dgate.values());
    EXPECT_EQ(with.dup.values(), without.dup.values());
  }
}

// Values and slopes of silu alone: up and dy are ones.
struct SiluOf {
  SiluOf(DType dtype, const std::vector<double>& gates, Target target)
      : gate(dtype, gates), ones(dtype, std::vector<double>(gates.size(), 1)), y(dtype, gates.size()),
        slope(dtype, gates.size()), dup(dtype, gates.size()) {
    const int64_t count = gates.size();
    Launch(GluForward{1, count, Activation::kSilu, dtype, dtype, gate.data(), ones.data(), nullptr, nullptr, y.data()},
           SerialFor, target);
    Launch(GluBackward{1, count, Activation::kSilu, dtype, dtype, ones.data(), gate.data(), ones.data(), nullptr,
                       nullptr, slope.data(), dup.data(), nullptr, nullptr},
           SerialFor, target);
  }
  Buffer gate, ones, y, slope, dup;
};

TEST(Silu, IsRoundedAboutAsFp32OverTheWholeRange) {
  std::vector<double> gates = {0.0, -0.0, 1e30, -1e30, 3e38, -3e38};
  for (uint32_t bits = 0x30000000; bits < 0x42b00000; bits += 997) {  // up to 88
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    gates.push_back(value);
    gates.push_back(-value);
  }
  std::vector<GeluValue> expected;
  for (double gate : gates) expected.push_back(ReferenceActivation(gate, Activation::kSilu));
  const double unit = 0x1p-24;
  for (Target target : Targets()) {
    SiluOf silu(DType::kFloat32, gates, target);
    const std::vector<double> y = silu.y.values(), slope = silu.slope.values();
    for (size_t i = 0; i < gates.size(); ++i) {
      // Without FMA the exponent is reduced with an error that grows with it.
      const double units = target == Target::kPortable ? 200 : 8;
      ASSERT_NEAR(y[i], expected[i].value, units * unit * std::fabs(expected[i].value) + 2e-36)
          << Name(target) << gates[i];
      ASSERT_NEAR(slope[i], expected[i].slope, 4 * unit) << Name(target) << gates[i];
    }
  }
}

TEST(Silu, IsWithinOneUnitForEveryNumberOfSixteenBits) {
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    std::vector<double> gates;
    for (int bits = 0; bits < 65536; ++bits) {
      const double value = dtype == DType::kFloat16 ? DecodeBits(bits, Half()) : DecodeBits(bits, BFloat16());
      if (std::isfinite(value)) gates.push_back(value);
    }
    std::vector<double> expected;
    for (double gate : gates) expected.push_back(ReferenceActivation(gate, Activation::kSilu).value);
    const double unit = dtype == DType::kFloat16 ? 0x1p-10 : 0x1p-7;  // the last place of a number from 1 to 2
    for (Target target : Targets()) {
      const std::vector<double> y = SiluOf(dtype, gates, target).y.values();
      for (size_t i = 0; i < gates.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], 0.7 * unit * std::fabs(expected[i]) + 1e-7)
            << Name(target) << " " << Name(dtype) << " " << gates[i];
      }
    }
  }
}

TEST(Silu, TakesInfinityAndNan) {
  for (Target target : Targets()) {
    const float gate[3] = {INFINITY, -INFINITY, NAN}, ones[3] = {1, 1, 1};
    float y[3], slope[3], dup[3];
    Launch(GluForward{1, 3, Activation::kSilu, DType::kFloat32, DType::kFloat32, gate, ones, nullptr, nullptr, y},
           SerialFor, target);
    Launch(GluBackward{1, 3, Activation::kSilu, DType::kFloat32, DType::kFloat32, ones, gate, ones, nullptr, nullptr,
                       slope, dup, nullptr, nullptr},
           SerialFor, target);
    EXPECT_EQ(y[0], INFINITY);
    EXPECT_EQ(y[1], 0);
    EXPECT_TRUE(std::isnan(y[2]));
    EXPECT_EQ(slope[0], 1);
    EXPECT_EQ(slope[1], 0);
    EXPECT_TRUE(std::isnan(slope[2]));
    EXPECT_EQ(dup[0], INFINITY);
    EXPECT_EQ(dup[1], 0);
    EXPECT_TRUE(std::isnan(dup[2]));
  }
}

TEST(Glu, StreamsLargeResultsIntact) {
  std::mt19937 random(5);
  const DType dtype = DType::kBFloat16;
  const int64_t columns = 256;
  const int64_t rows = StreamedRows(columns, dtype);
  Inputs in(Case{BestTarget(), dtype, Activation::kSilu, 1, columns}, random);
  Buffer gate(dtype, rows * columns), up(dtype, rows * columns), y(dtype, rows * columns);
  const size_t bytes = in.gate.size_bytes();
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(static_cast<char*>(gate.data()) + i * bytes, in.gate.data(), bytes);
    std::memcpy(static_cast<char*>(up.data()) + i * bytes, in.up.data(), bytes);
  }
  Launch(GluForward{rows, columns, Activation::kSilu, dtype, dtype, gate.data(), up.data(), nullptr, nullptr, y.data()},
         ThreadedFor(2));
  const char* const result = static_cast<const char*>(y.data());
  for (int64_t i = 1; i < rows; ++i) ASSERT_EQ(std::memcmp(result, result + i * bytes, bytes), 0) << "row " << i;
}

}  // namespace
}  // namespace tftrain
