"""Table `profile`: where the time of a whole training step of tftrain goes, by kind of operation.

The tasks are those of table `peers`. A process of its own runs TensorFlow's profiler over a few steps of one thread.
With one thread no two operations run at once. So the duration of an operation is its thread time, and the thread times
of all operations add up to that of the step.
"""

import itertools
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import task, text, training
from tftrain.bench.peers.table import flags_of
from tftrain.bench.table import BenchTable, Record, Say, TableRow, columns, each_row
from tftrain.bench.worker import Worker, serve
from tftrain.page.bars import BarSeries, Panel

STEPS, WARM_UP = 5, 2
TOTAL, OTHER, OPTIMIZER = "total", "other", "optimizer"
MODEL_SCOPE = re.compile(r"/block(_\d+)?/")
CALLS = re.compile(r"(Stateful)?PartitionedCall|While|If|SymbolicGradient|_Retval|_Arg")

# A part of the model, a pattern of an operation's type, and a pattern of its path; the first match counts. Types are
# those of the kernels that ran, so a product fused with its bias is one product.
RULES = tuple(
    (kind, re.compile(kernel), re.compile(path))
    for kind, kernel, path in (
        ("LayerNorm", "TftrainLayerNorm|TftrainRmsNorm", ""),
        ("softmax, with its dropout", "TftrainAttentionSoftmax", ""),
        ("attention core", "TftrainFlashAttention", ""),
        ("GeLU", "TftrainGelu|TftrainGeglu|TftrainSwiglu", ""),
        ("dropout and random numbers", "TftrainBiasDropoutAdd", ""),
        ("matrix products", "MatMul|Einsum", ""),
        ("loss", "CrossEntropy|ArgMax", ""),
        ("loss", "", "(?i)cross_?entropy"),
        ("casts", "Cast", ""),
        ("transposes", "Transpose", ""),
        ("softmax", "Softmax", ""),
        ("softmax", "", r"gradient_tape/.*self_attention(_\d+)?/(mul|mul_1|sub|Sum)$"),
        ("dropout and random numbers", "Random|Bitcast|GreaterEqual", ""),
        ("LayerNorm", "", r"layer_norm"),
        ("bias gradients", "BiasAddGrad", ""),
        ("GeLU", "", r"feed_forward(_\d+)?/[^/]*$|gradient_tape/.*feed_forward(_\d+)?/(?!dense)"),
        ("dropout and random numbers", "Mul|Select|StridedSlice", r"/(block|self_attention|embedding)(_\d+)?/"),
        ("residual adds and gradient sums", "Add|AddN|Sub", ""),
        ("embedding lookups", "Gather|UnsortedSegmentSum|Scatter", ""),
    )
)


class Op(NamedTuple):
    """An operation that ran, by its name and its type.

    The path contains the scopes of the layers, such as `.../block_3/feed_forward_3/Sigmoid`; that of backward has
    `gradient_tape/` before them.
    """

    path: str
    kernel: str


def records(row: TableRow, config: BenchConfig, say: Say) -> list[Record]:
    """Profiles a row in a process of its own; ignores `cpu_threads`, because a profile has one thread."""
    settings = {**row.settings, "extra_flags": config.extra_flags}
    with ExitStack() as stack:
        if task.TASKS[row.settings["task"]].of_text:
            settings |= stack.enter_context(text.prepared(row.settings["task"]))[text.PACKED]
        worker = stack.enter_context(Worker("tftrain.bench.profile", settings))
        rows = worker.ask(config.steps or STEPS)
    for record in rows:
        kernels = ", ".join(f"{name} {ms:.0f}" for name, ms in record.get("kernels", {}).items())
        say(f"{record['kind']:32} {record['thread_ms']:8.1f} ms {record['share']:6.1%}  {kernels}")
    say(f"{rows[-1]['cpu_ms']:.1f} ms of processor time a step; the rest of the total is waiting time")
    return rows


PROFILE = BenchTable(
    "profile",
    "thread time of a training step by kind of operation, on the batches of table peers",
    columns("task dtype kind thread_ms:1 share:3 ops:0"),
    tuple(
        TableRow(f"{work}/{dtype}", f"{work}/{dtype}", {"task": work, "precision": dtype, "flags": flags_of(work)})
        for work in task.TASKS
        for dtype in ("bf16", "fp32")
    ),
    each_row(records),
    panels=(Panel("Thread time of a step, ms", (BarSeries("thread_ms"),), ".1f", " ms"),),
    chart_note="A bar is the thread time of a kind of operation in one step, and its label is the same number.",
)


def build(settings: dict[str, Any]) -> Callable[[int], list[dict[str, Any]]]:
    """Builds the step; settings hold task, batches, precision, flags, and extra_flags, which win.

    Returns a function that takes a number of steps and returns the records of `summary`.
    """
    flags = f"{settings.get('flags', '')} {settings['extra_flags']}"
    config = training.configuration(settings["precision"], 1, flags, task.size(settings))
    update = training.make_step(config, inter_op_threads=1)
    batches = itertools.cycle(task.batches(settings, config.model.vocab_size))

    def profile(steps: int) -> list[dict[str, Any]]:
        import tensorflow as tf

        for _ in range(WARM_UP):
            update(next(batches))
        with tempfile.TemporaryDirectory() as folder:
            tf.profiler.experimental.start(folder)
            start = time.process_time()
            for _ in range(steps):
                update(next(batches))
            cpu_ms = (time.process_time() - start) / steps * 1e3
            tf.profiler.experimental.stop()
            *records, total = summary(list(read_events(Path(folder))), steps)
        shared = {"task": settings["task"], "dtype": settings["precision"]}
        return [{**shared, **record} for record in (*records, {**total, "cpu_ms": cpu_ms})]

    return profile


def read_events(folder: Path) -> Iterator[tuple[str, float]]:
    """Yields name and milliseconds of all host events of a profile."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    for path in folder.rglob("*.xplane.pb"):
        for plane in xplane_pb2.XSpace.FromString(path.read_bytes()).planes:
            if plane.name == "/host:CPU":
                for event in itertools.chain.from_iterable(line.events for line in plane.lines):
                    yield plane.event_metadata[event.metadata_id].name, event.duration_ps / 1e9


def summary(events: list[tuple[str, float]], steps: int) -> list[dict[str, Any]]:
    """Adds up the time of each kind of operation, from names and milliseconds of events of several steps.

    The time of an operation is the shortest of all steps, because other processes on the machine only lengthen it.
    Every operation ran equally often in each.

    Returns:
        Records of kind, thread_ms, share and ops, the costliest kind first, and their total.
    """
    times: dict[Op, list[float]] = defaultdict(list)
    for name, milliseconds in events:
        if (op := parse(name)) is not None:
            times[op].append(milliseconds)
    update = update_scopes(times)
    spent: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    largest: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for op, durations in times.items():
        kind, runs = kind_of(op, update), max(1, round(len(durations) / steps))
        milliseconds = min(durations) * runs
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


def parse(event: str) -> Op | None:
    """Parses a profiler's event, `path:type`; returns None for an event that is no operation or only calls others."""
    path, colon, kernel = event.rpartition(":")
    if not colon or path.endswith(":") or not kernel.isidentifier() or CALLS.fullmatch(kernel):
        return None
    return Op(path, kernel)


def update_scopes(ops: Iterable[Op]) -> set[str]:
    """Returns the outermost scopes of the optimizer's compiled update; these scopes contain no operation of the model.

    Gradients and update are separate functions, and the names of a function's operations begin with that of its call.
    """
    scopes: dict[str, bool] = {}
    for op in ops:
        first, slash, _ = op.path.partition("/")
        if slash and "PartitionedCall" in first:
            scopes[first] = scopes.get(first, False) or bool(MODEL_SCOPE.search(op.path))
    return {scope for scope, has_model in scopes.items() if not has_model}


def kind_of(op: Op, update: set[str]) -> str:
    """Returns the kind of an operation of a step with these `update_scopes`."""
    if op.path.partition("/")[0] in update:
        return OPTIMIZER
    return next((kind for kind, kernel, path in RULES if kernel.search(op.kernel) and path.search(op.path)), OTHER)


if __name__ == "__main__":
    serve(build)
