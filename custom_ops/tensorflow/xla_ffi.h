// XLA's registry of FFI handlers. Its own header, xla/ffi/ffi_api.h, includes MLIR's from TensorFlow 2.21 on, which the wheel
// lacks.
#ifndef TFTRAIN_CUSTOM_OPS_TENSORFLOW_XLA_FFI_H_
#define TFTRAIN_CUSTOM_OPS_TENSORFLOW_XLA_FFI_H_

#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
const XLA_FFI_Api* GetXlaFfiApi();
}

#endif  // TFTRAIN_CUSTOM_OPS_TENSORFLOW_XLA_FFI_H_
