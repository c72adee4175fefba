"""The rows of table `attention`: a core in one dtype at one length. The cores of one length take turns."""

from collections.abc import Iterator
from contextlib import ExitStack

from tftrain.bench import host
from tftrain.bench.attention.chart import draw
from tftrain.bench.bars import MEANING, speed_panel
from tftrain.bench.config import BenchConfig
from tftrain.bench.report import spread
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns
from tftrain.bench.worker import Worker, WorkerError

STEPS = 5
LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
CORES = {"plain": "reference", "softmax": "fused", "flash": "flash"}  # by their names in tftrain.model.attention_cores
# What follows a core's name in rows with a mask, which `MASKED_CORES` have at some lengths; and fields of the mask.
MASKS = {"": {}, "causal": {"causal": True}, "window": {"window": 64}}
MASKED_CORES = ("softmax", "flash")
MASKED_LENGTHS = {"causal": (512, 2048), "window": (512, 2048, 8192)}
PASSES = ("forward", "backward")
# Tokens in all and not samples are the same in every row, so that a time that is linear in the length stays the same.
SIZES = {"tokens": 8192, "heads": 4, "head_size": 64, "rate": 0.1}

COLUMNS = columns("core dtype seq_length pass time_us:1 peak_mb:1")


def rows() -> tuple[Row, ...]:
    """Returns every core in every dtype and length, and some of them with a causal mask or a window."""
    names = []
    for dtype in ("fp32", "bf16"):
        for length in LENGTHS:
            names += [(core, dtype, length) for core in CORES]
            for mask, lengths in MASKED_LENGTHS.items():
                names += [(f"{core}_{mask}", dtype, length) for core in MASKED_CORES if length in lengths]
    return tuple(
        Row(f"{core}/{dtype}/{length}", f"{dtype}/{length}", {"core": core, "dtype": dtype, "length": length, **SIZES})
        for core, dtype, length in names
    )


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Measures the cores of one length, each in its own process, in turns."""
    shared = {"threads": host.threads(config.cpu_threads)}
    answers: dict[str, list[Record]] = {}
    errors: dict[str, str] = {}
    with ExitStack() as stack:
        workers = {}
        for row in group:
            core, _, mask = row.settings["core"].partition("_")
            settings = {**row.settings, **shared, "core": CORES[core], "mask": MASKS[mask]}
            workers[row.name] = stack.enter_context(Worker("tftrain.bench.attention.worker", settings))
        for _step in range(1 + (config.steps or STEPS)):  # the first calls of a process are its warm-up
            for name in [name for name in workers if name not in errors]:
                try:
                    answers.setdefault(name, []).append(workers[name].ask("measure"))
                except WorkerError as error:
                    errors[name] = str(error)
    found = {row.name: records(row, answers[row.name]) for row in group if row.name not in errors}
    every = [record for made in found.values() for record in made]
    for row in group:
        if row.name in errors:
            yield Outcome(row.name, [], errors[row.name])
            continue
        for record in found[row.name]:
            compare(record, every)
            say(
                f"{record['core']:8} {record['pass']:8} {record['time_us']:12.1f} us ({record['time_us_low']:.1f} to "
                f"{record['time_us_high']:.1f}), {record['peak_mb']:.1f} MB"
            )
        yield Outcome(row.name, found[row.name])


def records(row: Row, answers: list[Record]) -> list[Record]:
    """Returns a row's records, one for each pass.

    Args:
        row: of the table.
        answers: of its process. The first has the peaks of memory that was never used before, the others the times.
    """
    settings, first = row.settings, answers[0]
    made = []
    for name in PASSES:
        seconds = spread([answer["seconds"][name] for answer in answers[1:] or answers])
        made.append(
            {
                "core": settings["core"],
                "dtype": settings["dtype"],
                "seq_length": settings["length"],
                "pass": name,
                "time_us": seconds["median"] * 1e6,
                "peak_mb": first["peak_bytes"][name] / 1e6,
                "time_us_low": seconds["low"] * 1e6,
                "time_us_high": seconds["high"] * 1e6,
                "time_us_min": seconds["min"] * 1e6,
                "shape": first["shape"],
                "device": first["device"],
            }
        )
    return made


def compare(record: Record, every: list[Record]) -> None:
    """Adds the change of speed against the fused softmax with the same mask and pass, and the spread of its times.

    Args:
        record: of one core and pass.
        every: the records of all cores at the same length, in the same dtype.
    """
    base = "_".join(["softmax", *record["core"].split("_")[1:]])
    for other in every:
        if (other["core"], other["pass"]) == (base, record["pass"]) and record["core"] != base:
            record["speed_change_pct"] = 100 * (other["time_us"] / record["time_us"] - 1)
            record["base_spread_pct"] = 100 * (other["time_us_high"] - other["time_us_low"]) / other["time_us"]


ATTENTION = Table(
    "attention",
    "time and memory of the attention cores at sequences of 128 to 8192 tokens, on the CPU",
    COLUMNS,
    rows(),
    measure,
    draw=draw,
    panels=(speed_panel("Speed of the core: change, %"),),
    chart_note=MEANING.format(
        base="matrix products with the fused softmax", spread="the distance between the quartiles of its times"
    ),
    labels=("core", "dtype", "seq_length", "pass"),
)
