// Calls of every op with wrong numbers of inputs, shapes, types and attributes. Each is refused with a message, or reads and
// writes nothing outside of its tensors, which AddressSanitizer checks: bazel test --config=sanitize.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>

#include "custom_ops/interface/all_ops.h"
#include "custom_ops/kernels/common/testing.h"

namespace tftrain {
namespace {

using Random = std::mt19937_64;
using Specs = std::vector<Spec>;

constexpr int kCalls = 3000;  // of each op

Spec Make(Element element, std::vector<int64_t> sizes) { return {element, {true, std::move(sizes)}}; }
Spec F(std::vector<int64_t> sizes) { return Make(Element::kFloat32, std::move(sizes)); }
Spec H(std::vector<int64_t> sizes) { return Make(Element::kFloat16, std::move(sizes)); }
Spec Ids(std::vector<int64_t> sizes) { return Make(Element::kInt32, std::move(sizes)); }
Spec Position() { return Make(Element::kInt64, {2}); }

void HalfDropped(DropoutAttributes* dropout) { dropout->drop_below = kRateUnit / 2; }

// Good calls, which the test damages. Sizes leave rests after whole vectors.

Specs Good(GeluOp*) { return {F({3, 17}), H({17})}; }
Specs Good(GeluGradOp*) { return {H({3, 17}), H({3, 17}), F({17})}; }
template <typename Attributes>
Specs Good(GluOp<Attributes>*) { return {F({3, 17}), F({3, 17}), H({17}), H({17})}; }
template <typename Attributes>
Specs Good(GluGradOp<Attributes>*) { return {F({3, 17}), F({3, 17}), F({3, 17}), H({17}), H({17})}; }

Specs Good(NormOp<true>* op) {
  op->epsilon = 1e-6f;
  return {H({2, 3, 17}), F({17}), F({17})};
}
Specs Good(NormOp<false>* op) {
  op->epsilon = 1e-6f;
  return {H({2, 3, 17}), F({17})};
}
Specs Good(NormGradOp<true>*) { return {F({6, 17}), F({6, 17}), H({17}), F({6}), F({6})}; }
Specs Good(NormGradOp<false>*) { return {F({6, 17}), F({6, 17}), H({17}), F({6})}; }

Specs Good(BiasDropoutAddOp* op) {
  HalfDropped(&op->dropout);
  op->first_row = 1;
  op->total_rows = 7;
  return {H({2, 3, 17}), F({17}), H({2, 3, 17}), Position()};
}
Specs Good(BiasDropoutAddGradOp* op) {
  HalfDropped(&op->dropout);
  return {H({2, 3, 17}), F({17}), Position()};
}

void MakeGood(AttentionSoftmaxAttributes* op) {
  HalfDropped(&op->dropout);
  op->causal = true;
  op->dropouts = 1;
  op->first_head = 1;
  op->total_heads = 4;
}
Specs Good(AttentionSoftmaxOp* op) {
  MakeGood(op);
  return {F({2, 3, 9, 9}), Ids({2, 9}), Position()};
}
Specs Good(AttentionSoftmaxGradOp* op) {
  MakeGood(op);
  return {H({2, 3, 9, 9}), H({2, 3, 9, 9}), Position()};
}

void MakeGood(FlashAttentionAttributes* op) {
  HalfDropped(&op->dropout);
  op->window = 5;
  op->total_heads = 4;
  op->sequence_id_lists = op->slope_lists = 1;
}
Specs Good(FlashAttentionOp* op) {
  MakeGood(op);
  return {F({2, 9, 4, 8}), F({2, 9, 2, 8}), F({2, 9, 2, 8}), Ids({2, 9}), Position(), Ids({2, 9}), F({4})};
}
Specs Good(FlashAttentionGradOp* op) {
  MakeGood(op);
  return {H({2, 9, 4, 8}), H({2, 9, 4, 8}), H({2, 9, 2, 8}), H({2, 9, 2, 8}), H({2, 9, 4, 8}),
          F({2, 4, 9}),    Ids({2, 9}),     Position(),      Ids({2, 9}),     F({4})};
}

Specs Good(SquaredNormsOp*) { return {F({3, 17}), H({5})}; }

// One flat tensor in two slices, so that both attributes of sizes are read.
Specs GoodUpdate(UpdateAttributes* op, Specs in) {
  op->epsilon = 1e-6f;
  op->tensors = 1;
  op->segments = {7, 13};
  in.insert(in.begin(), F({kUpdateScalars}));
  return in;
}
Specs Good(LambMomentsOp* op) { return GoodUpdate(op, {F({2}), H({21}), F({21}), F({21}), F({21})}); }
Specs Good(LambWeightsOp* op) { return GoodUpdate(op, {F({2}), F({2}), F({21}), F({21}), F({21})}); }
Specs Good(AdamWOp* op) { return GoodUpdate(op, {F({2}), H({21}), F({21}), F({21}), F({21})}); }

template <typename T>
T Any(Random& random, const std::vector<T>& values) {
  return values[random() % values.size()];
}

int64_t AnyNumber(Random& random) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return Any<int64_t>(random, {-50000000, -1, 0, 1, 2, 3, 7, 13, 21, 1 << 20, int64_t{1} << 31, int64_t{1} << 62, kMost,
                               kMost - 1, -kMost - 1});
}

// Gives the attribute with a number an odd value.
struct Damage {
  Random& random;
  int chosen;
  int number = 0;

  template <typename T>
  void operator()(const char*, T* value) {
    if (number++ == chosen) Change(value);
  }

  void Change(float* value) { *value = Any<float>(random, {0, -1, 1e-6f, 1e38f, NAN, INFINITY}); }
  void Change(bool* value) { *value = !*value; }
  void Change(int64_t* value) { *value = AnyNumber(random); }
  void Change(std::vector<int64_t>* value) {
    value->resize(random() % 4);
    for (int64_t& each : *value) each = AnyNumber(random);
  }
};

template <typename Op>
void Harm(Random& random, Op* op, Specs* in) {
  switch (random() % 6) {
    case 0:  // another number of inputs
      if (random() % 2 && !in->empty()) {
        in->erase(in->begin() + random() % in->size());
      } else if (!in->empty()) {
        in->push_back((*in)[random() % in->size()]);
      }
      return;
    case 1: {
      Damage count{random, -1};
      op->VisitAttributes(count);
      if (count.number == 0) return;
      Damage damage{random, static_cast<int>(random() % count.number)};
      op->VisitAttributes(damage);
      return;
    }
    case 2:
      if (!in->empty()) (*in)[random() % in->size()].element = static_cast<Element>(random() % 7);
      return;
    default: {
      if (in->empty()) return;
      std::vector<int64_t>& sizes = (*in)[random() % in->size()].dims.sizes;
      const int64_t size = Any<int64_t>(random, {0, 1, 2, 3, 8, 9, 16, 17, 18, 33, 264});
      const uint64_t kind = random() % 4;
      if (kind == 0) {
        sizes.push_back(size);
      } else if (sizes.empty()) {
        return;
      } else if (kind == 1) {
        sizes.pop_back();
      } else {
        sizes[random() % sizes.size()] = size;
      }
    }
  }
}

int64_t BytesOf(const Spec& spec) {
  const bool is_wide = spec.element == Element::kInt64 || spec.element == Element::kOther;
  return spec.dims.count() * (is_wide ? 8 : spec.element == Element::kUint8 ? 1 : spec.element == Element::kInt32 ? 4
                                                                        : SizeOf(StorageType(spec.element)));
}

// Memory of a tensor, aligned as TensorFlow's is, which ends where the tensor ends.
class Memory {
 public:
  Memory(const Spec& spec, int fill) : spec_(spec), bytes_(BytesOf(spec)), data_(Allocate(bytes_)) {
    std::memset(data_.get(), fill, bytes_);
  }

  Tensor tensor() const { return {spec_.element, spec_.dims, data_.get()}; }

 private:
  struct Free {
    void operator()(void* data) const { operator delete(data, std::align_val_t(64)); }
  };
  static char* Allocate(int64_t bytes) { return static_cast<char*>(operator new(bytes, std::align_val_t(64))); }

  Spec spec_;
  int64_t bytes_;
  std::unique_ptr<char, Free> data_;
};

template <typename Op>
void CheckCalls(const char* name) {
  Random random(1);
  int accepted = 0, refused = 0;
  for (int call = 0; call < kCalls; ++call) {
    Op op;
    Specs in = Good(&op), out;
    // The first call is good.
    for (int harms = call == 0 ? 0 : 1 + random() % 2; harms > 0; --harms) Harm(random, &op, &in);
    const std::string problem = op.Infer(in, &out);
    if (call == 0) ASSERT_EQ(problem, "") << name;
    if (!problem.empty()) {
      ++refused;
      EXPECT_EQ(problem.find('\n'), std::string::npos) << problem;
      continue;
    }
    ++accepted;
    EXPECT_GE(WorkspaceBytesOf(op, in), 0);
    // Shape inference sees the same call with sizes that are not known.
    Specs unknown = in, none;
    if (!unknown.empty()) unknown[random() % unknown.size()].dims = UnknownDims();
    op.Infer(unknown, &none);
    const int fill = Any<int>(random, {0, 0x3c, 0xff});  // zeros, numbers near 1, NaN and -1
    std::vector<std::unique_ptr<Memory>> memory;
    std::vector<Tensor> inputs, outputs;
    for (const Spec& spec : in) {
      memory.push_back(std::make_unique<Memory>(spec, fill));
      inputs.push_back(memory.back()->tensor());
    }
    for (const Spec& spec : out) {
      memory.push_back(std::make_unique<Memory>(spec, fill));
      outputs.push_back(memory.back()->tensor());
    }
    op.Run(inputs, outputs, ParallelFor(SerialFor));
  }
  EXPECT_GT(accepted, kCalls / 50) << name;
  EXPECT_GT(refused, kCalls / 10) << name;
}

#define TFTRAIN_CALLS_TEST(Op, symbol) \
  TEST(Calls, Op) { CheckCalls<Op>(#Op); }
TFTRAIN_FOR_EACH_OP(TFTRAIN_CALLS_TEST)
#undef TFTRAIN_CALLS_TEST

template <typename Op>
std::string ProblemOf(const std::vector<int64_t>& segments) {
  Op op;
  Specs in = Good(&op), out;
  op.segments = segments;
  in[1] = F({static_cast<int64_t>(segments.size())});
  if constexpr (std::is_same_v<Op, LambWeightsOp>) in[2] = in[1];
  return op.Infer(in, &out);
}

TEST(Segments, LieInTheirTensor) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  for (const auto& problem_of : {ProblemOf<AdamWOp>, ProblemOf<LambMomentsOp>, ProblemOf<LambWeightsOp>}) {
    EXPECT_EQ(problem_of({7, 0, 14}), "");
    for (const std::vector<int64_t>& segments : std::vector<std::vector<int64_t>>{
             {-50000000, 50000004}, {kMost, kMost, 6}, {22}, {7, 15}, {21, 0, 1}, {-kMost - 1}, {5, -1}}) {
      EXPECT_NE(problem_of(segments).find("segments has"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tftrain
