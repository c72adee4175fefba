"""The process that profiles a training step: TensorFlow's profiler over a few steps of one thread.

With one thread no two operations run at once. So the duration of an operation is its thread time, and the thread times
of all operations add up to that of the step.
"""

import itertools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tftrain.bench.peers import task, training
from tftrain.bench.profile import kinds
from tftrain.bench.worker import serve

WARM_UP = 2
TOTAL = "total"


def build(settings: dict[str, Any]) -> Callable[[int], list[dict[str, Any]]]:
    """Builds the step; settings hold task, batches, precision, flags, and extra_flags, which win.

    Returns:
        A function that takes a number of steps and returns the records of `summary`.
    """
    given = f"{settings.get('flags', '')} {settings['extra_flags']}"
    config = training.configuration(settings["precision"], 1, given, task.size(settings))
    update = training.make_step(config, inter_op_threads=1)
    batches = itertools.cycle(task.batches(settings, config.model.vocab_size))

    def step() -> None:
        update(next(batches))

    def profile(steps: int) -> list[dict[str, Any]]:
        import tensorflow as tf

        for _ in range(WARM_UP):
            step()
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            start = time.process_time()
            for _ in range(steps):
                step()
            cpu_ms = (time.process_time() - start) / steps * 1e3
            tf.profiler.experimental.stop()
            events = list(read_events(Path(folder)))
        *records, total = summary(events, steps)
        return [
            {"task": settings["task"], "dtype": settings["precision"], **record}
            for record in (*records, {**total, "cpu_ms": cpu_ms})
        ]

    return profile


def read_events(folder: Path) -> Iterator[tuple[str, float]]:
    """Yields name and milliseconds of all host events of a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in folder.rglob("*.xplane.pb"):
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
        for plane in space.planes:
            if plane.name != "/host:CPU":
                continue
            for line in plane.lines:
                for event in line.events:
                    yield plane.event_metadata[event.metadata_id].name, event.duration_ps / 1e9


def summary(events: list[tuple[str, float]], steps: int) -> list[dict[str, Any]]:
    """Adds up the time of each kind of operation.

    The time of an operation is the shortest of all steps, because other processes on the machine only lengthen it.

    Args:
        events: name and milliseconds.
        steps: number of steps; every operation ran equally often in each.

    Returns:
        Records of kind, thread_ms, share and ops, the costliest kind first, and their total.
    """
    times: dict[kinds.Op, list[float]] = defaultdict(list)
    for name, milliseconds in events:
        if (op := kinds.parse(name)) is not None:
            times[op].append(milliseconds)
    update = kinds.update_scopes(times)
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    largest: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op, each in times.items():
        kind, runs = kinds.kind_of(op, update), max(1, round(len(each) / steps))
        milliseconds = min(each) * runs
        spent[kind] += milliseconds
        counts[kind] += runs
        largest[kind][op.kernel] += milliseconds
    total = sum(spent.values())
    records = [
        {
            "kind": kind,
            "thread_ms": spent[kind],
            "share": spent[kind] / total,
            "ops": counts[kind],
            "kernels": dict(sorted(largest[kind].items(), key=lambda item: -item[1])[:5]),
        }
        for kind in sorted(spent, key=lambda kind: -spent[kind])
    ]
    return [*records, {"kind": TOTAL, "thread_ms": total, "share": 1.0, "ops": sum(counts.values())}]


if __name__ == "__main__":
    serve(build)
