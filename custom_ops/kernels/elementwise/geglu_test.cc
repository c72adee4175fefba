#include "custom_ops/kernels/elementwise/geglu.h"

#include "custom_ops/kernels/elementwise/geglu_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

struct Case {
  Target target;
  DType dtype;
  bool approximate;
  int64_t rows;
  int64_t columns;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (Target target : Targets()) {
    for (DType dtype : kDTypes) {
      for (bool approximate : {false, true}) {
        for (int columns : {1, 7, 64, 1000}) {
          for (int rows : {0, 1, columns > 100 ? 5 : 131}) {
            cases.push_back({target, dtype, approximate, rows, columns});
          }
        }
      }
    }
  }
  return cases;
}

std::string Describe(const Case& c) {
  return std::string(Name(c.target)) + " " + Name(c.dtype) + (c.approximate ? " tanh " : " erf ") +
         std::to_string(c.rows) + "x" + std::to_string(c.columns);
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
  Launch(GegluBackward{c.rows, c.columns, c.approximate, c.dtype, DType::kFloat32, in.dy.data(), in.gate.data(),
                       in.up.data(), in.gate_bias.data(), in.up_bias.data(), out.dgate.data(), out.dup.data(),
                       out.dgate_bias.data(), out.dup_bias.data()},
         parallel_for, c.target);
}

TEST(Geglu, IsTheReferenceOfTheBiasedInputs) {
  std::mt19937 random(1);
  for (const Case& c : Cases()) {
    Inputs in(c, random);
    Buffer y(c.dtype, c.rows * c.columns);
    Launch(GegluForward{c.rows, c.columns, c.approximate, c.dtype, DType::kFloat32, in.gate.data(), in.up.data(),
                        in.gate_bias.data(), in.up_bias.data(), y.data()},
           ThreadedFor(3), c.target);
    std::vector<double> expected(c.rows * c.columns);
    ReferenceGeglu(in.gate.values().data(), in.up.values().data(), in.gate_bias.values().data(),
                   in.up_bias.values().data(), c.rows, c.columns, c.approximate, expected.data());
    ExpectClose(y.values(), expected, ForwardTolerance(c.dtype), Describe(c));
  }
}

TEST(Geglu, GradientsAreThoseOfTheReference) {
  std::mt19937 random(2);
  for (const Case& c : Cases()) {
    Inputs in(c, random);
    Gradients out(c);
    Backward(c, in, out, ThreadedFor(3));
    const int64_t count = c.rows * c.columns;
    std::vector<double> dgate(count), dup(count), dgate_bias(c.columns), dup_bias(c.columns);
    ReferenceGegluGradient(in.dy.values().data(), in.gate.values().data(), in.up.values().data(),
                           in.gate_bias.values().data(), in.up_bias.values().data(), c.rows, c.columns, c.approximate,
                           dgate.data(), dup.data(), dgate_bias.data(), dup_bias.data());
    ExpectClose(out.dgate.values(), dgate, GradientTolerance(c.dtype), Describe(c) + " dgate");
    ExpectClose(out.dup.values(), dup, GradientTolerance(c.dtype), Describe(c) + " dup");
    const double absolute = 5e-6 * std::sqrt(std::max<double>(1, c.rows));
    ExpectClose(out.dgate_bias.values(), dgate_bias, {0, absolute}, Describe(c) + " dgate_bias");
    ExpectClose(out.dup_bias.values(), dup_bias, {0, absolute}, Describe(c) + " dup_bias");
  }
}

TEST(Geglu, IsBitwiseTheSameForAnyNumberOfThreads) {
  std::mt19937 random(3);
  const Case c{BestTarget(), DType::kFloat32, false, 1000, 96};
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

TEST(Geglu, NeedsNoBiases) {
  std::mt19937 random(4);
  for (Target target : Targets()) {
    const Case c{target, DType::kFloat32, false, 3, 37};
    Inputs in(c, random);
    in.gate_bias = Buffer(DType::kFloat32, std::vector<double>(c.columns, 0.0));
    in.up_bias = in.gate_bias;
    Gradients with(c), without(c);
    Backward(c, in, with, SerialFor);
    Launch(GegluBackward{c.rows, c.columns, c.approximate, c.dtype, DType::kFloat32, in.dy.data(), in.gate.data(),
                         in.up.data(), nullptr, nullptr, without.dgate.data(), without.dup.data(), nullptr, nullptr},
           SerialFor, target);
    EXPECT_EQ(with.dgate.values(), without.dgate.values());
    EXPECT_EQ(with.dup.values(), without.dup.values());
  }
}

}  // namespace
}  // namespace tftrain
