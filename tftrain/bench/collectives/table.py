"""The rows of table `collectives`: steps of a small model on 2 to 16 ranks of this host, with several cycle times.

Each row is two runs: one without a log, for the time of a step, and one with it, for its division (`trace.py`).
"""

import statistics
import tempfile
from collections.abc import Sequence

from tftrain.bench.bars import Panel, Series
from tftrain.bench.collectives import trace
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row
from tftrain.bench.training.run import LIMIT_SECONDS, QUIET, launch, read_metrics

STEPS = 10
WARM_UP = 4
LAYOUTS = {
    "tp2": ("--tensor_parallel_size=2",),
    "tp2_zero1": ("--tensor_parallel_size=2", "--split_opt_state"),
    "zero1": ("--split_opt_state",),
    "tp4": ("--tensor_parallel_size=4",),
}
# Ranks and layout; each with each cycle time.
CASES = (
    *((2, "tp2"), (4, "tp2"), (4, "tp4"), (4, "zero1"), (4, "tp2_zero1")),
    *((8, "tp2"), (8, "tp4"), (16, "tp2"), (16, "tp2_zero1")),
)
# Milliseconds; "auto" is what the ranks choose.
CYCLES = ("auto", "0.2", "1", "5", "20")
MODEL = (
    *("--synthetic_data", "--vocab_size=1000", "--max_seq_length=64", "--num_hidden_layers=4", "--hidden_size=256"),
    *("--num_attention_heads=4", "--micro_batch_size=4", "--check_memory=false"),
)

COLUMNS = columns(
    "ranks:0 layout cycle_ms step_ms:1 traced_ms:1 compute_ms:1 waiting_ms:1 transfer_ms:1 collectives:0 negotiated:1"
)


def rows() -> tuple[Row, ...]:
    """Returns a row for each case and cycle time."""
    return tuple(
        Row(f"{ranks}/{layout}/{cycle}", f"{ranks}/{layout}", {"ranks": ranks, "layout": layout, "cycle_ms": cycle})
        for ranks, layout in CASES
        for cycle in CYCLES
    )


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Runs a row twice and returns its line of the table.

    Raises:
        RunError: a run failed.
        TraceError: its log does not have all steps.
    """
    steps = config.steps or STEPS
    seconds, _ = run(row, config, steps, {})
    _, lines = run(row, config, steps, {"HOROVOD_LOG_LEVEL": "trace"})
    found = trace.summary(lines, WARM_UP + steps, WARM_UP)
    parts = {f"{name}_ms": 1e3 * value for name, value in found.division._asdict().items()}
    times = {"step_ms": 1e3 * statistics.median(seconds), "traced_ms": 1e3 * found.seconds, **parts}
    return [{**row.settings, **times, "collectives": found.collectives, "negotiated": found.negotiated}]


def run(row: Row, config: BenchConfig, steps: int, environ: dict[str, str]) -> tuple[list[float], Sequence[str]]:
    """Trains once; returns the seconds of the counted steps, and all printed lines.

    Raises:
        RunError: the run failed, or was not done in time.
    """
    settings = row.settings
    if settings["cycle_ms"] != "auto":
        environ = {"HOROVOD_CYCLE_TIME": settings["cycle_ms"], **environ}
    with tempfile.TemporaryDirectory(prefix="tftrain_bench_") as folder:
        flags = [
            *(*MODEL, *LAYOUTS[settings["layout"]], *QUIET, f"--max_steps={WARM_UP + steps}"),
            *(f"--output_dir={folder}/run", *config.run_flags()),
        ]
        output = launch(flags, settings["ranks"], LIMIT_SECONDS, environ=environ, forked_from=2)
        counted = [each for each in read_metrics(folder) if "step_time_s" in each and each["step"] > WARM_UP]
    return [each["step_time_s"] for each in counted], output.splitlines()


COLLECTIVES = Table(
    "collectives",
    "a step on 2 to 16 ranks of this host: computation, waiting for negotiation, transfer, by Horovod's cycle time",
    COLUMNS,
    rows(),
    each_row(records),
    panels=(Panel("Time of a step, ms", (Series("step_ms"),), ".1f", " ms"),),
    chart_note="A bar is the median time of a step, and its label is the same number.",
    labels=("ranks", "layout", "cycle_ms"),
    row_by_row=True,
)
