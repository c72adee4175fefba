#include "custom_ops/kernels/elementwise/bias_dropout_add.h"

#include "custom_ops/kernels/elementwise/bias_dropout_add_reference.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

constexpr int64_t kPosition[] = {5, 1000};

TEST(BiasDropoutAdd, ForwardAndBackwardAreThoseOfTheReference) {
  std::mt19937 random(1);
  for (Target target : Targets()) {
    for (DType dtype : kDTypes) {
      for (int64_t hidden : {1, 7, 64, 1000}) {
        for (int64_t samples : {0, 3}) {
          for (int64_t drop_below : {0, 6554}) {
            const std::string what = std::string(Name(target)) + " " + Name(dtype) + " hidden " +
                                     std::to_string(hidden) + " drop below " + std::to_string(drop_below);
            const int64_t rows = 13;
            const RowRange range = hidden == 7 ? RowRange{5, 21} : RowRange{};
            const int64_t elements = (range.total ? range.total : rows) * hidden;
            const int64_t count = samples * rows * hidden;
            const Dropout dropout{drop_below, -3, 65535, kPosition};
            Buffer x(dtype, Normal(random, count)), residual(dtype, Normal(random, count)),
                dy(dtype, Normal(random, count)), bias(DType::kFloat32, Normal(random, hidden));
            Buffer y(dtype, count), dx(dtype, count), dbias(DType::kFloat32, hidden);
            Launch(BiasDropoutAddForward{samples, rows, hidden, dropout, dtype, DType::kFloat32, x.data(), bias.data(),
                                         residual.data(), y.data(), range},
                   ThreadedFor(2), target);
            Launch(BiasDropoutAddBackward{samples, rows, hidden, dropout, dtype, DType::kFloat32, dy.data(), dx.data(),
                                          dbias.data(), range},
                   ThreadedFor(3), target);

            const std::vector<double> xs = x.values(), residuals = residual.values(), dys = dy.values(),
                                      biases = bias.values();
            std::vector<double> ys(count), dxs(count), dbiases(hidden);
            for (int64_t i = 0; i < count; ++i) {
              const int64_t sample = i / (rows * hidden), place = range.first * hidden + i % (rows * hidden);
              const double factor = ReferenceKeepFactor(dropout, elements, sample * elements + place);
              ys[i] = residuals[i] + (xs[i] + biases[i % hidden]) * factor;
              dxs[i] = dys[i] * factor;
              dbiases[i % hidden] += dxs[i];
            }
            ExpectClose(y.values(), ys, ForwardTolerance(dtype), what + " y");
            ExpectClose(dx.values(), dxs, GradientTolerance(dtype), what + " dx");
            ExpectClose(dbias.values(), dbiases, {0, 5e-6 * std::sqrt(samples * rows + 1)}, what + " dbias");
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tftrain
