// Tensors as both frameworks hand them over, TensorFlow and XLA: an element type, dimensions and an address.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_TENSOR_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_TENSOR_H_

#include <cstdint>
#include <string>
#include <vector>

#include "custom_ops/kernels/common/dtype.h"

namespace tftrain {

enum class Element { kFloat32, kFloat16, kBFloat16, kInt32, kInt64, kUint8, kOther };

inline bool IsStorage(Element element) {
  return element == Element::kFloat32 || element == Element::kFloat16 || element == Element::kBFloat16;
}

inline DType StorageType(Element element) {
  return element == Element::kFloat16    ? DType::kFloat16
         : element == Element::kBFloat16 ? DType::kBFloat16
                                         : DType::kFloat32;
}

inline const char* Name(Element element) {
  switch (element) {
    case Element::kFloat32:
      return "float32";
    case Element::kFloat16:
      return "float16";
    case Element::kBFloat16:
      return "bfloat16";
    case Element::kInt32:
      return "int32";
    case Element::kInt64:
      return "int64";
    case Element::kUint8:
      return "uint8";
    default:
      return "another type";
  }
}

constexpr int64_t kUnknown = -1;

// Dimensions, as far as they are known: while a graph is built a size may be missing, or the rank.
struct Dims {
  bool known_rank = true;
  std::vector<int64_t> sizes;

  int rank() const { return static_cast<int>(sizes.size()); }
  int64_t operator[](int i) const { return sizes[i < 0 ? i + rank() : i]; }

  int64_t Product(int begin, int end) const {
    int64_t product = 1;
    for (int i = begin; i < end; ++i) product *= sizes[i];
    return product;
  }
  int64_t count() const { return Product(0, rank()); }

  std::string ToString() const {
    if (!known_rank) return "[...]";
    std::string text = "[";
    for (int i = 0; i < rank(); ++i) {
      text += (i ? ", " : "") + (sizes[i] == kUnknown ? std::string("?") : std::to_string(sizes[i]));
    }
    return text + "]";
  }
};

inline Dims UnknownDims() { return {false, {}}; }

// Element type and shape of a tensor, as far as they are known before it exists.
struct Spec {
  Element element;
  Dims dims;
};

struct Tensor {
  Element element;
  Dims dims;
  void* data;

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_TENSOR_H_
