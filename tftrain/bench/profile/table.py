"""The rows of table `profile`: a training step of tftrain in each number format, with a line for each kind of op."""

from collections.abc import Callable, Iterator

from tftrain.bench.bars import Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.peers import task
from tftrain.bench.table import Column, Outcome, Row, Table
from tftrain.bench.worker import Worker, WorkerError

STEPS = 5

COLUMNS = (Column("dtype"), Column("kind"), Column("thread_ms", 1), Column("share", 3), Column("ops", 0))


def measure(group: list[Row], config: BenchConfig, say: Callable[[str], None]) -> Iterator[Outcome]:
    """Profiles each row in its own process; ignores `cpu_threads`, because a profile has one thread."""
    for row in group:
        try:
            settings = {**row.settings, "extra_flags": config.extra_flags}
            with Worker("tftrain.bench.profile.worker", settings) as worker:
                records = worker.ask(config.steps or STEPS)
        except WorkerError as error:
            yield Outcome(row.name, [], str(error))
            continue
        for record in records:
            kernels = ", ".join(f"{name} {ms:.0f}" for name, ms in record.get("kernels", {}).items())
            say(f"{record['kind']:32} {record['thread_ms']:8.1f} ms {record['share']:6.1%}  {kernels}")
        say(f"{records[-1]['cpu_ms']:.1f} ms of processor time a step; the rest of the total is waiting time")
        yield Outcome(row.name, records)


PROFILE = Table(
    "profile",
    f"thread time of a training step of BERT-base, {task.BATCH} samples of {task.SEQ} tokens, by kind of operation",
    COLUMNS,
    tuple(Row(dtype, dtype, {"precision": dtype}) for dtype in ("bf16", "fp32")),
    measure,
    panels=(Panel("Thread time of a step, ms", (Series("thread_ms"),), ".1f", " ms"),),
    chart_note="A bar is the thread time of a kind of operation in one step, and its label is the same number.",
)
