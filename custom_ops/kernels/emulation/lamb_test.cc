// The CUDA kernels of LAMB and AdamW, run by cuda.h and compared with the CPU kernels.
#include <cmath>
#include <numeric>

#include "custom_ops/kernels/common/testing.h"
#include "custom_ops/kernels/optimizer/lamb.h"

namespace tftrain {
namespace {

constexpr float kEpsilon = 1e-6;

uint16_t Rounded(float value, DType dtype) {
  return dtype == DType::kFloat16 ? EncodeBits<Half>(value) : EncodeBits<BFloat16>(value);
}

// Parameters in flat arrays; the tensors begin at all alignments, some are empty, one has several chunks.
struct State {
  State(std::vector<int64_t> tensor_sizes, int seed) : sizes(std::move(tensor_sizes)) {
    int64_t total = 0;
    for (int64_t size : sizes) total += size;
    std::mt19937 random(seed);
    const auto fill = [&](std::vector<float>& to, bool positive) {
      for (double value : Normal(random, total)) to.push_back(positive ? value * value : value);
    };
    fill(gradient, false), fill(m, false), fill(v, true), fill(weight, false);
    for (size_t i = 0; i < sizes.size(); ++i) {
      decays.push_back(i % 3 ? 0.01f : 0.0f);
      rates.push_back(0.001f * (i + 1));
    }
  }

  std::vector<UpdateTensor> Tensors() {
    std::vector<UpdateTensor> tensors;
    int64_t begin = 0;
    for (int64_t size : sizes) {
      tensors.push_back({size, gradient.data() + begin, m.data() + begin, v.data() + begin, weight.data() + begin});
      if (!narrow.empty()) {
        tensors.back().gradient = narrow.data() + begin;
        tensors.back().copy = copy.data() + begin;
        tensors.back().gradient_dtype = tensors.back().copy_dtype = dtype;
      }
      begin += size;
    }
    return tensors;
  }

  // Gradients of 16 bits from now on, and copies.
  void Narrow(DType type) {
    dtype = type;
    for (float value : gradient) narrow.push_back(Rounded(value, type));
    copy.assign(narrow.size(), 0x1234);
  }

  std::vector<int64_t> sizes;
  std::vector<float> gradient, m, v, weight, decays, rates;
  DType dtype = DType::kFloat32;
  std::vector<uint16_t> narrow, copy;
};

UpdateScalars Scalars(float gradient_factor) { return {gradient_factor, 1e-3, 0.9, 0.999, 0.9 - 1, 1e-3, 5, 500}; }

template <typename Args>
void LaunchEmulated(const Args& args) {
  int64_t elements = 0;
  for (const auto& tensor : args.tensors) elements += tensor.size;
  std::vector<char> workspace(ChunkSumsBytes(args.tensors.size(), elements, 2), '\xcd');
  ASSERT_EQ(Launch(args, {nullptr, workspace.data(), static_cast<int64_t>(workspace.size())}), nullptr);
}

void LaunchEmulated(const SquaredNorms& args) {
  const int64_t elements = std::accumulate(args.sizes.begin(), args.sizes.end(), int64_t{0});
  std::vector<char> workspace(ChunkSumsBytes(args.sizes.size(), elements, 1), '\xcd');
  ASSERT_EQ(Launch(args, {nullptr, workspace.data(), static_cast<int64_t>(workspace.size())}), nullptr);
}

void ExpectEqual(const std::vector<float>& actual, const std::vector<float>& expected, double relative,
                 const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_NEAR(actual[i], expected[i], relative * std::fabs(expected[i]) + 1e-30) << what << " " << i;
  }
}

std::vector<std::vector<int64_t>> Sizes() {
  return {{1}, {5, 0, 70001, 3, 1024, 2}, std::vector<int64_t>(700, 7)};
}

TEST(CudaLamb, MakesTheUpdatesOfTheCpu) {
  for (const auto& sizes : Sizes()) {
    for (float factor : {0.5f, 0.0f}) {
      const UpdateScalars scalars = Scalars(factor);
      State cpu(sizes, 1), cuda(sizes, 1);
      if (factor == 0) cpu.gradient[0] = cuda.gradient[0] = NAN;
      std::vector<float> squares[4];
      for (auto& list : squares) list.assign(sizes.size(), -1);
      const auto moments = [&](State& s, int list) {
        return LambMoments{s.Tensors(), kEpsilon, &scalars, s.decays.data(), squares[list].data(),
                           squares[list + 1].data()};
      };
      const auto weights = [&](State& s) {
        return LambWeights{s.Tensors(), kEpsilon, &scalars, s.decays.data(), s.rates.data()};
      };
      Launch(moments(cpu, 0), SerialFor);
      Launch(weights(cpu), SerialFor);
      LaunchEmulated(moments(cuda, 2));
      LaunchEmulated(weights(cuda));
      ExpectEqual(cuda.m, cpu.m, 1e-6, "m");
      ExpectEqual(cuda.v, cpu.v, 1e-6, "v");
      ExpectEqual(cuda.weight, cpu.weight, 1e-6, "weight");
      ExpectEqual(squares[2], squares[0], 1e-5, "weight squares");
      ExpectEqual(squares[3], squares[1], 1e-5, "update squares");
    }
  }
}

TEST(CudaAdamW, MakesTheUpdatesOfTheCpu) {
  for (const auto& sizes : Sizes()) {
    const UpdateScalars scalars = Scalars(0.25f);
    State cpu(sizes, 2), cuda(sizes, 2);
    Launch(AdamW{cpu.Tensors(), kEpsilon, &scalars, cpu.decays.data()}, SerialFor);
    LaunchEmulated(AdamW{cuda.Tensors(), kEpsilon, &scalars, cuda.decays.data()});
    ExpectEqual(cuda.m, cpu.m, 1e-6, "m");
    ExpectEqual(cuda.v, cpu.v, 1e-6, "v");
    ExpectEqual(cuda.weight, cpu.weight, 1e-6, "weight");
  }
}

TEST(CudaLamb, Reads16BitGradientsAndWrites16BitCopies) {
  const UpdateScalars scalars = Scalars(0.5f);
  for (DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    const std::vector<int64_t> sizes = {5, 0, 40001, 3, 1024, 2};
    State cpu(sizes, 5), cuda(sizes, 5);
    cpu.Narrow(dtype), cuda.Narrow(dtype);
    std::vector<float> squares[4];
    for (auto& list : squares) list.assign(sizes.size(), -1);
    const auto moments = [&](State& s, int list) {
      return LambMoments{s.Tensors(), kEpsilon, &scalars, s.decays.data(), squares[list].data(), squares[list + 1].data()};
    };
    const auto adamw = [&](State& s) { return AdamW{s.Tensors(), kEpsilon, &scalars, s.decays.data()}; };
    Launch(moments(cpu, 0), SerialFor);
    LaunchEmulated(moments(cuda, 2));
    ExpectEqual(cuda.m, cpu.m, 1e-6, "m");
    ExpectEqual(squares[3], squares[1], 1e-5, "update squares");
    Launch(adamw(cpu), SerialFor);
    LaunchEmulated(adamw(cuda));
    ExpectEqual(cuda.weight, cpu.weight, 1e-6, "weight");
    for (size_t i = 0; i < cuda.copy.size(); ++i) ASSERT_EQ(cuda.copy[i], Rounded(cuda.weight[i], dtype)) << i;
  }
}

TEST(CudaLamb, TakesListsOfUnlikeAlignment) {
  const UpdateScalars scalars = Scalars(1);
  State cpu({103}, 3), cuda({103}, 3);
  const auto tensors = [](State& s) {
    return std::vector<UpdateTensor>{{100, s.gradient.data() + 3, s.m.data() + 1, s.v.data() + 2, s.weight.data()}};
  };
  Launch(AdamW{tensors(cpu), kEpsilon, &scalars, cpu.decays.data()}, SerialFor);
  LaunchEmulated(AdamW{tensors(cuda), kEpsilon, &scalars, cuda.decays.data()});
  ExpectEqual(cuda.weight, cpu.weight, 1e-6, "weight");
}

TEST(CudaSquaredNorms, AreThoseOfTheCpu) {
  for (const auto& sizes : Sizes()) {
    State state(sizes, 4);
    std::vector<const void*> tensors;
    for (const UpdateTensor& tensor : state.Tensors()) tensors.push_back(tensor.gradient);
    const std::vector<DType> dtypes(sizes.size(), DType::kFloat32);
    std::vector<float> cpu(sizes.size()), cuda(sizes.size());
    Launch(SquaredNorms{sizes, tensors, dtypes, cpu.data()}, SerialFor);
    LaunchEmulated(SquaredNorms{sizes, tensors, dtypes, cuda.data()});
    ExpectEqual(cuda, cpu, 1e-5, "squares");
  }
}

}  // namespace
}  // namespace tftrain
