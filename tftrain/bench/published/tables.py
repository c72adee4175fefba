"""The rows of the reference files as rows of benchmark tables, the base row of each table first.

A row has the workload and the figures that `tftrain.bench.published.rows` reads, its levers and its note.
"""

import csv
import io
from typing import NamedTuple

from tftrain.bench.published.row import PublishedRow
from tftrain.bench.published.rows import REFERENCE, read_text, reference_text

# By its note 'the row "base" of every other Large table'. All other tables begin with their own base.
LARGE_BASE = "large_precision/04"
NOT_STATED = {"layers": "model", "hidden": "model", "micro_batch": "batch", "grad_accum_steps": "accumulation"}
LEVERS_NOT_STATED = {"precision": "precision", "jit_compile": "XLA"}  # in a table that states no model either


class Published(NamedTuple):
    """One row: workload, system and figures, and the source's note.

    Attributes:
        levers: flags and values as the source states them; a decoder's file has none.
        assumed: sizes and levers that the source does not state and the planner assumes.
    """

    row: PublishedRow
    levers: dict[str, str]
    note: str
    assumed: tuple[str, ...]

    @property
    def settings(self) -> dict[str, str]:
        """The settings in which rows of a table differ: sizes, division and levers."""
        work = self.row.workload
        model = work.model
        values = {"layers": model.layers, "hidden": model.width, "heads": model.attention_heads, "seq": work.seq}
        values |= {"dp": work.dp, "tp": work.tp, "pp": work.pp, "micro_batch": work.micro_batch}
        if work.model.causal:
            values |= {"global_batch": work.global_batch, "zero_stage": work.zero_stage}
            values |= {"precision": work.precision, "activation_checkpointing": work.checkpointing}
        else:
            values |= {"grad_accum_steps": round(work.micro_batches), **self.levers}
            del values["tp"]  # among the levers
        return {name: str(value) for name, value in values.items()}

    def against(self, base: "Published") -> str:
        """Returns the settings of this row that differ from those of the table's base row."""
        own, other = self.settings, base.settings
        if self.row.name == base.row.name:
            return " ".join(f"{name}={value}" for name, value in own.items())
        changed = [f"{name}={value}" for name, value in own.items() if other.get(name) != value]
        return " ".join(changed + [f"no {name}" for name in other if name not in own]) or "the same settings"


def read() -> dict[str, tuple[Published, ...]]:
    """Returns the rows of every table by its name; the first row is the base of the others."""
    rows_of: dict[str, list[Published]] = {}
    for name in REFERENCE:
        text = reference_text(name)
        for row, cells in zip(read_text(text, name).rows, csv.DictReader(io.StringIO(text)), strict=True):
            rows_of.setdefault(row.table, []).append(_published(row, cells))
    base = next(each for each in rows_of[LARGE_BASE.partition("/")[0]] if each.row.name == LARGE_BASE)
    for table, rows in rows_of.items():
        if table.startswith("large_") and base not in rows:
            rows.insert(0, base)
    return {table: tuple(rows) for table, rows in rows_of.items()}


def _published(row: PublishedRow, cells: dict[str, str]) -> Published:
    levers = dict(pair.split("=") for pair in cells.get("levers", "").split())
    unknown = [what for name, what in NOT_STATED.items() if cells.get(name) == ""]
    if row.relative:
        unknown += [what for name, what in LEVERS_NOT_STATED.items() if name not in levers]
    note = cells.get("note", "")
    if "accumulation" in unknown and (row.workload.micro_batches == 1 or "global batch" in note):
        unknown.remove("accumulation")  # There is none, or it follows from what the note states.
    return Published(row, levers, note, tuple(dict.fromkeys(unknown)))
