// Checks of an op's inputs that name the argument, and put together what the inputs say of common dimensions. A size that
// is not known yet agrees with every other.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_CHECK_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_CHECK_H_

#include <string>
#include <vector>

#include "custom_ops/interface/tensor.h"

namespace tftrain {

// Collects the first problem found; the checks after it do nothing.
class Check {
 public:
  // Empty if all is well.
  const std::string& problem() const { return problem_; }

  void That(bool holds, const std::string& problem) {
    if (problem_.empty() && !holds) problem_ = problem;
  }

  void Element(const char* name, const Spec& spec, tftrain::Element expected) {
    That(spec.element == expected, std::string(name) + " is " + Name(spec.element) + ", expected " + Name(expected));
  }

  void Storage(const char* name, const Spec& spec) {
    That(IsStorage(spec.element),
         std::string(name) + " is " + Name(spec.element) + ", expected float32, float16 or bfloat16");
  }

  void RankAtLeast(const char* name, const Spec& spec, int rank) {
    if (!spec.dims.known_rank) return;
    That(spec.dims.rank() >= rank, std::string(name) + " has shape " + spec.dims.ToString() + ", expected at least " +
                                       std::to_string(rank) + (rank == 1 ? " dimension" : " dimensions"));
  }

  // Returns `expected` with the sizes that `spec` knows and it does not.
  Dims Shape(const char* name, const Spec& spec, Dims expected) {
    if (!spec.dims.known_rank) return expected;
    if (!expected.known_rank) return spec.dims;
    bool agrees = spec.dims.rank() == expected.rank();
    for (int i = 0; agrees && i < expected.rank(); ++i) {
      const int64_t given = spec.dims[i];
      agrees = given == kUnknown || expected[i] == kUnknown || given == expected[i];
    }
    That(agrees,
         std::string(name) + " has shape " + spec.dims.ToString() + ", expected " + expected.ToString());
    if (!agrees) return expected;
    for (int i = 0; i < expected.rank(); ++i) {
      if (expected.sizes[i] == kUnknown) expected.sizes[i] = spec.dims[i];
    }
    return expected;
  }

  // The list `name` has `most` tensors at most.
  void AtMost(const char* name, int64_t given, int64_t most) {
    That(given >= 0 && given <= most, std::string(name) + " holds " + std::to_string(given) +
                                          " tensors, expected at most " + std::to_string(most));
  }

  // [first, first + size) lies in [0, total), where `total` numbers what all ranks have together. The limit of `total`
  // keeps the numbers of elements that follow from it within int64.
  void Within(const char* name, int64_t first, int64_t size, const char* total_name, int64_t total, int64_t most) {
    const std::string given = std::string(name) + " is " + std::to_string(first) + " of " + total_name + " " +
                              std::to_string(total);
    That(total <= most, given + ", expected at most " + std::to_string(most));
    That(first >= 0 && size <= total && first <= total - size,
         given + ", which leaves no room for " + std::to_string(size));
  }

 private:
  std::string problem_;
};

// The last dimension, and all but it; unknown where the rank is.
inline int64_t LastDim(const Dims& dims) { return dims.known_rank && dims.rank() > 0 ? dims[-1] : kUnknown; }

inline Dims AllButLast(Dims dims) {
  if (dims.known_rank && dims.rank() > 0) dims.sizes.pop_back();
  return dims;
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_CHECK_H_
