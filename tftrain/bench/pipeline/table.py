"""The rows of table `pipeline`: every schedule with waits of fixed length, over one rank for each stage."""

import json

from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row
from tftrain.bench.training.run import LIMIT_SECONDS, launch
from tftrain.page.bars import Panel, Series
from tftrain.schedules import activations, orders, simulation
from tftrain.schedules.simulation import even_durations

STAGES, MICRO_BATCHES, STEPS = 4, 16, 5
CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zero_bubble": 1}
SECONDS = (0.03, 0.03, 0.03)  # of a stage: forward, backward for inputs, backward for weights
MODULE = "tftrain.bench.pipeline.waiting"


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Runs a schedule once."""
    settings = {**row.settings, "seconds": SECONDS, "steps": config.steps or STEPS}
    output = launch([json.dumps(settings)], STAGES, LIMIT_SECONDS, MODULE)
    measured = next(json.loads(line) for line in output.splitlines() if line.startswith('{"step_ms"'))
    plan = planned(**row.settings)
    ratio = measured["step_ms"] / plan["planned_ms"]
    return [{**row.settings, **plan, **measured, "held": _words(measured["held"]), "ratio": ratio}]


def planned(schedule: str, stages: int, micro_batches: int, chunks: int) -> dict[str, float | str]:
    """Returns time, bubble and activations by the schedule's table."""
    table = orders.table(schedule, stages, micro_batches, chunks)
    events = simulation.simulate(table, even_durations([SECONDS] * stages, chunks))
    return {
        "planned_ms": 1e3 * simulation.step_time(events),
        "planned_bubble": 100 * simulation.bubble_share(events),
        "planned_held": _words(activations.peak(actions, chunks).total for actions in table.stages),
    }


def _words(numbers) -> str:
    return " ".join(map(str, numbers))


PIPELINE = Table(
    "pipeline",
    "the bubble of pipeline schedules over real ranks, with waits of fixed length instead of computations",
    columns(
        "schedule stages:0 micro_batches:0 chunks:0 planned_ms:1 step_ms:1 ratio:3 planned_bubble:1 bubble:1 "
        "planned_held held"
    ),
    tuple(
        Row(name, name, {"schedule": name, "stages": STAGES, "micro_batches": MICRO_BATCHES, "chunks": chunks})
        for name, chunks in CHUNKS.items()
    ),
    each_row(records),
    panels=(
        Panel("Milliseconds of a step", (Series("step_ms"),), ".1f", " ms"),
        Panel("Bubble, percent", (Series("bubble"),), ".1f", "%"),
    ),
    chart_note="A bar is one run of a schedule over one rank for each stage.",
    row_by_row=True,
)
