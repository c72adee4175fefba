// The CUDA kernels' own code, run by cuda.h and compared with the CPU kernels, which have their own tests.

#include <algorithm>
#include <deque>

#include "custom_ops/kernels/attention_softmax/attention_softmax.h"
#include "custom_ops/kernels/common/testing.h"
#include "custom_ops/kernels/elementwise/bias_dropout_add.h"
#include "custom_ops/kernels/elementwise/gelu.h"
#include "custom_ops/kernels/elementwise/glu.h"
#include "custom_ops/kernels/emulation/cuda.h"
#include "custom_ops/kernels/layer_norm/layer_norm.h"

namespace tftrain {
namespace {

int64_t WorkspaceBytes(const LayerNormBackward& args) {
  return RowSumsBytes(args.rows, args.hidden, args.centred ? 2 : 1);
}
int64_t WorkspaceBytes(const GeluBackward& args) { return TileSumsBytes(args.rows, args.columns, 1); }
int64_t WorkspaceBytes(const GluBackward& args) { return TileSumsBytes(args.rows, args.columns, 2); }
int64_t WorkspaceBytes(const BiasDropoutAddBackward& args) {
  return TileSumsBytes(args.samples * args.rows, args.hidden, 1);
}
template <typename Args>
int64_t WorkspaceBytes(const Args&) {
  return 0;
}

// The workspace starts as garbage.
template <typename Args>
void LaunchEmulated(const Args& args) {
  std::vector<char> workspace(WorkspaceBytes(args), '\xcd');
  const CudaError error = Launch(args, {nullptr, workspace.data(), static_cast<int64_t>(workspace.size())});
  ASSERT_EQ(error, nullptr) << error;
}

// Numbers for a test, and places for results of a CPU kernel and of a CUDA kernel.
class Data {
 public:
  explicit Data(int seed) : random_(seed) {}

  void* In(DType dtype, int64_t count, double mean = 0, double deviation = 1) {
    return buffers_.emplace_back(dtype, Normal(random_, count, mean, deviation)).data();
  }

  struct Pair {
    Buffer* cpu;
    Buffer* cuda;
  };

  Pair Out(DType dtype, int64_t count) {
    Pair pair = {&buffers_.emplace_back(dtype, count), &buffers_.emplace_back(dtype, count)};
    std::memset(pair.cuda->data(), 0xcd, pair.cuda->size_bytes());
    return pair;
  }

 private:
  std::mt19937 random_;
  std::deque<Buffer> buffers_;
};

// Twice what one kernel may be away from the truth.
void ExpectSame(Data::Pair pair, Tolerance tolerance, const std::string& what) {
  tolerance.relative *= 2;
  tolerance.absolute *= 2;
  ExpectClose(pair.cuda->values(), pair.cpu->values(), tolerance, what);
}

Tolerance SumTolerance(DType dtype, int64_t rows) {
  Tolerance tolerance = dtype == DType::kFloat32 ? Tolerance{5e-6, 0} : ForwardTolerance(dtype);
  tolerance.absolute += 5e-6 * std::sqrt(std::max<double>(1, rows));
  return tolerance;
}

// Rows that fit no group, and widths for every way in which a row is spread over threads.
struct Shape {
  int64_t rows;
  int64_t columns;
};

std::string Describe(DType dtype, Shape shape) {
  return std::string(Name(dtype)) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns);
}

constexpr Shape kRows[] = {{1, 1},    {29, 7},   {0, 64},   {31, 64},  {9, 1000},  {7, 1001},  {5, 2560},
                           {3, 8192}, {2, 5003}, {4, 5121}, {5, 8193}, {0, 8193}, {4, 10007}, {4, 16384}};

void ExpectSameNorm(bool centred, DType dtype, Shape shape) {
  const DType parameter_dtype = dtype == DType::kFloat16 ? dtype : DType::kFloat32;
  const std::string what = Describe(dtype, shape);
  const int64_t count = shape.rows * shape.columns;
  Data data(1);
  const auto y = data.Out(dtype, count), dx = data.Out(dtype, count);
  const auto mean = data.Out(DType::kFloat32, shape.rows), rstd = data.Out(DType::kFloat32, shape.rows);
  const auto dgamma = data.Out(parameter_dtype, shape.columns), dbeta = data.Out(parameter_dtype, shape.columns);
  const auto if_centred = [centred](void* place) { return centred ? place : nullptr; };
  LayerNormForward args{shape.rows, shape.columns, centred, 1e-5, dtype, parameter_dtype, data.In(dtype, count, 0.5, 2),
                        data.In(parameter_dtype, shape.columns, 1), if_centred(data.In(parameter_dtype, shape.columns)),
                        y.cpu->data(), static_cast<float*>(if_centred(mean.cpu->data())),
                        static_cast<float*>(rstd.cpu->data())};
  Launch(args, SerialFor);
  LayerNormBackward back{shape.rows, shape.columns, centred, dtype, parameter_dtype, data.In(dtype, count), args.x,
                         args.gamma, args.mean, args.rstd, dx.cpu->data(), dgamma.cpu->data(),
                         if_centred(dbeta.cpu->data())};
  Launch(back, SerialFor);
  back.dx = dx.cuda->data(), back.dgamma = dgamma.cuda->data(), back.dbeta = if_centred(dbeta.cuda->data());
  LaunchEmulated(back);
  args.y = y.cuda->data();
  args.mean = static_cast<float*>(if_centred(mean.cuda->data()));
  args.rstd = static_cast<float*>(rstd.cuda->data());
  LaunchEmulated(args);
  ExpectSame(y, ForwardTolerance(dtype), what + " y");
  ExpectSame(rstd, ForwardTolerance(DType::kFloat32), what + " rstd");
  ExpectSame(dx, GradientTolerance(dtype), what + " dx");
  ExpectSame(dgamma, SumTolerance(parameter_dtype, shape.rows), what + " dgamma");
  if (!centred) return;
  ExpectSame(mean, ForwardTolerance(DType::kFloat32), what + " mean");
  ExpectSame(dbeta, SumTolerance(parameter_dtype, shape.rows), what + " dbeta");
}

TEST(CudaLayerNorm, IsTheSameAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    for (Shape shape : kRows) ExpectSameNorm(true, dtype, shape);
  }
}

TEST(CudaRmsNorm, IsTheSameAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    for (Shape shape : kRows) ExpectSameNorm(false, dtype, shape);
  }
}

// Infinity, which makes every result that it reaches infinite or NaN, at the keys after each query.
void SetInfiniteBehindQueries(const AttentionShape& shape, DType dtype, void* scores) {
  for (int64_t i = 0; i < shape.rows() * shape.keys; ++i) {
    if (i % shape.keys <= i / shape.keys % shape.queries + shape.keys - shape.queries) continue;
    if (dtype == DType::kFloat32) {
      static_cast<float*>(scores)[i] = INFINITY;
    } else {
      static_cast<uint16_t*>(scores)[i] = dtype == DType::kFloat16 ? 0x7c00 : 0x7f80;
    }
  }
}

void ExpectSameAttentionSoftmax(DType dtype, const AttentionShape& shape, int64_t drop_below) {
  const int64_t position[2] = {7, 40};
  const int64_t keys = shape.keys, count = shape.rows() * keys;
  const std::string what = Describe(dtype, {shape.rows(), keys}) + (drop_below ? " with dropout" : "");
  const Dropout dropout{drop_below, 1234567890123, 77, position};
  Data data(2);
  std::vector<int32_t> mask(shape.batch * keys, 0);  // of the second sample, nothing is left
  for (int64_t i = 0; i < keys; ++i) mask[i] = i / 16 % 2 == 1 || i % 5 != 3;  // some packs are whole
  const auto p = data.Out(dtype, count), dropped = data.Out(dtype, count), again = data.Out(dtype, count);
  const auto dscores = data.Out(dtype, count);
  AttentionSoftmaxForward args{shape, 0.3, dropout, dtype, data.In(dtype, count, 0, 3), mask.data(),
                               p.cpu->data(), drop_below ? dropped.cpu->data() : nullptr};
  void* const ddropped = data.In(dtype, count);
  if (shape.causal) {
    SetInfiniteBehindQueries(shape, dtype, const_cast<void*>(args.scores));
    SetInfiniteBehindQueries(shape, dtype, ddropped);
  }
  Launch(args, SerialFor);
  AttentionSoftmaxBackward back{shape, 0.3, dropout, dtype, ddropped, p.cpu->data(),
                                dscores.cpu->data(), drop_below ? again.cpu->data() : nullptr};
  Launch(back, SerialFor);
  args.probabilities = p.cuda->data(), args.dropped = drop_below ? dropped.cuda->data() : nullptr;
  back.dscores = dscores.cuda->data(), back.dropped = drop_below ? again.cuda->data() : nullptr;
  LaunchEmulated(args);
  LaunchEmulated(back);
  ExpectSame(p, ForwardTolerance(dtype), what + " probabilities");
  ExpectSame(dscores, GradientTolerance(dtype), what + " dscores");
  if (drop_below == 0) return;
  ExpectSame(dropped, ForwardTolerance(dtype), what + " dropped");
  ExpectSame(again, {0, 0}, what + " dropped, made again");
  const auto cpu = dropped.cpu->values(), cuda = dropped.cuda->values();
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(cpu[i] == 0, cuda[i] == 0) << what << " mask of element " << i;
}

TEST(CudaAttentionSoftmax, IsTheSameAsOnTheCpuWithTheSameMasks) {
  for (DType dtype : kDTypes) {
    for (int64_t keys : {1, 17, 24, 100, 128, 257, 512, 520, 2049, 2560, 8193, 10007, 16384}) {
      for (int64_t drop_below : {0, 6656}) {
        ExpectSameAttentionSoftmax(dtype, {2, 3, keys < 100 ? keys : keys > 8192 ? 1 : 4, keys, 1, 5}, drop_below);
      }
    }
  }
}

// A pack of keys that are all attended to takes the short way, whichever of a thread's packs it is.
TEST(CudaAttentionSoftmax, TakesTheShortWayWhereNothingIsHidden) {
  const int64_t position[2] = {};
  const AttentionShape shape{1, 1, 3, 512, 0, 1};
  Data data(2);
  const auto probabilities = data.Out(DType::kBFloat16, shape.rows() * shape.keys);
  void* const scores = data.In(DType::kBFloat16, shape.rows() * shape.keys);
  for (int64_t hidden : {0, 1}) {
    std::vector<int32_t> mask(shape.keys, 1);
    if (hidden) mask[300] = 0;
    cuda::partial_packs = 0;
    LaunchEmulated(AttentionSoftmaxForward{shape, 0.3, {0, 1, 0, position}, DType::kBFloat16, scores, mask.data(),
                                           probabilities.cuda->data(), nullptr});
    EXPECT_EQ(cuda::partial_packs, hidden * shape.rows());
  }
}

TEST(CudaAttentionSoftmax, KeepsWhatIsNotANumber) {
  const int64_t position[2] = {};
  for (int64_t keys : {17, 64, 512, 2048, 8200}) {
    const AttentionShape shape{1, 1, 3, keys, 0, 1};
    std::vector<float> scores(3 * keys, 0.5f), probabilities(3 * keys);
    std::fill_n(scores.begin() + keys, keys, NAN);
    std::vector<int32_t> mask(keys, 1);
    mask[keys - 1] = 0;
    LaunchEmulated(AttentionSoftmaxForward{shape, 0.3, {0, 1, 0, position}, DType::kFloat32, scores.data(), mask.data(),
                                           probabilities.data(), nullptr});
    for (int64_t i = 0; i < 3 * keys; ++i) {
      if (i % keys == keys - 1) continue;
      ASSERT_EQ(std::isnan(probabilities[i]), i / keys == 1) << keys << " keys, element " << i;
    }
  }
}

// Squares for each way in which a row is spread over threads, and the last queries of long rows.
TEST(CudaAttentionSoftmax, IsTheSameAsOnTheCpuIfItIsCausal) {
  for (DType dtype : kDTypes) {
    for (int64_t drop_below : {0, 6656}) {
      for (int64_t keys : {1, 17, 24}) ExpectSameAttentionSoftmax(dtype, {2, 3, keys, keys, 1, 5, true}, drop_below);
      for (int64_t keys : {2049, 8193, 16384}) {
        ExpectSameAttentionSoftmax(dtype, {1, 1, 20, keys, 1, 5, true}, drop_below);
      }
    }
    for (int64_t keys : {64, 128, 129, 512, 520}) ExpectSameAttentionSoftmax(dtype, {1, 1, keys, keys, 1, 5, true}, 6656);
  }
}

TEST(CudaGelu, IsTheSameAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    const DType bias_dtype = dtype == DType::kBFloat16 ? dtype : DType::kFloat32;
    for (Shape shape : {Shape{1, 1}, {67, 7}, {0, 8}, {131, 64}, {13, 1000}, {5, 1001}}) {
      for (int form : {0, 1, 2, 3}) {
        const bool tanh = form % 2, has_bias = form / 2;
        const std::string what = Describe(dtype, shape) + (tanh ? " tanh" : " erf");
        const int64_t count = shape.rows * shape.columns;
        Data data(3);
        const auto y = data.Out(dtype, count), dx = data.Out(dtype, count), dbias = data.Out(bias_dtype, shape.columns);
        GeluForward args{shape.rows, shape.columns, tanh, dtype, bias_dtype, data.In(dtype, count, 0, 3),
                         has_bias ? data.In(bias_dtype, shape.columns) : nullptr, y.cpu->data()};
        GeluBackward back{shape.rows, shape.columns, tanh, dtype, bias_dtype, data.In(dtype, count), args.x, args.bias,
                          dx.cpu->data(), has_bias ? dbias.cpu->data() : nullptr};
        Launch(args, SerialFor);
        Launch(back, SerialFor);
        args.y = y.cuda->data(), back.dx = dx.cuda->data(), back.dbias = has_bias ? dbias.cuda->data() : nullptr;
        LaunchEmulated(args);
        LaunchEmulated(back);
        ExpectSame(y, ForwardTolerance(dtype), what + " y");
        ExpectSame(dx, GradientTolerance(dtype), what + " dx");
        if (has_bias) ExpectSame(dbias, SumTolerance(bias_dtype, shape.rows), what + " dbias");
      }
    }
  }
}

TEST(CudaGelu, KeepsInfinitiesAndNotNumbers) {
  for (bool tanh : {false, true}) {
    const float x[4] = {INFINITY, -INFINITY, NAN, -40};
    const float one[4] = {1, 1, 1, 1};
    float y[4], dx[4];
    LaunchEmulated(GeluForward{1, 4, tanh, DType::kFloat32, DType::kFloat32, x, nullptr, y});
    LaunchEmulated(GeluBackward{1, 4, tanh, DType::kFloat32, DType::kFloat32, one, x, nullptr, dx, nullptr});
    EXPECT_EQ(y[0], INFINITY);
    EXPECT_NEAR(y[1], 0, 1e-30);
    EXPECT_TRUE(std::isnan(y[2]) && std::isnan(dx[2]));
    EXPECT_NEAR(y[3], 0, 1e-30);
    EXPECT_EQ(dx[0], 1);
    EXPECT_NEAR(dx[1], 0, 1e-30);
  }
}

TEST(CudaGlu, IsTheSameAsOnTheCpu) {
  for (DType dtype : kDTypes) {
    const DType bias_dtype = DType::kFloat32;
    for (Shape shape : {Shape{1, 1}, {67, 7}, {131, 64}, {13, 1000}}) {
      for (int form : {0, 1, 2, 3, 4, 5}) {
        const bool has_bias = form / 3;
        const Activation activation = static_cast<Activation>(form % 3);
        const std::string what = Describe(dtype, shape) + " activation " + std::to_string(form % 3);
        const int64_t count = shape.rows * shape.columns, columns = shape.columns;
        Data data(4);
        const auto y = data.Out(dtype, count), dgate = data.Out(dtype, count), dup = data.Out(dtype, count);
        const auto dgate_bias = data.Out(bias_dtype, columns), dup_bias = data.Out(bias_dtype, columns);
        GluForward args{shape.rows, columns, activation, dtype, bias_dtype, data.In(dtype, count, 0, 2),
                        data.In(dtype, count), has_bias ? data.In(bias_dtype, columns) : nullptr,
                        has_bias ? data.In(bias_dtype, columns) : nullptr, y.cpu->data()};
        GluBackward back{shape.rows, columns, activation, dtype, bias_dtype, data.In(dtype, count), args.gate, args.up,
                         args.gate_bias, args.up_bias, dgate.cpu->data(), dup.cpu->data(),
                         has_bias ? dgate_bias.cpu->data() : nullptr, has_bias ? dup_bias.cpu->data() : nullptr};
        Launch(args, SerialFor);
        Launch(back, SerialFor);
        args.y = y.cuda->data(), back.dgate = dgate.cuda->data(), back.dup = dup.cuda->data();
        back.dgate_bias = has_bias ? dgate_bias.cuda->data() : nullptr;
        back.dup_bias = has_bias ? dup_bias.cuda->data() : nullptr;
        LaunchEmulated(args);
        LaunchEmulated(back);
        ExpectSame(y, ForwardTolerance(dtype), what + " y");
        ExpectSame(dgate, GradientTolerance(dtype), what + " dgate");
        ExpectSame(dup, GradientTolerance(dtype), what + " dup");
        if (!has_bias) continue;
        ExpectSame(dgate_bias, SumTolerance(bias_dtype, 10 * shape.rows), what + " dgate_bias");
        ExpectSame(dup_bias, SumTolerance(bias_dtype, 10 * shape.rows), what + " dup_bias");
      }
    }
  }
}

TEST(CudaSwiglu, KeepsInfinitiesAndNotNumbers) {
  const float gate[4] = {INFINITY, -INFINITY, NAN, -200}, one[4] = {1, 1, 1, 1};
  float y[4], dgate[4], dup[4];
  const DType dtype = DType::kFloat32;
  LaunchEmulated(GluForward{1, 4, Activation::kSilu, dtype, dtype, gate, one, nullptr, nullptr, y});
  LaunchEmulated(GluBackward{1, 4, Activation::kSilu, dtype, dtype, one, gate, one, nullptr, nullptr, dgate, dup,
                             nullptr, nullptr});
  EXPECT_EQ(y[0], INFINITY);
  EXPECT_NEAR(y[1], 0, 1e-30);
  EXPECT_TRUE(std::isnan(y[2]) && std::isnan(dgate[2]) && std::isnan(dup[2]));
  EXPECT_NEAR(y[3], 0, 1e-30);
  EXPECT_EQ(dgate[0], 1);
  EXPECT_NEAR(dgate[1], 0, 1e-30);
}

TEST(CudaBiasDropoutAdd, IsTheSameAsOnTheCpuWithTheSameMasks) {
  const int64_t position[2] = {3, int64_t{1} << 33};
  for (DType dtype : kDTypes) {
    for (Shape shape : {Shape{1, 1}, {17, 7}, {45, 64}, {5, 1000}}) {
      for (int64_t drop_below : {0, 30000}) {
        const std::string what = Describe(dtype, shape) + (drop_below ? " with dropout" : "");
        const Dropout dropout{drop_below, -5, 65535, position};
        const int64_t samples = 3, count = samples * shape.rows * shape.columns;
        const RowRange range = shape.columns == 7 ? RowRange{4, shape.rows + 9} : RowRange{};
        Data data(5);
        const auto y = data.Out(dtype, count), dx = data.Out(dtype, count);
        const auto dbias = data.Out(DType::kFloat32, shape.columns);
        BiasDropoutAddForward args{samples, shape.rows, shape.columns, dropout, dtype, DType::kFloat32,
                                   data.In(dtype, count), data.In(DType::kFloat32, shape.columns),
                                   data.In(dtype, count), y.cpu->data(), range};
        BiasDropoutAddBackward back{samples, shape.rows, shape.columns, dropout, dtype, DType::kFloat32, args.x,
                                    dx.cpu->data(), dbias.cpu->data(), range};
        Launch(args, SerialFor);
        Launch(back, SerialFor);
        args.y = y.cuda->data(), back.dx = dx.cuda->data(), back.dbias = dbias.cuda->data();
        LaunchEmulated(args);
        LaunchEmulated(back);
        ExpectSame(y, ForwardTolerance(dtype), what + " y");
        ExpectSame(dx, {0, 0}, what + " dx");
        ExpectSame(dbias, SumTolerance(DType::kFloat32, samples * shape.rows), what + " dbias");
      }
    }
  }
}

}  // namespace
}  // namespace tftrain
