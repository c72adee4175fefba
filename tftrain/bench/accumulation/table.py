"""The rows of table `accumulation`: number formats of the buffer, fp16 under several loss scales.

All rows accumulate the same gradients in one process. `--steps` has no effect: a second run gives the same figures.
"""

from collections.abc import Iterator

from tftrain.bench import host
from tftrain.bench.bars import Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns
from tftrain.bench.worker import Worker
from tftrain.host.units import DTYPES

COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
FLAGS = (
    "--synthetic_data --num_hidden_layers=2 --hidden_size=128 --num_attention_heads=2 --vocab_size=1009 "
    "--max_seq_length=64 --max_predictions_per_seq=10 --micro_batch_size=2 --output_dir=unused"
)

COLUMNS = columns("micro_batches:0 dtype relative_error loss_scale:0 vanished:4")

# fp32 and bf16 have the same range of exponents: a power of two changes nothing. tftrain.run starts with 2^15.
BUFFERS = (("fp32", 1), ("bf16", 1), ("fp16", 1), ("fp16", 2**15), ("fp16", 2**20))


def rows() -> tuple[Row, ...]:
    """Returns a row for every buffer; all in one group."""
    return tuple(
        Row(f"{dtype}/{scale}" if dtype == "fp16" else dtype, "all", {"dtype": dtype, "loss_scale": scale})
        for dtype, scale in BUFFERS
    )


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Adds up the same gradients for every row."""
    say(f"{max(COUNTS)} micro-batches, once")
    settings = {
        "flags": f"{FLAGS} --cpu_threads={host.threads(config.cpu_threads)} {config.extra_flags}",
        "counts": COUNTS,
    }
    buffers = [[DTYPES[row.settings["dtype"]], float(row.settings["loss_scale"])] for row in group]
    with Worker("tftrain.bench.accumulation.worker", settings) as worker:
        found = worker.ask(buffers)
    for row, points in zip(group, found, strict=True):
        yield Outcome(row.name, [record(row, *point) for point in points])


def record(row: Row, micro_batches: int, relative_error: float | None, vanished: float) -> Record:
    """Returns a line of the table; errors have two significant digits; an overflow has none."""
    shown = None if relative_error is None else float(f"{relative_error:.1e}")
    return {**row.settings, "micro_batches": micro_batches, "relative_error": shown, "vanished": vanished}


ACCUMULATION = Table(
    "accumulation",
    "the error of gradients that were added up over micro-batches, by the buffer's format, against fp64",
    COLUMNS,
    rows(),
    measure,
    panels=(Panel("Relative error of the sum", (Series("relative_error"),), ".1e"),),
    labels=("dtype", "micro_batches", "loss_scale"),
    chart_note="A bar is the error of a sum of that many micro-batches, and its label is the same number.",
)
