"""The process that measures one attention core: a forward and a backward pass a request, in graph mode as in a step."""

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tftrain.bench.worker import serve

SELF = Path("/proc/self")


def build(settings: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Prepares a row.

    Args:
        settings: core, mask (fields of the `AttentionMask`), dtype, length, threads, tokens, heads, head_size and rate.

    Returns:
        A function that runs both passes once and returns seconds and peak_bytes by pass, shape and device. peak_bytes
        is the growth of the process's resident memory since the first request, at its peak during the pass. It includes
        query, key, value and, in backward, what forward has kept. Only in the first answer is the memory still unused.
    """
    import tensorflow as tf

    from tftrain.host.devices import device_name
    from tftrain.host.units import DTYPES
    from tftrain.model.attention_cores import CORES, AttentionMask
    from tftrain.ops.dropout import DropoutKey, dropout_at

    threads, dtype = settings["threads"], DTYPES[settings["dtype"]]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    core, base = CORES[settings["core"]], 0

    @tf.function(autograph=False)
    def attend(query, key, value, keys, step):
        dropout = dropout_at(DropoutKey(1, step, tf.zeros([], tf.int64)), settings["rate"], 1)
        return core(query, key, value, AttentionMask(keys, **settings["mask"]), dropout)

    def run(batch, length):
        """Returns seconds and the peak of resident memory by pass."""
        shape = [batch, length, settings["heads"], settings["head_size"]]
        tensors = [tf.random.stateless_normal(shape, [seed, 0], dtype=dtype) for seed in range(3)]
        mask, step = tf.ones([batch, length], tf.int32), tf.constant(3, tf.int64)
        seconds, peaks = {}, {}
        reset_peak()
        start = time.perf_counter()
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            context = attend(*tensors, mask, step)
        seconds["forward"], peaks["forward"] = time.perf_counter() - start, resident_bytes("VmHWM")
        upstream = tf.random.stateless_normal(shape, [3, 0], dtype=dtype)
        reset_peak()
        start = time.perf_counter()
        gradients = tape.gradient(context, tensors, upstream)
        seconds["backward"], peaks["backward"] = time.perf_counter() - start, resident_bytes("VmHWM")
        del gradients
        return seconds, peaks

    run(1, 16)  # loads the kernels and starts the threads

    batch, length = settings["tokens"] // settings["length"], settings["length"]
    shape = "x".join(map(str, (batch, length, settings["heads"], settings["head_size"])))
    fixed = {"shape": shape, "device": f"{device_name()} ({threads} threads)"}

    def measure(_request):
        nonlocal base
        base = base or resident_bytes("VmRSS")
        seconds, peaks = run(batch, length)
        return {"seconds": seconds, "peak_bytes": {name: peak - base for name, peak in peaks.items()}, **fixed}

    return measure


def resident_bytes(name: str) -> int:
    """Returns the resident memory of this process: VmRSS now, VmHWM at its peak."""
    return int(re.search(rf"^{name}:\s*(\d+) kB", (SELF / "status").read_text(), re.MULTILINE)[1]) * 1024


def reset_peak() -> None:
    """Lowers VmHWM to the memory resident now; see proc(5)."""
    (SELF / "clear_refs").write_text("5")


if __name__ == "__main__":
    serve(build)
