"""The process that times one row of table `kernels`: rounds in which a copy and every implementation run in turn."""

import time
from collections.abc import Callable, Iterator
from typing import Any

from tftrain.bench.report import spread
from tftrain.bench.worker import serve
from tftrain.plan.machine import copier

WARM_UP = 3
TENSORFLOW = ("reference", "tf_nn")  # implementations in plain TensorFlow


def build(settings: dict[str, Any]) -> Callable[[Any], list[dict[str, Any]]]:
    """Returns what measures a row; settings hold op, dtype, sizes, steps, threads and working_set in bytes."""
    import tensorflow as tf

    from tftrain.bench.kernels import cases, traffic, updates
    from tftrain.host.devices import device_name

    threads = settings["threads"]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    op, dtype, sizes = settings["op"], settings["dtype"], settings["sizes"]
    if op in traffic.UPDATE_BYTES:
        case = updates.update_case(op, dtype, sizes)
    else:
        case = cases.elementwise_case(op, dtype, sizes, settings["working_set"])
    copy = copier(settings["working_set"], threads)
    device = f"{device_name()} ({threads} threads)"

    def measure(_request: str):
        records = []
        for name, part in case.passes.items():
            timed = alternate(part.run, copy, settings["steps"])
            case_fields = {"op": op, "pass": name, "dtype": dtype, "shape": case.shape, "device": device}
            records += [{**case_fields, **record} for record in figures(timed, part.bytes)]
        return records

    return measure


def alternate(run: dict[str, Callable[[], Any]], copy: Callable[[], float], steps: int) -> dict[str, list[float]]:
    """Times the implementations in turn for some steps, so that a disturbance of the machine affects all of them.

    `copy` copies once and returns bytes per second. Returns seconds by implementation; under "copy", bytes per second.
    """
    timed: dict[str, list[float]] = {name: [] for name in (*run, "copy")}
    for number in range(WARM_UP + steps):
        for name, function in run.items():
            getattr(function, "prepare", lambda: None)()
            start = time.perf_counter()
            result = function()
            seconds = time.perf_counter() - start
            del result  # frees its memory outside the measured time
            if number >= WARM_UP:
                timed[name].append(seconds)
        bandwidth = copy()
        if number >= WARM_UP:
            timed["copy"].append(bandwidth)
    return timed


def _change(seconds: dict[str, float], tensorflow: dict[str, float], repeated: bool) -> dict[str, float | None]:
    """Returns the change of speed against TensorFlow, and the spread between the quartiles of TensorFlow's times."""
    spread_of_base = 100 * (tensorflow["high"] - tensorflow["low"]) / tensorflow["median"]
    return {
        "speed_change_pct": 100 * (tensorflow["median"] / seconds["median"] - 1),
        "base_spread_pct": spread_of_base if repeated else None,  # one measurement has no spread
    }


def figures(timed: dict[str, list[float]], moved: int) -> Iterator[dict[str, Any]]:
    """Yields the records of one pass, one for each implementation, from the times of `alternate`.

    Only the fastest of TensorFlow's implementations counts. `moved` is the least number of bytes that the pass moves.
    """
    timed = dict(timed)
    copy = {name: value / 1e9 for name, value in spread(timed.pop("copy")).items()}
    times = {name: spread(seconds) for name, seconds in timed.items()}
    tensorflow = min((times[name] for name in TENSORFLOW if name in times), key=lambda time: time["median"])
    for name, seconds in times.items():
        rate = moved / seconds["median"] / 1e9
        yield {
            "implementation": name,
            "time_us": seconds["median"] * 1e6,
            "gb_per_s": rate,
            "share_of_copy": rate / copy["median"],
            "speedup_over_tf": tensorflow["median"] / seconds["median"],
            **(_change(seconds, tensorflow, len(timed[name]) > 1) if name == "fused" else {}),
            **{f"time_us_{each}": seconds[each] * 1e6 for each in ("low", "high", "min")},
            "copy_gb_per_s": copy["median"],
            **{f"copy_gb_per_s_{each}": copy[each] for each in ("low", "high", "max")},
            "bytes": moved,
        }


if __name__ == "__main__":
    serve(build)
