"""Table `transports`: a step of tensor parallel ranks and of pipeline stages by Horovod and by TensorFlow.

A row is `--rounds` pairs of runs, one with each `--group_transport`. The medians are over the steps of all its runs.
"""

import itertools
import statistics

from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row, rows_of
from tftrain.bench.training.run import step_seconds, train
from tftrain.page.bars import Panel, Series

STEPS, WARM_UP = 20, 4
NAMES = ("horovod", "tensorflow")
# Ranks and flags of a layout; a sum or a transfer has 4 x 64 x 256 numbers, or 4 x 128 x 512.
LAYOUTS = {
    "tp2": (2, ("--tensor_parallel_size=2",)),
    "tp4": (4, ("--tensor_parallel_size=4",)),
    "tp4_sequence": (4, ("--tensor_parallel_size=4", "--sequence_parallel")),
    "pp4": (4, ("--pipeline_parallel_size=4", "--grad_accum_steps=8")),
}
SIZES = {
    "small": ("--max_seq_length=64", "--hidden_size=256"),
    "large": ("--max_seq_length=128", "--hidden_size=512"),
}
PRECISIONS = ("fp32", "bf16")
MODEL = (
    *("--synthetic_data", "--vocab_size=1000", "--num_hidden_layers=4", "--num_attention_heads=4"),
    *("--micro_batch_size=4", "--check_memory=false"),
)


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Runs each transport in turn and returns the line of a row."""
    layout, size, precision = row.settings.values()
    (ranks, division), steps = LAYOUTS[layout], config.steps or STEPS
    flags = [*MODEL, *SIZES[size], *division, f"--precision={precision}", *config.run_flags()]
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(config.rounds):
        for name in NAMES:
            arguments = [*flags, f"--group_transport={name}"]
            metrics, _ = train(arguments, ranks, WARM_UP + steps, forked_from=2)
            seconds[name] += step_seconds(metrics, WARM_UP)
    medians = {f"{name}_ms": 1e3 * statistics.median(each) for name, each in seconds.items()}
    return [{**row.settings, **medians, "ratio": medians["tensorflow_ms"] / medians["horovod_ms"]}]


TRANSPORTS = Table(
    "transports",
    "a step of tensor parallel ranks and pipeline stages with each --group_transport",
    columns("layout size precision horovod_ms:1 tensorflow_ms:1 ratio:3"),
    rows_of("layout size precision", itertools.product(LAYOUTS, SIZES, PRECISIONS), 1),
    each_row(records),
    panels=(Panel("Time of a step, ms", (Series("horovod_ms"), Series("tensorflow_ms")), ".1f", " ms"),),
    chart_note="A bar is the median time of a step, and its label is the same number.",
    labels=("layout", "size", "precision"),
    row_by_row=True,
)
