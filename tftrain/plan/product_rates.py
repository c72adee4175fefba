"""Measures how fast TensorFlow multiplies matrices on this machine's processor, in a process of its own.

`python -m tftrain.plan.product_rates SECONDS SIZE...` prints a JSON list: the rate of fp32 products [size, size] x
[size, size] for each size, and that of bfloat16 products of the last size, in TFLOPs.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

# Small products are many at once, as in attention: so many operations at least.
_OPERATIONS = 2 * 512**3


def measure(sizes: Sequence[int], seconds: float) -> tuple[dict[int, float], float]:
    """Returns the rates of fp32 products by size, and that of bfloat16 products of the last size, in TFLOPs.

    Args:
        seconds: of the measurement of each.
    """
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-m", __name__, str(seconds), *map(str, sizes)]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    *rates, half = json.loads(printed)
    return dict(zip(sizes, rates, strict=True)), half


def fastest(action: Callable[[], object], seconds: float) -> float:
    """Returns the seconds of the fastest of several runs, which take so many seconds together."""
    best, stop = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < stop or best == float("inf"):
        begin = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - begin)
    return best


def _main(seconds: float, *sizes: int) -> None:
    import tensorflow as tf

    rates = []
    for size, dtype in [*((size, tf.float32) for size in sizes), (sizes[-1], tf.bfloat16)]:
        count = max(1, _OPERATIONS // (2 * size**3))
        matrices = tf.ones((count, size, size), dtype)
        taken = fastest(lambda matrices=matrices: tf.matmul(matrices, matrices).numpy(), seconds)
        rates.append(2e-12 * count * size**3 / taken)
    print(json.dumps(rates))


if __name__ == "__main__":
    _main(float(sys.argv[1]), *map(int, sys.argv[2:]))
