"""The rows of table `collectives`: steps of a small model on 2 to 16 ranks of this host, with several cycle times.

Each row is two runs: one without a log, for the time of a step, and one with it, for its division (`trace.py`).
"""

import statistics
from typing import Any

from tftrain.bench.bars import Panel, Series
from tftrain.bench.collectives import trace
from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row
from tftrain.bench.training.run import train

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


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Runs a row twice and returns its line of the table."""
    ranks, layout, cycle = row.settings.values()
    steps, environ = config.steps or STEPS, {} if cycle == "auto" else {"HOROVOD_CYCLE_TIME": cycle}

    def run(environ: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
        flags = [*MODEL, *LAYOUTS[layout], *config.run_flags()]
        return train(flags, ranks, WARM_UP + steps, environ=environ, forked_from=2)

    metrics, _ = run(environ)
    _, output = run({**environ, "HOROVOD_LOG_LEVEL": "trace"})
    seconds = [each["step_time_s"] for each in metrics if "step_time_s" in each and each["step"] > WARM_UP]
    found = trace.summary(output.splitlines(), WARM_UP + steps, WARM_UP)
    parts = {f"{name}_ms": 1e3 * value for name, value in found.division._asdict().items()}
    times = {"step_ms": 1e3 * statistics.median(seconds), "traced_ms": 1e3 * found.seconds, **parts}
    return [{**row.settings, **times, "collectives": found.collectives, "negotiated": found.negotiated}]


COLLECTIVES = Table(
    "collectives",
    "a step on 2 to 16 ranks of this host: computation, waiting for negotiation, transfer, by Horovod's cycle time",
    columns(
        "ranks:0 layout cycle_ms step_ms:1 traced_ms:1 compute_ms:1 waiting_ms:1 transfer_ms:1 collectives:0 "
        "negotiated:1"
    ),
    tuple(
        Row(f"{ranks}/{layout}/{cycle}", f"{ranks}/{layout}", {"ranks": ranks, "layout": layout, "cycle_ms": cycle})
        for ranks, layout in CASES
        for cycle in CYCLES
    ),
    each_row(records),
    panels=(Panel("Time of a step, ms", (Series("step_ms"),), ".1f", " ms"),),
    chart_note="A bar is the median time of a step, and its label is the same number.",
    labels=("ranks", "layout", "cycle_ms"),
    row_by_row=True,
)
