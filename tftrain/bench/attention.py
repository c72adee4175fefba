"""Table `attention`: time and memory of every attention core, forward and backward, by the sequence length.

A row is a core in one dtype at one length, and has a process of its own. The cores of one length take turns.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.picture import legend
from tftrain.bench.report import spread
from tftrain.bench.table import BenchTable, Record, RowOutcome, Say, TableRow, cases, columns, in_turns
from tftrain.bench.worker import Worker, serve
from tftrain.host import devices
from tftrain.page.bars import MEANING, speed_panel

STEPS = 5
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
CORES = {"plain": "reference", "softmax": "fused", "flash": "flash"}  # by their names in tftrain.model.attention_cores
# What follows a core's name in rows with a mask, which `MASKED_CORES` have at some lengths; and fields of the mask.
MASKS = {"": {}, "causal": {"causal": True}, "window": {"window": 64}}
MASKED_CORES, MASKED_LENGTHS = ("softmax", "flash"), {"causal": (512, 2048), "window": (512, 2048, 8192)}
PASSES = ("forward", "backward")
# Tokens in all and not samples are the same in every row, so that a time that is linear in the length stays the same.
SIZES = {"tokens": 8192, "heads": 4, "head_size": 64, "rate": 0.1}
COLOURS = {"plain": "#8c8c8c", "softmax": "#d98e4a", "flash": "#1f4e79"}
LINES = {"fp32": "-", "bf16": "--"}


def rows() -> tuple[TableRow, ...]:
    """Returns every core in every dtype and length, and some of them with a causal mask or a window."""
    settings = []
    for dtype, length in itertools.product(("fp32", "bf16"), LENGTHS):
        masks = [mask for mask, lengths in MASKED_LENGTHS.items() if length in lengths]
        cores = [*CORES, *(f"{core}_{mask}" for mask in masks for core in MASKED_CORES)]
        settings += [{"core": core, "dtype": dtype, "length": length, **SIZES} for core in cores]
    return cases(settings, "{core}/{dtype}/{length}", "{dtype}/{length}")


def measure(group: list[TableRow], config: BenchConfig, say: Say) -> Iterator[RowOutcome]:
    """Measures the cores of one length, each in its own process, in turns."""
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        workers = {}
        for row in group:
            core, _, mask = row.settings["core"].partition("_")
            core = {"core": CORES[core], "mask": MASKS[mask]}
            settings = {**row.settings, "threads": host.threads(config.cpu_threads), **core}
            workers[row.name] = stack.enter_context(Worker("tftrain.bench.attention", settings))
        # The first calls of a process are its warm-up.
        answers = in_turns(group, 1 + (config.steps or STEPS), lambda row: workers[row.name].ask("measure"), errors)
    measured = {row.name: list(records(row, answers[row.name])) for row in group if row.name not in errors}
    every = list(itertools.chain(*measured.values()))
    for row in group:
        for record in measured.get(row.name, ()):
            compare(record, every)
            say(
                f"{record['core']:8} {record['pass']:8} {record['time_us']:12.1f} us ({record['time_us_low']:.1f} to "
                f"{record['time_us_high']:.1f}), {record['peak_mb']:.1f} MB"
            )
        yield RowOutcome(row.name, measured.get(row.name, []), errors.get(row.name))


def records(row: TableRow, answers: list[Record]) -> Iterator[Record]:
    """Yields a row's records, one for each pass, from the answers of its process.

    The peaks of memory come from the first answer, before which no memory was used. The times come from the others.
    """
    settings, first = row.settings, answers[0]
    for name in PASSES:
        times = spread([answer["seconds"][name] * 1e6 for answer in answers[1:] or answers])
        yield {
            "core": settings["core"],
            "dtype": settings["dtype"],
            "seq_length": settings["length"],
            "pass": name,
            "time_us": times["median"],
            "peak_mb": first["peak_bytes"][name] / 1e6,
            **{f"time_us_{each}": times[each] for each in ("low", "high", "min")},
            "steps": len(answers[1:]),
            "shape": first["shape"],
            "device": first["device"],
        }


def compare(record: Record, every: list[Record]) -> None:
    """Adds the change of speed against the fused softmax with the same mask and pass, and the spread of its times.

    `every` has the records of all cores at the same length, in the same dtype.
    """
    base = "_".join(["softmax", *record["core"].split("_")[1:]])
    for other in every:
        if (other["core"], other["pass"]) == (base, record["pass"]) and record["core"] != base:
            record["speed_change_pct"] = 100 * (other["time_us"] / record["time_us"] - 1)
            if other["steps"] > 1:  # One measurement has no spread.
                record["base_spread_pct"] = 100 * (other["time_us_high"] - other["time_us_low"]) / other["time_us"]


def draw(records: Sequence[Record]) -> Any:
    """Draws a line for each core and dtype: both passes' time together, and the peak of memory over both.

    The x axis is the sequence length; all axes are logarithmic.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8))
    lengths = sorted({record["seq_length"] for record in records})
    titles = "Forward and backward (ms)", "Peak memory (MB)"
    for column, (axes, title) in enumerate(zip(figure.subplots(1, 2), titles, strict=True), start=1):
        for (core, dtype), points in lines(records).items():
            style = {"color": COLOURS[core], "linestyle": LINES[dtype], "marker": "o", "markersize": 4}
            x, y = [point[0] for point in points], [point[column] for point in points]
            axes.plot(x, y, label=f"{core} {dtype}", **style)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(lengths, [str(length) for length in lengths])
        axes.set_xlabel("tokens of a sequence; tokens of the batch are constant")
        axes.set_title(title)
    legend(figure)
    return figure


def lines(records: Sequence[Record]) -> dict[tuple[str, str], list[tuple[int, float, float]]]:
    """Returns by core and dtype, for each length with both passes: the length, milliseconds and MB.

    Cores with a causal mask or a window have no line.
    """
    passes: dict[tuple[str, str, int], list[Record]] = {}
    for record in records:
        passes.setdefault((record["core"], record["dtype"], record["seq_length"]), []).append(record)
    points: dict[tuple[str, str], list[tuple[int, float, float]]] = {}
    for (core, dtype, length), both in sorted(passes.items()):
        if len(both) == 2 and core in COLOURS:
            point = length, sum(each["time_us"] for each in both) / 1000, max(each["peak_mb"] for each in both)
            points.setdefault((core, dtype), []).append(point)
    return points


ATTENTION = BenchTable(
    "attention",
    "time and memory of the attention cores at sequences of 128 to 8192 tokens, on the CPU",
    columns("core dtype seq_length pass time_us:1 peak_mb:1"),
    rows(),
    measure,
    draw=draw,
    panels=(speed_panel("Speed of the core: change, %"),),
    chart_note=MEANING.format(
        base="matrix products with the fused softmax", spread="the distance between the quartiles of its times"
    ),
    labels=("core", "dtype", "seq_length", "pass"),
)


def build(settings: dict[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Prepares the process of a row, in graph mode as in a step; settings are those of the row, threads and mask.

    Returns a function that runs both passes once and returns seconds and peak_bytes by pass, shape and device.
    peak_bytes is the growth of the process's resident memory since the first request, at its peak during the pass. It
    includes query, key, value and, in backward, what forward has kept. Only in the first answer is the memory still
    unused.
    """
    import tensorflow as tf

    from tftrain.host.units import DTYPES
    from tftrain.model import attention_cores
    from tftrain.ops.dropout import DropoutKey, dropout_at

    threads, dtype = settings["threads"], DTYPES[settings["dtype"]]
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(max(2, threads))
    core, base = attention_cores.CORES[settings["core"]], 0

    @tf.function(autograph=False)
    def attend(query: tf.Tensor, key: tf.Tensor, value: tf.Tensor, keys: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        dropout = dropout_at(DropoutKey(1, step, tf.zeros([], tf.int64)), settings["rate"], 1)
        return core(query, key, value, attention_cores.AttentionMask(keys, **settings["mask"]), dropout)

    def run(batch: int, length: int) -> tuple[dict[str, float], dict[str, int]]:
        """Returns seconds and the peak of resident memory by pass."""
        shape = [batch, length, settings["heads"], settings["head_size"]]
        tensors = [tf.random.stateless_normal(shape, [seed, 0], dtype=dtype) for seed in range(3)]
        mask, step = tf.ones([batch, length], tf.int32), tf.constant(3, tf.int64)
        seconds, peaks = {}, {}

        @contextmanager
        def measured(name: str) -> Iterator[None]:
            devices.SELF.joinpath("clear_refs").write_text("5")  # lowers VmHWM to the memory resident now; see proc(5)
            start = time.perf_counter()
            yield
            seconds[name], peaks[name] = time.perf_counter() - start, devices.resident_bytes("VmHWM")

        with measured("forward"), tf.GradientTape() as tape:
            tape.watch(tensors)
            context = attend(*tensors, mask, step)
        upstream = tf.random.stateless_normal(shape, [3, 0], dtype=dtype)
        with measured("backward"):
            _gradients = tape.gradient(context, tensors, upstream)
        return seconds, peaks

    run(1, 16)  # loads the kernels and starts the threads

    batch, length = settings["tokens"] // settings["length"], settings["length"]
    shape = "x".join(map(str, (batch, length, settings["heads"], settings["head_size"])))
    fixed = {"shape": shape, "device": f"{devices.device_name()} ({threads} threads)"}

    def measure(_request: str) -> Record:
        nonlocal base
        base = base or devices.resident_bytes("VmRSS")
        seconds, peaks = run(batch, length)
        return {"seconds": seconds, "peak_bytes": {name: peak - base for name, peak in peaks.items()}, **fixed}

    return measure


if __name__ == "__main__":
    serve(build)
