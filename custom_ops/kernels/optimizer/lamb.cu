// LAMB and AdamW on the GPU; see lamb.h. All tensors of an update go in one launch, by a table that travels with the launch
// itself: nothing has to be copied to the device before. Blocks take chunks of tensors, as on the CPU, and the sums of a
// tensor's chunks are added in a fixed order by a second kernel.
#include <algorithm>

#include "custom_ops/kernels/common/tensor_chunks.h"
#include "custom_ops/kernels/cuda/device.cuh"
#include "custom_ops/kernels/optimizer/lamb.h"

namespace tftrain {
namespace {

using namespace tftrain::cuda;

constexpr int kThreads = 256;
constexpr int kMostTensors = 512;  // a launch takes 32,764 bytes of arguments
constexpr int kPackSize = 4;

// A part of the update's tensors, from number `first_tensor` on.
struct Table {
  UpdateTensor tensor[kMostTensors];
  int first_chunk[kMostTensors + 1];
  int tensors;
  int first_tensor;

  __device__ int chunks() const { return first_chunk[tensors]; }

  __device__ int TensorOf(int chunk) const {
    int low = 0;
    int high = tensors;  // first_chunk[low] <= chunk < first_chunk[high]
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_chunk[middle] <= chunk ? low : high) = middle;
    }
    return low;
  }
};

// kSize numbers side by side: one, or four, which are loaded and stored at once.
template <int kSize>
struct Numbers {
  __device__ void Load(const float* from) { Pack<float, kSize>::Load(from).Decode(v); }
  __device__ void Store(float* to) const { Pack<float, kSize>::Encode(v).Store(to); }

  // Of any storage type. All threads of a block take the same branch.
  __device__ void Load(const void* from, DType dtype, int64_t i) {
    if (dtype == DType::kFloat32) {
      Load(static_cast<const float*>(from) + i);
    } else if (dtype == DType::kFloat16) {
      LoadNarrow(static_cast<const Half*>(from) + i);
    } else {
      LoadNarrow(static_cast<const BFloat16*>(from) + i);
    }
  }

  // Rounded, to where a tensor has a copy of 16 bits.
  __device__ void StoreCopy(const UpdateTensor& tensor, int64_t i) const {
    if (tensor.copy == nullptr) return;
    if (tensor.copy_dtype == DType::kFloat16) {
      StoreNarrow(static_cast<Half*>(tensor.copy) + i);
    } else {
      StoreNarrow(static_cast<BFloat16*>(tensor.copy) + i);
    }
  }

  float v[kSize];

 private:
  struct alignas(2 * kSize) Narrow {
    std::conditional_t<kSize == 1, uint16_t, uint32_t> word[(kSize + 1) / 2];
  };

  template <typename T>
  __device__ void LoadNarrow(const T* from) {
    const Narrow narrow = *reinterpret_cast<const Narrow*>(from);
    if constexpr (kSize == 1) {
      v[0] = ToFloat(narrow.word[0], T());
    } else {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) PairToFloats(narrow.word[k], T(), &v[2 * k], &v[2 * k + 1]);
    }
  }

  template <typename T>
  __device__ void StoreNarrow(T* to) const {
    Narrow narrow;
    if constexpr (kSize == 1) {
      narrow.word[0] = FromFloat(v[0], T());
    } else {
#pragma unroll
      for (int k = 0; k < kSize / 2; ++k) narrow.word[k] = PairFromFloats(v[2 * k], v[2 * k + 1], T());
    }
    *reinterpret_cast<Narrow*>(to) = narrow;
  }
};

template <int kSize>
__device__ __forceinline__ void NextMoments(const UpdateScalars& at, const Numbers<kSize>& gradient, Numbers<kSize>* m,
                                            Numbers<kSize>* v) {
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    const float g = gradient.v[k] * at.gradient_factor;
    m->v[k] = fmaf(m->v[k], at.beta1, -(g * at.minus_one_minus_beta1));
    v->v[k] = fmaf(v->v[k], at.beta2, g * g * at.one_minus_beta2);
  }
}

// u of lamb.h.
template <int kSize>
__device__ __forceinline__ Numbers<kSize> Direction(const UpdateScalars& at, float epsilon, float decay,
                                                    const Numbers<kSize>& m, const Numbers<kSize>& v,
                                                    const Numbers<kSize>& w) {
  Numbers<kSize> u;
#pragma unroll
  for (int k = 0; k < kSize; ++k) {
    const float adam = __fdiv_rn(m.v[k] * at.m_correction, __fsqrt_rn(v.v[k] * at.v_correction) + epsilon);
    u.v[k] = fmaf(w.v[k], decay, adam);
  }
  return u;
}

template <int kSize>
__device__ __forceinline__ void Move(const Numbers<kSize>& direction, float rate, Numbers<kSize>* w) {
#pragma unroll
  for (int k = 0; k < kSize; ++k) w->v[k] = fmaf(direction.v[k], -rate, w->v[k]);
}

template <int kSize>
__device__ __forceinline__ void AddSquares(const Numbers<kSize>& numbers, float* sum) {
#pragma unroll
  for (int k = 0; k < kSize; ++k) *sum = fmaf(numbers.v[k], numbers.v[k], *sum);
}

// The passes. `Step` works on kSize elements from i on; decay and rate are those of the whole tensor.
struct PassInputs {
  float epsilon = 0;
  const UpdateScalars* scalars = nullptr;
  const float* weight_decays = nullptr;
  const float* rates = nullptr;
};

struct MomentsPass : PassInputs {
  static constexpr int kSums = 2;

  template <int kSize>
  __device__ void Step(const UpdateScalars& at, float decay, float, const UpdateTensor& tensor, int64_t i,
                       float (&sums)[2]) const {
    Numbers<kSize> g, m, v, w;
    g.Load(tensor.gradient, tensor.gradient_dtype, i);
    m.Load(tensor.m + i);
    v.Load(tensor.v + i);
    w.Load(tensor.weight + i);
    NextMoments(at, g, &m, &v);
    AddSquares(w, &sums[0]);
    AddSquares(Direction(at, epsilon, decay, m, v, w), &sums[1]);
    m.Store(tensor.m + i);
    v.Store(tensor.v + i);
  }
};

struct WeightsPass : PassInputs {
  static constexpr int kSums = 0;

  template <int kSize>
  __device__ void Step(const UpdateScalars& at, float decay, float rate, const UpdateTensor& tensor, int64_t i,
                       float (&)[2]) const {
    Numbers<kSize> m, v, w;
    m.Load(tensor.m + i);
    v.Load(tensor.v + i);
    w.Load(tensor.weight + i);
    Move(Direction(at, epsilon, decay, m, v, w), rate, &w);
    w.Store(tensor.weight + i);
    w.StoreCopy(tensor, i);
  }
};

struct AdamWPass : PassInputs {
  static constexpr int kSums = 0;

  template <int kSize>
  __device__ void Step(const UpdateScalars& at, float decay, float, const UpdateTensor& tensor, int64_t i,
                       float (&)[2]) const {
    Numbers<kSize> g, m, v, w;
    g.Load(tensor.gradient, tensor.gradient_dtype, i);
    m.Load(tensor.m + i);
    v.Load(tensor.v + i);
    w.Load(tensor.weight + i);
    NextMoments(at, g, &m, &v);
    Move(Direction(at, epsilon, decay, m, v, w), at.learning_rate, &w);
    m.Store(tensor.m + i);
    v.Store(tensor.v + i);
    w.Store(tensor.weight + i);
    w.StoreCopy(tensor, i);
  }
};

// Sums of squares of tensor.gradient.
struct NormsPass : PassInputs {
  static constexpr int kSums = 1;

  template <int kSize>
  __device__ void Step(const UpdateScalars&, float, float, const UpdateTensor& tensor, int64_t i,
                       float (&sums)[2]) const {
    Numbers<kSize> g;
    g.Load(tensor.gradient, tensor.gradient_dtype, i);
    AddSquares(g, &sums[0]);
  }
};

// How far the element at an address is after one at which a pack begins; -1 for a tensor that is not there.
__device__ inline int BehindPack(const void* address, DType dtype) {
  const uintptr_t size = dtype == DType::kFloat32 ? 4 : 2;
  return address == nullptr ? -1 : static_cast<int>(reinterpret_cast<uintptr_t>(address) / size % kPackSize);
}

// How many elements from `begin` on come before one at which a pack begins in all tensors; all, if there is none such.
__device__ inline int64_t Unaligned(const UpdateTensor& tensor, int64_t begin, int64_t count) {
  const int behind[] = {BehindPack(tensor.gradient, tensor.gradient_dtype), BehindPack(tensor.m, DType::kFloat32),
                        BehindPack(tensor.v, DType::kFloat32), BehindPack(tensor.weight, DType::kFloat32),
                        BehindPack(tensor.copy, tensor.copy_dtype)};
  int some = -1;
#pragma unroll
  for (int i = 0; i < 5; ++i) {
    if (behind[i] < 0) continue;
    if (some >= 0 && behind[i] != some) return count;
    some = behind[i];
  }
  const int64_t ahead = (kPackSize - (some + begin) % kPackSize) % kPackSize;
  return ahead < count ? ahead : count;
}

template <typename Pass>
__global__ void __launch_bounds__(kThreads, 4) ChunksKernel(const __grid_constant__ Table table, Pass pass, float* parts) {
  __shared__ float scratch[2][2 * kThreads / kWarp];
  const bool has_scalars = pass.scalars != nullptr;
  const UpdateScalars at = has_scalars ? *pass.scalars : UpdateScalars{};
  const bool skip = has_scalars && at.gradient_factor == 0;
  if (skip && Pass::kSums == 0) return;
  int turn = 0;
  for (int chunk = blockIdx.x; chunk < table.chunks(); chunk += gridDim.x) {
    const int number = table.TensorOf(chunk);
    const UpdateTensor& tensor = table.tensor[number];
    const int64_t begin = (chunk - table.first_chunk[number]) * kChunkElements;
    const int64_t end = begin + kChunkElements < tensor.size ? begin + kChunkElements : tensor.size;
    const float decay = has_scalars ? pass.weight_decays[table.first_tensor + number] : 0.0f;
    const float rate = pass.rates != nullptr ? pass.rates[table.first_tensor + number] : 0.0f;
    float sums[2] = {};
    if (!skip) {
      const int64_t first_pack = begin + Unaligned(tensor, begin, end - begin);
      const int64_t behind_packs = first_pack + (end - first_pack) / kPackSize * kPackSize;
#pragma unroll 1
      for (int64_t i = begin + threadIdx.x; i < first_pack; i += kThreads) {
        pass.template Step<1>(at, decay, rate, tensor, i, sums);
      }
      for (int64_t i = first_pack + threadIdx.x * kPackSize; i < behind_packs; i += kThreads * kPackSize) {
        pass.template Step<kPackSize>(at, decay, rate, tensor, i, sums);
      }
#pragma unroll 1
      for (int64_t i = behind_packs + threadIdx.x; i < end; i += kThreads) {
        pass.template Step<1>(at, decay, rate, tensor, i, sums);
      }
    }
    if constexpr (Pass::kSums > 0) {
      ReduceBlock<Add>(sums, scratch[turn]);
      turn ^= 1;
      if (threadIdx.x < Pass::kSums) parts[Pass::kSums * chunk + threadIdx.x] = threadIdx.x == 0 ? sums[0] : sums[1];
    }
  }
}

// A block adds up the parts of a tensor's chunks, in fp64.
template <int kSums>
__global__ void SumChunksKernel(const __grid_constant__ Table table, const float* parts, float* first, float* second) {
  __shared__ double partial[kThreads];
  const int number = blockIdx.x;
  for (int which = 0; which < kSums; ++which) {
    double sum = 0;
    for (int chunk = table.first_chunk[number] + threadIdx.x; chunk < table.first_chunk[number + 1]; chunk += kThreads) {
      sum += parts[kSums * chunk + which];
    }
    partial[threadIdx.x] = sum;
    for (int half = kThreads / 2; half > 0; half /= 2) {
      __syncthreads();
      if (static_cast<int>(threadIdx.x) < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    }
    if (threadIdx.x == 0) (which == 0 ? first : second)[table.first_tensor + number] = static_cast<float>(partial[0]);
    __syncthreads();
  }
}

template <typename Pass>
CudaError Run(const std::vector<UpdateTensor>& tensors, const Pass& pass, float* first, float* second,
              const CudaStream& stream) {
  for (size_t begin = 0; begin < tensors.size(); begin += kMostTensors) {
    Table table = {};
    table.tensors = static_cast<int>(std::min<size_t>(kMostTensors, tensors.size() - begin));
    table.first_tensor = static_cast<int>(begin);
    for (int i = 0; i < table.tensors; ++i) {
      table.tensor[i] = tensors[begin + i];
      table.first_chunk[i + 1] = table.first_chunk[i] + DivideUp(table.tensor[i].size, kChunkElements);
    }
    const int chunks = table.first_chunk[table.tensors];
    float* parts = nullptr;  // the same for every table: on a stream, one launch ends before the next begins
    if (Pass::kSums > 0) {
      const CudaError error = TakeWorkspace(stream, int64_t{chunks} * Pass::kSums, &parts);
      if (error != nullptr) return error;
    }
    const auto kernel = ChunksKernel<Pass>;
    if (chunks > 0) {
      LaunchKernel(kernel, {std::min(chunks, BlocksThatFit(kernel, kThreads))}, kThreads, stream.handle, table, pass,
                   parts);
    }
    if constexpr (Pass::kSums > 0) {
      LaunchKernel(SumChunksKernel<Pass::kSums>, {table.tensors}, kThreads, stream.handle, table, parts, first, second);
    }
    if (const CudaError error = LastError(); error != nullptr) return error;
  }
  return nullptr;
}

}  // namespace

CudaError Launch(const LambMoments& args, const CudaStream& stream) {
  return Run(args.tensors, MomentsPass{{args.epsilon, args.scalars, args.weight_decays}}, args.weight_squares,
             args.update_squares, stream);
}

CudaError Launch(const LambWeights& args, const CudaStream& stream) {
  return Run(args.tensors, WeightsPass{{args.epsilon, args.scalars, args.weight_decays, args.rates}}, nullptr, nullptr,
             stream);
}

CudaError Launch(const AdamW& args, const CudaStream& stream) {
  return Run(args.tensors, AdamWPass{{args.epsilon, args.scalars, args.weight_decays}}, nullptr, nullptr, stream);
}

CudaError Launch(const SquaredNorms& args, const CudaStream& stream) {
  std::vector<UpdateTensor> tensors;
  for (size_t i = 0; i < args.sizes.size(); ++i) {
    tensors.push_back({args.sizes[i], args.tensors[i], nullptr, nullptr, nullptr, args.dtypes[i]});
  }
  return Run(tensors, NormsPass{}, args.squares, nullptr, stream);
}

void CopyBytes(void* to, const void* from, int64_t bytes, const CudaStream& stream) {
  CopyAsync(to, from, bytes, stream.handle);
}

}  // namespace tftrain
