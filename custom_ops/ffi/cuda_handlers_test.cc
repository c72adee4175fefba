// The handlers of the GPU over the emulated kernels, used as XLA uses them: called, called again, and recorded in a CUDA
// graph that is replayed when the call is long over and its scratch memory belongs to others.
#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "custom_ops/ffi/mock_xla.h"
#include "custom_ops/interface/all_ops.h"
#include "custom_ops/kernels/emulation/cuda.h"
#include "custom_ops/kernels/common/testing.h"

#define TFTRAIN_DECLARE(Op, symbol)                              \
  extern "C" XLA_FFI_Error* symbol##_cuda(XLA_FFI_CallFrame*); \
  extern "C" int64_t symbol##_workspace_bytes(int64_t inputs, const int64_t* ranks, const int64_t* dims, bool atomic);
TFTRAIN_FOR_EACH_OP(TFTRAIN_DECLARE)

namespace tftrain {
namespace {

struct Argument {
  Spec spec;
  std::vector<char> contents;
};

int64_t BytesOf(const Spec& spec) {
  const int64_t sizes[] = {4, 2, 2, 4, 8, 1};
  return spec.dims.count() * sizes[static_cast<int>(spec.element)];
}

template <typename T>
Argument Numbers(Element element, std::vector<int64_t> dims, const std::vector<T>& values) {
  const char* const begin = reinterpret_cast<const char*>(values.data());
  return {{element, {true, std::move(dims)}}, {begin, begin + values.size() * sizeof(T)}};
}

// Inputs that differ from seed to seed.
class Inputs {
 public:
  explicit Inputs(int seed) : random_(seed) {}

  Argument Normals(Element element, std::vector<int64_t> dims, double mean = 0) {
    return Rounded(element, std::move(dims), [&](double v) { return v + mean; });
  }
  Argument Positive(std::vector<int64_t> dims) {
    return Rounded(Element::kFloat32, std::move(dims), [](double v) { return v * v + 0.1; });
  }
  Argument Mask(std::vector<int64_t> dims) {
    std::vector<int32_t> values(dims[0] * dims[1]);
    for (int32_t& value : values) value = random_() % 5 > 0;
    return Numbers(Element::kInt32, std::move(dims), values);
  }
  Argument Position() { return Numbers(Element::kInt64, {2}, std::vector<int64_t>{int64_t(random_() % 1000), 40}); }
  Argument Scalars() {
    const float factor = 0.25f + random_() % 4;
    return Numbers(Element::kFloat32, {8}, std::vector<float>{factor, 1e-3, 0.9, 0.999, 0.9 - 1, 1e-3, 5, 500});
  }

 private:
  Argument Rounded(Element element, std::vector<int64_t> dims, const std::function<double(double)>& change) {
    const Spec spec = {element, {true, std::move(dims)}};
    std::vector<double> values = Normal(random_, spec.dims.count());
    std::transform(values.begin(), values.end(), values.begin(), change);
    Buffer buffer(StorageType(element), values);
    const char* const begin = static_cast<const char*>(buffer.data());
    return {spec, {begin, begin + BytesOf(spec)}};
  }

  std::mt19937 random_;
};

// One call of a compiled program: its handler, and buffers that stay where they are.
template <typename Op>
class CompiledCall {
 public:
  CompiledCall(XLA_FFI_Handler* handler, const Op& op, const std::vector<Argument>& arguments)
      : handler_(handler), op_(op) {
    std::vector<Spec> specs;
    for (const Argument& argument : arguments) {
      specs.push_back(argument.spec);
      in_.push_back(Allocate(argument.spec));
    }
    std::vector<Spec> results;
    EXPECT_EQ(InferResults(op, specs, /*on_gpu=*/true, &results), "");
    std::vector<Spec> outputs;
    EXPECT_EQ(op.Infer(specs, &outputs), "");
    outputs_ = outputs.size();
    for (size_t i = 0; i < results.size(); ++i) {
      const std::vector<Update> updates = UpdatesOf(op);
      const auto update = std::find_if(updates.begin(), updates.end(),
                                       [i](const Update& u) { return u.out == static_cast<int64_t>(i); });
      results_.push_back(update == updates.end() ? Allocate(results[i]) : in_[update->in]);
    }
  }

  // Writes the inputs, and garbage wherever the call is to write.
  void Fill(const std::vector<Argument>& arguments) {
    for (DeviceBuffer& buffer : buffers_) buffer.Poison();
    for (size_t i = 0; i < in_.size(); ++i) buffers_[i].Assign(arguments[i].contents);
  }

  std::string Call(MockXla& xla) { return xla.Call(handler_, op_, in_, results_); }

  std::string Record(MockXla& xla) {
    cuda::recording = &graph_;
    const std::string error = Call(xla);
    cuda::recording = nullptr;
    return error;
  }

  void Replay() const {
    for (const auto& launch : graph_) launch();
  }

  size_t launches() const { return graph_.size(); }

  // The outputs' bytes, without the workspace.
  std::vector<std::vector<char>> Outputs() const {
    std::vector<std::vector<char>> outputs;
    for (size_t i = 0; i < outputs_; ++i) {
      const char* const begin = results_[i].template as<const char>();
      outputs.emplace_back(begin, begin + BytesOf({results_[i].element, results_[i].dims}));
    }
    return outputs;
  }

  bool GuardsAreIntact() {
    return std::all_of(buffers_.begin(), buffers_.end(), [](DeviceBuffer& b) { return b.GuardsAreIntact(); });
  }

  std::vector<Tensor>& results() { return results_; }

 private:
  Tensor Allocate(const Spec& spec) {
    return {spec.element, spec.dims, buffers_.emplace_back(BytesOf(spec)).data()};
  }

  XLA_FFI_Handler* handler_;
  Op op_;
  std::deque<DeviceBuffer> buffers_;  // those of the inputs first
  std::vector<Tensor> in_;
  std::vector<Tensor> results_;
  size_t outputs_;
  cuda::Recording graph_;
};

std::vector<double> Decode(const Tensor& tensor) {
  const int64_t bytes = BytesOf({tensor.element, tensor.dims});
  Buffer buffer(StorageType(tensor.element), tensor.dims.count());
  std::memcpy(buffer.data(), tensor.data, bytes);
  return buffer.values();
}

// Compares a call's outputs with those of the CPU kernels.
template <typename Op>
void ExpectResultsOfTheCpu(const Op& op, const std::vector<Argument>& arguments, const std::vector<Tensor>& results,
                           double relative, const std::string& what) {
  std::deque<std::vector<char>> memory;
  std::vector<Tensor> in, out;
  std::vector<Spec> in_specs, out_specs;
  for (const Argument& argument : arguments) {
    in_specs.push_back(argument.spec);
    in.push_back({argument.spec.element, argument.spec.dims, memory.emplace_back(argument.contents).data()});
  }
  ASSERT_EQ(op.Infer(in_specs, &out_specs), "");
  for (const Spec& spec : out_specs) {
    out.push_back({spec.element, spec.dims, memory.emplace_back(BytesOf(spec)).data()});
  }
  op.Run(in, out, ParallelFor(SerialFor));
  for (size_t i = 0; i < out.size(); ++i) {
    ExpectClose(Decode(results[i]), Decode(out[i]), {relative, 10 * relative},
                what + " output " + std::to_string(i));
  }
}

// What XLA may do with a command-buffer compatible handler must give the same bits in every run, and never touch memory
// that is not an argument or a result of the call.
template <typename Op>
void ExpectReplays(XLA_FFI_Handler* handler, const Op& op,
                   const std::function<std::vector<Argument>(Inputs&)>& make, double relative = 1e-4,
                   const std::string& form = "") {
  const std::string what = Op::kName + form;
  Inputs inputs(1);
  const std::vector<Argument> first = make(inputs), second = make(inputs);
  MockXla xla;
  ASSERT_TRUE(xla.IsCommandBufferCompatible(handler)) << what;

  CompiledCall<Op> call(handler, op, first);
  call.Fill(first);
  ASSERT_EQ(call.Call(xla), "") << what;
  ExpectResultsOfTheCpu(op, first, call.results(), relative, what);
  const auto expected = call.Outputs();
  call.Fill(first);
  ASSERT_EQ(call.Call(xla), "") << what;
  EXPECT_EQ(call.Outputs(), expected) << what << " called again";

  CompiledCall<Op> other(handler, op, second);
  other.Fill(second);
  ASSERT_EQ(other.Call(xla), "") << what;
  const auto other_expected = other.Outputs();

  call.Fill(first);
  ASSERT_EQ(call.Record(xla), "") << what;
  EXPECT_GT(call.launches(), 0u) << what << " recorded nothing";
  call.Fill(second);
  call.Replay();
  EXPECT_EQ(call.Outputs(), other_expected) << what << " replayed with other inputs";
  call.Fill(first);
  call.Replay();
  EXPECT_EQ(call.Outputs(), expected) << what << " replayed again";
  EXPECT_FALSE(xla.FreedScratchWasWritten()) << what << ": a replay wrote to scratch memory that had been given back";
  EXPECT_TRUE(call.GuardsAreIntact()) << what << " wrote outside of its buffers";
}

constexpr Element kF32 = Element::kFloat32;
constexpr Element kBf16 = Element::kBFloat16;

TEST(CudaHandlers, ReplayLayerNormAndRmsNorm) {
  LayerNormOp op;
  op.epsilon = 1e-5;
  ExpectReplays(tftrain_layer_norm_cuda, op, [](Inputs& in) {
    return std::vector{in.Normals(kF32, {37, 72}), in.Normals(kF32, {72}), in.Normals(kF32, {72})};
  });
  RmsNormOp rms;
  rms.epsilon = 1e-5;
  ExpectReplays(tftrain_rms_norm_cuda, rms,
                [](Inputs& in) { return std::vector{in.Normals(kF32, {37, 72}), in.Normals(kF32, {72})}; });
  struct Form {
    Element x;
    int64_t rows;
    int64_t hidden;
  };
  // The longest rows do not fit into a block's registers, and their kernels keep sums in the workspace.
  for (const Form& form : {Form{kF32, 37, 72}, {kBf16, 37, 72}, {kF32, 4, 5121}, {kF32, 4, 8200}}) {
    const double relative = form.x == kF32 ? 1e-4 : 1.6e-2;
    const std::string what =
        std::string(" ") + Name(form.x) + " " + std::to_string(form.rows) + "x" + std::to_string(form.hidden);
    const auto make = [&](bool centred) {
      return [&form, centred](Inputs& in) {
        std::vector arguments{in.Normals(form.x, {form.rows, form.hidden}), in.Normals(form.x, {form.rows, form.hidden}),
                              in.Normals(kF32, {form.hidden})};
        if (centred) arguments.push_back(in.Normals(kF32, {form.rows}));
        arguments.push_back(in.Positive({form.rows}));
        return arguments;
      };
    };
    ExpectReplays(tftrain_layer_norm_grad_cuda, LayerNormGradOp(), make(true), relative, what);
    ExpectReplays(tftrain_rms_norm_grad_cuda, RmsNormGradOp(), make(false), relative, what);
  }
}

TEST(CudaHandlers, ReplayBiasDropoutAdd) {
  BiasDropoutAddOp op;
  BiasDropoutAddGradOp gradient;
  op.dropout = gradient.dropout = {30000, -5, 77};
  op.first_row = gradient.first_row = 4;
  op.total_rows = gradient.total_rows = 40;
  ExpectReplays(tftrain_bias_dropout_add_cuda, op, [](Inputs& in) {
    return std::vector{in.Normals(kF32, {3, 17, 64}), in.Normals(kF32, {64}), in.Normals(kF32, {3, 17, 64}),
                       in.Position()};
  });
  ExpectReplays(tftrain_bias_dropout_add_grad_cuda, gradient, [](Inputs& in) {
    return std::vector{in.Normals(kF32, {3, 17, 64}), in.Normals(kF32, {64}), in.Position()};
  });
}

TEST(CudaHandlers, ReplayGeluAndGatedUnits) {
  for (bool has_bias : {true, false}) {
    const auto make = [has_bias](int tensors, int biases) {
      return [=](Inputs& in) {
        std::vector<Argument> arguments;
        for (int i = 0; i < tensors; ++i) arguments.push_back(in.Normals(kF32, {67, 72}));
        for (int i = 0; has_bias && i < biases; ++i) arguments.push_back(in.Normals(kF32, {72}));
        return arguments;
      };
    };
    const std::string form = has_bias ? "" : " without bias";
    ExpectReplays(tftrain_gelu_cuda, GeluOp(), make(1, 1), 1e-4, form);
    ExpectReplays(tftrain_gelu_grad_cuda, GeluGradOp(), make(2, 1), 1e-4, form);
    ExpectReplays(tftrain_geglu_cuda, GegluOp(), make(2, 2), 1e-4, form);
    ExpectReplays(tftrain_geglu_grad_cuda, GegluGradOp(), make(3, 2), 1e-4, form);
    ExpectReplays(tftrain_swiglu_cuda, SwigluOp(), make(2, 2), 1e-4, form);
    ExpectReplays(tftrain_swiglu_grad_cuda, SwigluGradOp(), make(3, 2), 1e-4, form);
  }
}

TEST(CudaHandlers, ReplayAttentionSoftmax) {
  AttentionSoftmaxOp op;
  AttentionSoftmaxGradOp gradient;
  for (AttentionSoftmaxAttributes* attributes : {static_cast<AttentionSoftmaxAttributes*>(&op),
                                                 static_cast<AttentionSoftmaxAttributes*>(&gradient)}) {
    attributes->scale = 0.3;
    attributes->dropout = {6656, 12, 3};
    attributes->total_heads = 3;
    attributes->dropouts = 1;
  }
  struct Form {
    int64_t queries, keys;
    bool causal;
  };
  for (const Form& form : {Form{4, 24, false}, {4, 1000, false}, {24, 24, true}}) {
    op.causal = gradient.causal = form.causal;
    const std::vector<int64_t> shape = {2, 3, form.queries, form.keys};
    ExpectReplays(tftrain_attention_softmax_cuda, op, [&](Inputs& in) {
      return std::vector{in.Normals(kF32, shape), in.Mask({2, form.keys}), in.Position()};
    });
    ExpectReplays(tftrain_attention_softmax_grad_cuda, gradient, [&](Inputs& in) {
      return std::vector{in.Normals(kF32, shape), in.Normals(kF32, shape), in.Position()};
    });
  }
}

TEST(CudaHandlers, ReplayFlashAttention) {
  FlashAttentionOp op;
  FlashAttentionGradOp gradient;
  struct Form {
    Element element;
    int64_t length, head_size;
    bool causal;
    int64_t lists;  // whether there are sequence ids and slopes
  };
  for (const Form& form : {Form{kF32, 24, 32, false, 0}, {kF32, 37, 40, true, 1}, {kBf16, 70, 64, true, 1}}) {
    for (FlashAttentionAttributes* attributes : {static_cast<FlashAttentionAttributes*>(&op),
                                                 static_cast<FlashAttentionAttributes*>(&gradient)}) {
      attributes->scale = 0.2;
      attributes->causal = form.causal;
      attributes->dropout = {6656, 12, 3};
      attributes->first_head = 1;
      attributes->total_heads = 4;
      attributes->sequence_id_lists = attributes->slope_lists = form.lists;
    }
    const std::vector<int64_t> shape = {2, form.length, 2, form.head_size};
    const auto add_rest = [&](Inputs& in, std::vector<Argument> arguments) {
      arguments.push_back(in.Mask({2, form.length}));
      arguments.push_back(in.Position());
      if (form.lists > 0) arguments.push_back(in.Mask({2, form.length}));
      if (form.lists > 0) arguments.push_back(in.Positive({2}));
      return arguments;
    };
    const double relative = form.element == kF32 ? 1e-5 : 1.6e-2;
    const std::string what = " " + std::to_string(form.length);
    ExpectReplays(
        tftrain_flash_attention_cuda, op,
        [&](Inputs& in) {
          return add_rest(in, {in.Normals(form.element, shape), in.Normals(form.element, shape),
                               in.Normals(form.element, shape)});
        },
        relative, what);
    const auto make_gradient = [&](Inputs& in) {
      std::vector<Argument> arguments;
      for (int i = 0; i < 5; ++i) arguments.push_back(in.Normals(form.element, shape));
      arguments.push_back(in.Normals(kF32, {2, 2, form.length}, 9));  // larger than any score
      return add_rest(in, arguments);
    };
    for (bool atomic : {false, form.element != kF32}) {
      gradient.atomic = atomic;
      ExpectReplays(tftrain_flash_attention_grad_cuda, gradient, make_gradient, relative, what + (atomic ? " atomic" : ""));
    }
  }
}

// Several tensors, one of two chunks, without and with 16-bit gradients and copies; and slices of a flat bucket.
TEST(CudaHandlers, ReplayUpdates) {
  struct Form {
    std::vector<int64_t> sizes;
    std::vector<int64_t> segments;
    std::vector<int64_t> copied;
  };
  for (const Form& form : {Form{{5, 40001, 3}, {}, {}}, {{5, 40001, 3}, {}, {0, 1}}, {{40100}, {3, 40000, 0, 90}, {}}}) {
    const int64_t tensors = form.sizes.size();
    const int64_t parts = form.segments.empty() ? tensors : form.segments.size();
    const Element narrow = form.copied.empty() ? kF32 : Element::kBFloat16;
    const auto make = [&](bool has_rates, bool has_gradients, bool has_copies) {
      return [=](Inputs& in) {
        std::vector<Argument> arguments = {in.Scalars(), in.Normals(kF32, {parts})};
        if (has_rates) arguments.push_back(in.Normals(kF32, {parts}));
        for (int list = has_gradients ? 0 : 1; list < 4; ++list) {  // gradients, m, v, weights
          for (int64_t size : form.sizes) {
            arguments.push_back(list == 2 ? in.Positive({size}) : in.Normals(list == 0 ? narrow : kF32, {size}));
          }
        }
        for (int64_t tensor : has_copies ? form.copied : std::vector<int64_t>()) {
          arguments.push_back(in.Normals(narrow, {form.sizes[tensor]}));
        }
        return arguments;
      };
    };
    const std::string what = " of " + std::to_string(parts) + " parts of " + std::to_string(tensors) + " tensors";
    const auto with_attributes = [&](auto op) {
      op.epsilon = 1e-6;
      op.tensors = tensors;
      op.segments = form.segments;
      return op;
    };
    const auto with_copies = [&](auto op) {
      op.copied = form.copied;
      return with_attributes(op);
    };
    ExpectReplays(tftrain_lamb_moments_cuda, with_attributes(LambMomentsOp()), make(false, true, false), 1e-5, what);
    ExpectReplays(tftrain_lamb_weights_cuda, with_copies(LambWeightsOp()), make(true, false, true), 1e-5, what);
    ExpectReplays(tftrain_adamw_cuda, with_copies(AdamWOp()), make(false, true, true), 1e-5, what);
    if (!form.segments.empty()) continue;
    ExpectReplays(
        tftrain_squared_norms_cuda, SquaredNormsOp(),
        [&](Inputs& in) {
          std::vector<Argument> arguments;
          for (int64_t size : form.sizes) arguments.push_back(in.Normals(narrow, {size}));
          return arguments;
        },
        1e-5, what);
  }
}

// Calls an op with more rows than its workspace has parts, on a GPU where a block for each row would fit.
template <typename Op>
void ExpectToFit(XLA_FFI_Handler* handler, const std::vector<Argument>& arguments) {
  MockXla xla;
  CompiledCall<Op> call(handler, Op(), arguments);
  call.Fill(arguments);
  cuda::blocks_that_fit = 1 << 20;
  const std::string error = call.Call(xla);
  cuda::blocks_that_fit = 3;
  ASSERT_EQ(error, "") << Op::kName;
  ExpectResultsOfTheCpu(Op(), arguments, call.results(), 1e-4, Op::kName);
  EXPECT_TRUE(call.GuardsAreIntact()) << Op::kName << " wrote outside of its buffers";
}

TEST(CudaHandlers, NeedNoMoreOnALargerGpu) {
  Inputs in(1);
  const int64_t rows = 2 * MostRowParts(1 << 20, 3) + 5;
  ExpectToFit<LayerNormGradOp>(tftrain_layer_norm_grad_cuda,
                               {in.Normals(kF32, {rows, 3}), in.Normals(kF32, {rows, 3}), in.Normals(kF32, {3}),
                                in.Normals(kF32, {rows}), in.Positive({rows})});
  const int64_t more = 8 * MostTileParts(1 << 20, 2) + 40;  // 8 rows to a block
  ExpectToFit<BiasDropoutAddGradOp>(tftrain_bias_dropout_add_grad_cuda,
                                    {in.Normals(kF32, {1, more, 2}), in.Normals(kF32, {2}), in.Position()});
}

TEST(CudaHandlers, RefuseAnotherWorkspace) {
  Inputs in(1);
  const std::vector<Argument> arguments = {in.Normals(kF32, {37, 72}), in.Normals(kF32, {37, 72}),
                                           in.Normals(kF32, {72}), in.Normals(kF32, {37}), in.Positive({37})};
  const std::string bytes = std::to_string(37 * 2 * 72 * 4);
  MockXla xla;
  const auto error = [&](const std::function<void(Tensor&)>& change) {
    CompiledCall<LayerNormGradOp> call(tftrain_layer_norm_grad_cuda, LayerNormGradOp(), arguments);
    call.Fill(arguments);
    change(call.results().back());
    return call.Call(xla);
  };
  EXPECT_EQ(error([](Tensor&) {}), "");
  EXPECT_EQ(error([](Tensor& workspace) { workspace.dims.sizes[0] -= 4; }),
            "TftrainLayerNormGrad: output 3 is uint8 [" + std::to_string(37 * 2 * 72 * 4 - 4) + "], expected uint8 [" +
                bytes + "]");
  EXPECT_EQ(error([](Tensor& workspace) { workspace.data = workspace.as<char>() + 8; }),
            "TftrainLayerNormGrad: the workspace is not aligned to 16 bytes");

  CompiledCall<LayerNormGradOp> call(tftrain_layer_norm_grad_cuda, LayerNormGradOp(), arguments);
  call.results().pop_back();
  EXPECT_EQ(call.Call(xla), "TftrainLayerNormGrad: 3 outputs, expected 4");
}

TEST(CudaHandlers, SayHowLargeTheWorkspaceIs) {
  const int64_t ranks[] = {2, 2, 1, 1, 1};
  const int64_t dims[] = {37, 72, 37, 72, 72, 37, 37};
  EXPECT_EQ(tftrain_layer_norm_grad_workspace_bytes(5, ranks, dims, false), 37 * 2 * 72 * 4);
  EXPECT_EQ(tftrain_gelu_grad_workspace_bytes(2, ranks, dims, false), 0);
  EXPECT_EQ(tftrain_layer_norm_workspace_bytes(1, ranks, dims, false), 0);

  const int64_t flash_ranks[] = {4, 4, 4, 4, 4, 3, 2, 1};
  std::vector<int64_t> flash_dims;
  for (int i = 0; i < 5; ++i) flash_dims.insert(flash_dims.end(), {2, 70, 3, 64});
  flash_dims.insert(flash_dims.end(), {2, 3, 70, 2, 70, 2});
  EXPECT_EQ(tftrain_flash_attention_grad_workspace_bytes(8, flash_ranks, flash_dims.data(), false), 2 * 3 * 70 * 4);
  EXPECT_EQ(tftrain_flash_attention_grad_workspace_bytes(8, flash_ranks, flash_dims.data(), true), 2 * 3 * 70 * 65 * 4);
  EXPECT_EQ(tftrain_flash_attention_workspace_bytes(5, flash_ranks + 1, flash_dims.data(), false), 0);
}

}  // namespace
}  // namespace tftrain
