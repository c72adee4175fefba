// The handlers of all ops on the host: C functions that end in _host.
#include "custom_ops/ffi/handler.h"
#include "custom_ops/interface/all_ops.h"

#define TFTRAIN_HOST(Op, symbol) TFTRAIN_HOST_HANDLER(symbol##_host, tftrain::Op);

TFTRAIN_FOR_EACH_OP(TFTRAIN_HOST)
