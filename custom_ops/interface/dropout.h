// The attributes and the input by which an op with dropout names its masks; see kernels/common/philox.h.
#ifndef TFTRAIN_CUSTOM_OPS_INTERFACE_DROPOUT_H_
#define TFTRAIN_CUSTOM_OPS_INTERFACE_DROPOUT_H_

#include <string>

#include "custom_ops/interface/check.h"
#include "custom_ops/kernels/common/philox.h"

namespace tftrain {

constexpr int64_t kMostHeads = 1 << 20;       // of a layer
constexpr int64_t kMostRows = int64_t{1} << 31;  // of a sample

struct DropoutAttributes {
  int64_t drop_below = 0;
  int64_t seed = 0;
  int64_t site = 0;

  template <typename Visitor>
  void Visit(Visitor& visit) {
    visit("drop_below", &drop_below);
    visit("seed", &seed);
    visit("site", &site);
  }

  // `position` is the input int64 [2]: the update's number, and the first sample's index in the global batch.
  void CheckWith(Check& check, const Spec& position) const {
    check.That(drop_below >= 0 && drop_below < kRateUnit,
               "drop_below is " + std::to_string(drop_below) + " of 65536: the rate must be in [0, 1)");
    check.That(site >= 0 && site < kSites,
               "site is " + std::to_string(site) + ", expected a number from 0 to " + std::to_string(kSites - 1));
    check.Element("position", position, Element::kInt64);
    check.Shape("position", position, {true, {2}});
  }

  // For dropout of attention probabilities.
  void CheckOfProbabilities(Check& check, const Spec& position) const {
    CheckWith(check, position);
    check.That(drop_below % 256 == 0, "drop_below is " + std::to_string(drop_below) +
                                          " of 65536, expected a multiple of 256 for attention probabilities");
  }

  Dropout With(const Tensor& position) const { return {drop_below, seed, site, position.as<const int64_t>()}; }
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_INTERFACE_DROPOUT_H_
