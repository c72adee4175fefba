"""Measures how fast TensorFlow multiplies matrices on this machine's processor; `tftrain.plan.machine` starts it.

`python -m tftrain.bench.product_rates SECONDS SIZE...` prints a JSON list: the rate of fp32 products [size, size] x
[size, size] for each size, and that of bfloat16 products of the last size, in TFLOPs.
"""

import json
import sys

import tensorflow as tf

from tftrain.plan.machine import fastest

# Small products are many at once, as in attention: so many operations at least.
_OPERATIONS = 2 * 512**3


def _main(seconds: float, *sizes: int) -> None:
    rates = []
    for size, dtype in [*((size, tf.float32) for size in sizes), (sizes[-1], tf.bfloat16)]:
        count = max(1, _OPERATIONS // (2 * size**3))
        matrices = tf.ones((count, size, size), dtype)
        taken = fastest(lambda matrices=matrices: tf.matmul(matrices, matrices).numpy(), seconds)
        rates.append(2e-12 * count * size**3 / taken)
    print(json.dumps(rates))


if __name__ == "__main__":
    _main(float(sys.argv[1]), *map(int, sys.argv[2:]))
