"""The rows of table `profile`: a training step of tftrain by task and number format, with a line for each kind of op.

The tasks are those of table `peers`.
"""

from typing import Any

from tftrain.bench.bars import Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import task, text
from tftrain.bench.peers.table import OUR_FLAGS
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row
from tftrain.bench.worker import Worker

STEPS = 5

COLUMNS = columns("task dtype kind thread_ms:1 share:3 ops:0")


def records(row: Row, config: BenchConfig, say: Say) -> list[Record]:
    """Profiles a row in a process of its own; ignores `cpu_threads`, because a profile has one thread."""
    settings = {**row.settings, "extra_flags": config.extra_flags}
    if row.settings["task"] == task.TEXT:
        with text.prepared() as found:
            made = profile({**settings, "batches": found[text.PACKED]}, config)
    else:
        made = profile(settings, config)
    for record in made:
        kernels = ", ".join(f"{name} {ms:.0f}" for name, ms in record.get("kernels", {}).items())
        say(f"{record['kind']:32} {record['thread_ms']:8.1f} ms {record['share']:6.1%}  {kernels}")
    say(f"{made[-1]['cpu_ms']:.1f} ms of processor time a step; the rest of the total is waiting time")
    return made


measure = each_row(records)


def profile(settings: dict[str, Any], config: BenchConfig) -> list[Record]:
    """Returns the records of one process, see `worker.build`."""
    with Worker("tftrain.bench.profile.worker", settings) as worker:
        return worker.ask(config.steps or STEPS)


def rows() -> tuple[Row, ...]:
    """Returns both number formats of every task."""
    return tuple(
        Row(f"{work}/{dtype}", f"{work}/{dtype}", {"task": work, "precision": dtype, "flags": OUR_FLAGS})
        for work in task.TASKS
        for dtype in ("bf16", "fp32")
    )


PROFILE = Table(
    "profile",
    "thread time of a training step of BERT-base by kind of operation, on the batches of table peers",
    COLUMNS,
    rows(),
    measure,
    panels=(Panel("Thread time of a step, ms", (Series("thread_ms"),), ".1f", " ms"),),
    chart_note="A bar is the thread time of a kind of operation in one step, and its label is the same number.",
)
