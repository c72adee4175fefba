"""Measures the rows of table `levers`, each in a run of its own, in alternation with the base row."""

import shlex
from collections.abc import Iterator

from tftrain.bench.bars import MEANING, Panel, Series
from tftrain.bench.config import BenchConfig
from tftrain.bench.levers.chart import draw
from tftrain.bench.levers.rows import BASE, COMMON, MODELS, ROWS, model_name
from tftrain.bench.table import Outcome, Row, Say, Table, columns
from tftrain.bench.training import alternation, run

RANKS = 4
STEPS = 5
BASE_EVERY = 5  # rows between two runs of the base; a run takes about a minute, mostly before its first step

COLUMNS = columns(
    "row levers peak_gb:3 peak_rank:0 state_gb_per_rank:3 samples_per_sec:2 spread:1 "
    "samples_per_sec_change:1 base_spread:1 peak_gb_change:3 base_peak_spread:3"
)

GB_SERIES = Series("peak_gb_change", spread="base_peak_spread")
SPEED_SERIES = Series("samples_per_sec_change", spread="base_spread")


def measure(group: list[Row], config: BenchConfig, say: Say) -> Iterator[Outcome]:
    """Measures rows together with the base row, even if it was not chosen."""
    ranks = config.np or RANKS
    model = model_name(ranks)
    say(f"model: {model}, on {ranks} ranks")
    base = next(row for row in ROWS if row.name == BASE)
    others = [row for row in group if row.name != BASE]

    def one(row: Row) -> run.Figures:
        return run.measure(run_flags(row, model, config), ranks, config.steps or STEPS)

    for compared in alternation.in_alternation(base, others, one, say, BASE_EVERY, config.rounds):
        if compared.row is not base or base in group:
            yield outcome(compared, model)


def run_flags(row: Row, model: str, config: BenchConfig) -> list[str]:
    """Returns the flags of a row's run with one of `MODELS`; `extra_flags` override the others."""
    return [*COMMON, *MODELS[model], *shlex.split(row.settings["flags"]), *config.run_flags()]


def outcome(compared: alternation.Compared, model: str) -> Outcome:
    """Returns the outcome of a row: its line of the table, or the error."""
    row = compared.row
    if compared.figures is None:
        return Outcome(row.name, [], compared.error)
    words = row.settings["flags"] or "-"
    found = {"row": row.name, "levers": words, "model": model, **alternation.record(compared)}
    if row.name == BASE:  # The base has no change against itself; its spread is that of all of its runs.
        found |= {"samples_per_sec_change": None, "peak_gb_change": None, "spread": None}
    return Outcome(row.name, [found])


LEVERS = Table(
    "levers",
    "memory and speed of a whole run with each lever, against plain data parallel ranks in fp32",
    COLUMNS,
    ROWS,
    measure,
    draw,
    panels=(
        Panel("Peak memory of the fullest rank: change, GB", (GB_SERIES,), "+.3f", " GB", better=-1),
        Panel("Samples/s of all ranks: change, %", (SPEED_SERIES,), "+.1f", " %", better=1),
    ),
    chart_note=MEANING.format(base="the base row", spread="the range of its runs just before and after the row"),
    base=BASE,
)
