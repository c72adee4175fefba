// The activations that the kernels of gelu.h and glu.h are templates of.
#ifndef TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_H_
#define TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_H_

#include <type_traits>

namespace tftrain {

enum class Activation {
  kGeluErf,   // z Phi(z)
  kGeluTanh,  // z sigmoid(2 sqrt(2 / pi) (z + 0.044715 z^3))
  kSilu,      // z sigmoid(z)
};

// GeLU (Hendrycks and Gimpel, arXiv 1606.08415), in its tanh form or exact.
inline Activation GeluForm(bool approximate) { return approximate ? Activation::kGeluTanh : Activation::kGeluErf; }

template <Activation kValue>
using ActivationConstant = std::integral_constant<Activation, kValue>;

// Calls run(ActivationConstant<activation>()).
template <typename Run>
inline auto WithActivation(Activation activation, const Run& run) {
  switch (activation) {
    case Activation::kGeluErf:
      return run(ActivationConstant<Activation::kGeluErf>());
    case Activation::kGeluTanh:
      return run(ActivationConstant<Activation::kGeluTanh>());
    default:
      return run(ActivationConstant<Activation::kSilu>());
  }
}

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_KERNELS_ELEMENTWISE_ACTIVATION_H_
