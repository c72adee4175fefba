"""A report of every table of `tftrain.bench`, with figures drawn at random: nothing is measured."""

import random
from pathlib import Path

from tftrain.bench import page
from tftrain.bench.kernels import table as kernels
from tftrain.bench.levers import FLAGS
from tftrain.bench.published import rows, table
from tftrain.bench.table import BenchTable, RowOutcome
from tftrain.bench.tables import TABLES

PUBLISHED = rows.by_table()
MAX_ROWS = 70  # more than a page shows as bars
FAILURE = "failed: exit code 1 of rank 0: tensorflow.python.framework.errors_impl.ResourceExhaustedError"


def write(name: str, folder: Path) -> list[dict]:
    """Writes FOLDER/NAME.html and returns its records; the fourth row has failed."""
    found = TABLES[name]
    outcomes = published(name) if name in PUBLISHED else own(found)
    (found.page or page.write)(found, outcomes, folder / f"{name}.html")
    return [record for outcome in outcomes for record in outcome.records]


def published(name: str) -> list[RowOutcome]:
    """Returns planned and published figures as they are, and figures measured here at random."""
    draw = random.Random(name)
    outcomes = []
    for number, (row, record) in enumerate(list(table.reference(PUBLISHED[name]).items())[:MAX_ROWS]):
        change, spread = draw.uniform(-60, 250), draw.choice((2.5, 40.0))
        measured = {
            "status": "measured",
            "scale": "1/8 (layers 1/8, width 1/8, micro_batch 1/8, tokens 1)",
            "flags": "--synthetic_data --num_hidden_layers=3 --hidden_size=128 " * 4,
            "peak_gb": draw.uniform(0.9, 1.4),
            "samples_per_sec": draw.uniform(1, 2000),
            "base_spread_pct": spread,
            "base_peak_spread_pct": 1.5,
        }
        changes = {"peak_gb_change_pct": draw.uniform(-30, 9), "samples_per_sec_change_pct": change}
        record |= {"status": FAILURE} if number == 3 else measured if number == 0 else measured | changes
        outcomes.append(RowOutcome(row, [record]))
    return outcomes


def own(found: BenchTable) -> list[RowOutcome]:
    """Returns outcomes of a table of this project, with text as long as it gets; the last row has failed."""
    draw = random.Random(found.name)
    numbers = [column.name for column in found.columns if column.digits is not None]
    bars = [name for panel in found.panels for each in panel.series for name in (each.column, each.spread) if name]
    outcomes = [
        RowOutcome(
            row, [{**dict.fromkeys(numbers, 1234.5678), **{name: draw.uniform(-90, 90) for name in bars}, **text}]
        )
        for row, text in TEXT[found.name].items()
    ]
    for outcome in outcomes:
        for record in outcome.records:
            record.update({name: abs(record[name]) for name in bars if "spread" in name or not found.panels[0].better})
    return [*outcomes, RowOutcome("last_row", [], FAILURE)]


TEXT = {
    "levers": {row: {"row": row, "levers": flags or "-"} for row, flags in FLAGS.items()},
    "kernels": {
        row.name: {"op": row.settings["op"], "pass": "backward", "dtype": row.settings["dtype"],
                   "shape": "128x12x128x128", "device": "AMD EPYC (128 threads)", "implementation": "reference"}
        for row in kernels.rows()
    },
    "peers": {
        row.name: {"implementation": row.settings["implementation"], "dtype": row.settings["precision"],
                   "task": row.settings["task"]}
        for row in TABLES["peers"].rows
    },
    "checkpoint": {row.name: row.settings for row in TABLES["checkpoint"].rows},
    "ranks": {row.name: row.settings for row in TABLES["ranks"].rows[:MAX_ROWS]},
    "attention": {row.name: {**row.settings, "pass": "backward"} for row in TABLES["attention"].rows},
}  # fmt: skip
