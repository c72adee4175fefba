"""Finished rows on disk, one line of json each, and the report made of them."""

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tftrain.bench.published import compare
from tftrain.bench.table import BenchTable, Record, RowOutcome
from tftrain.config.fields import ConfigError, Problem


class FinishedRows:
    """The finished rows of one table in OUTPUT_DIR/TABLE.jsonl; a row counts as soon as its line is written."""

    def __init__(self, table: BenchTable, output_dir: str, resume: bool, under: str | None = ""):
        """Opens the file; it starts empty unless `resume` keeps the rows of an earlier run.

        `under` names the flags of the measurement; None: no row runs now. Raises a ConfigError if a row of the earlier
        run was measured with other flags.
        """
        self.path = Path(output_dir) / f"{table.name}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._table = table
        self._under = under or ""
        self._outcomes: dict[str, RowOutcome] = {}
        if resume and self.path.exists():
            for line in self.path.read_text().splitlines():
                with contextlib.suppress(TypeError, ValueError):
                    outcome = RowOutcome(**json.loads(line))
                    self._outcomes[outcome.row] = outcome
        others = {found.under or "the defaults" for row, found in self._outcomes.items() if self.has(row)}
        if under is not None and others - {uses := under or "the defaults"}:
            difference = f"{self.path} was measured with {', '.join(sorted(others))}, this run uses {uses}"
            raise ConfigError([Problem("resume", True, f"{difference}: expected the same, or another --output_dir")])
        # Drop a line that an interruption cut off: the next line would be appended to it.
        self.path.write_text("".join(_line(outcome) for outcome in self._outcomes.values()))

    def add(self, outcome: RowOutcome) -> None:
        """Stores a row's outcome; it replaces an earlier one."""
        outcome = dataclasses.replace(outcome, under=self._under)
        self._outcomes[outcome.row] = outcome
        with self.path.open("a") as file:
            file.write(_line(outcome))

    def has(self, row: str) -> bool:
        """Whether the row has a final outcome without an error."""
        outcome = self._outcomes.get(row)
        return outcome is not None and outcome.final and outcome.error is None

    def outcomes(self) -> list[RowOutcome]:
        """Returns the stored outcomes in the table's order."""
        return [self._outcomes[row.name] for row in self._table.rows if row.name in self._outcomes]


def _line(outcome: RowOutcome) -> str:
    return json.dumps(dataclasses.asdict(outcome)) + "\n"


def render(table: BenchTable, outcomes: Sequence[RowOutcome], form: str) -> str:
    """Returns the report of rows in order, as csv, md or json; md and json also say why rows failed."""
    records = [record for outcome in outcomes for record in outcome.records]
    failures = {outcome.row: outcome.error for outcome in outcomes if outcome.error}
    if form == "json":
        return json.dumps({"table": table.name, "records": records, "failures": failures}, indent=1) + "\n"
    names = [column.name for column in table.columns]
    lines = [[column.show(record) for column in table.columns] for record in records]
    texts = [column.name for column in table.columns if column.digits is None]
    failed = "".join(f"\n{row}: {error}\n" for row, error in failures.items() if form == "md")
    return compare.render(names, lines, form, texts) + failed


def spread(samples: Sequence[float]) -> Record:
    """Returns median, low, high, min and max of at least one measurement; half of them lie between low and high."""
    values = np.quantile(samples, (0, 0.25, 0.5, 0.75, 1)).tolist()
    return dict(zip(("min", "low", "median", "high", "max"), values, strict=True))
