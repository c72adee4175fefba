"""The rows of table `checkpoint`: saving and restoring the state of a BERT-base model, about 110M parameters, in fp32.

All rows are measured in one process, on one rank and the same files, in alternation. The files are in a temporary
folder in `--output_dir`: its disk is measured.
"""

import shutil
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tftrain.bench import host
from tftrain.bench.bars import Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Outcome, Record, Row, Say, Table, columns
from tftrain.bench.worker import Worker

STEPS = 5
# Saves in the middle of a run, so there is a buffer for the copy.
FLAGS = (
    "--synthetic_data --vocab_size=30522 --max_seq_length=128 --micro_batch_size=1 --checkpoint_every=1 "
    "--output_dir={folder}"
)

COLUMNS = columns("what files seconds:3 gb:3 gb_per_s:2 share_of_read:2")

# The operation, and where the files are; reading comes before the operations that are compared with it.
ROWS = (
    ("stall of the first save", "-"),
    ("stall of a later save", "-"),
    ("whole save", "disk"),
    ("xxh3_128", "memory"),
    ("sha256", "memory"),
    ("read", "page cache"),
    ("restore", "page cache"),
    ("read", "disk"),
    ("restore", "disk"),
    ("restore by sha256", "disk"),
    ("restore into new memory", "disk"),
)


def rows() -> tuple[Row, ...]:
    """Returns a row for everything that is measured; all in one group."""
    return tuple(
        Row(f"{what}/{files}".replace(" ", "_").removesuffix("/-"), "all", {"what": what, "files": files})
        for what, files in ROWS
    )


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Measures every row `--steps` times and yields the medians; share_of_read needs the row of reading too."""
    steps = config.steps or STEPS
    say(f"{steps} times each")
    Path(config.output_dir).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="checkpoint_", dir=config.output_dir)
    flags = f"{FLAGS.format(folder=folder)} --cpu_threads={host.threads(config.cpu_threads)} {config.extra_flags}"
    found: dict[str, list[dict[str, float]]] = {row.name: [] for row in group}
    try:
        with Worker("tftrain.bench.checkpoint.worker", {"flags": flags}) as worker:
            for _ in range(steps):
                for row in group:
                    found[row.name].append(worker.ask([row.settings["what"], row.settings["files"]]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    rates: dict[str, float] = {}
    for row in group:
        yield Outcome(row.name, [record(row, found[row.name], rates)])


def record(row: Row, measured: list[dict[str, float]], rates: dict[str, float]) -> Record:
    """Returns a line of the table.

    Args:
        row: the row.
        measured: seconds and bytes of each measurement; a row of the first save uses only the first.
        rates: bytes per second of reading by the place of the files; a row of reading fills it in.
    """
    what, files = row.settings["what"], row.settings["files"]
    chosen = measured[:1] if "first" in what else measured
    seconds, size = statistics.median(each["seconds"] for each in chosen), chosen[0]["bytes"]
    if what == "read":
        rates[files] = size / seconds
    share = size / seconds / rates[files] if files in rates else None
    return {
        **row.settings,
        "seconds": seconds,
        "gb": size / 1e9,
        "gb_per_s": size / seconds / 1e9,
        "share_of_read": share,
    }


CHECKPOINT = Table(
    "checkpoint",
    "stall and duration of an asynchronous save of a BERT-base state, and restoring it beside plain reading",
    COLUMNS,
    rows(),
    measure,
    panels=(Panel("Seconds", (Series("seconds"),), ".3f", " s"),),
    chart_note="A bar is the median time of an operation, and its label is the same number.",
)
