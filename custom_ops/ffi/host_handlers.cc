// The handlers of all ops on the host: C functions that end in _host.
#include "custom_ops/ffi/handler.h"
#include "custom_ops/interface/all_ops.h"

#define TFTRAIN_HOST(Op, symbol) TFTRAIN_HOST_HANDLER(symbol##_host, tftrain::Op);

TFTRAIN_FOR_EACH_OP(TFTRAIN_HOST)

#define TFTRAIN_NAMES(Op, symbol) tftrain::Op::kName, #symbol,

// For each op its name, and that of its C functions without their suffix; null after the last. For programs without TensorFlow.
extern "C" __attribute__((visibility("default"))) const char* const* tftrain_ops() {
  static const char* const names[] = {TFTRAIN_FOR_EACH_OP(TFTRAIN_NAMES) nullptr};
  return names;
}
