"""Comparison of rows with a base row, which is measured again before every few rows and after the last one.

The speed of a machine drifts within half an hour. So a row is compared with the base as measured just before and just
after it; the difference between those two measurements is the machine's share of a change.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tftrain.bench import host
from tftrain.bench.table import Record, Say, TableRow
from tftrain.bench.training.run import Figures
from tftrain.bench.worker import MeasureError

EVERY = 3


@dataclass(frozen=True)
class Compared:
    """A row beside its base."""

    row: TableRow
    runs: tuple[Figures, ...]  # the successful ones
    base: tuple[Figures, ...]  # those of the base row before and after them; for the base row itself, all of its runs
    error: str | None = None  # the reason why the last failed run failed

    @property
    def figures(self) -> Figures | None:
        """Figures of the run of median speed, with the median of all speeds; None if all runs failed."""
        if not self.runs:
            return None
        middle = sorted(self.runs, key=lambda run: run.samples_per_sec)[(len(self.runs) - 1) // 2]
        return dataclasses.replace(middle, samples_per_sec=statistics.median(run.samples_per_sec for run in self.runs))


def in_alternation(
    base: TableRow,
    rows: Sequence[TableRow],
    measure: Callable[[TableRow], Figures],
    say: Say,
    every: int = EVERY,
    rounds: int = 1,
) -> Iterator[Compared]:
    """Measures rows, and the base row before each `every` of them and at the end.

    Yields a row as soon as the base has been measured after the row's last run, and at last the base itself. Each of
    `every` rows runs `rounds` times, alternating with the base, before the next rows. After a MeasureError the other
    rows are still measured.
    """
    errors: dict[str, str] = {}

    def take(row: TableRow) -> list[Figures]:
        try:
            figures = measure(row)
        except MeasureError as error:
            errors[row.name] = str(error)
            say(f"{row.name}: {error}; {host.load()}")
            return []
        words = f"{figures.samples_per_sec:.2f} samples/s, {figures.peak_gb:.3f} GB on rank {figures.peak_rank}"
        say(f"{row.name}: {words}; {host.load()}")
        return [figures]

    before = take(base)
    of_base = before
    for start in range(0, len(rows), every):
        chosen, around = rows[start : start + every], before
        runs: dict[str, list[Figures]] = {row.name: [] for row in chosen}
        for _ in range(rounds):
            for row in chosen:
                if row.name not in errors:
                    runs[row.name] += take(row)
            before = take(base)
            around, of_base = around + before, of_base + before
        for row in chosen:
            yield Compared(row, tuple(runs[row.name]), tuple(around), errors.get(row.name))
    yield Compared(base, tuple(of_base), tuple(of_base), None if of_base else errors[base.name])


def record(compared: Compared) -> Record:
    """Returns a row's figures and their differences from the base; the row must have figures.

    They are peak_gb, peak_rank, state_gb_per_rank and samples_per_sec. With several runs, `spread` is their range in
    percent. If the base has figures, samples_per_sec_change (percent) and peak_gb_change (GB) are against the medians
    of `compared.base`; base_spread (percent) and base_peak_spread (GB) are the ranges of the base, None for a single
    figure. The json also has the seconds of the steps, the memory by kind, and the base's figures.
    """
    figures, base = compared.figures, compared.base
    record = dataclasses.asdict(figures)
    record |= record.pop("memory")
    if len(compared.runs) > 1:
        record["spread"] = range_pct([run.samples_per_sec for run in compared.runs])
    if base:
        speeds, peaks = [run.samples_per_sec for run in base], [run.peak_gb for run in base]
        speed, peak = statistics.median(speeds), statistics.median(peaks)
        record |= {
            "samples_per_sec_change": 100 * (figures.samples_per_sec / speed - 1),
            "peak_gb_change": figures.peak_gb - peak,
            "base_spread": range_pct(speeds) if len(base) > 1 else None,
            "base_peak_spread": max(peaks) - min(peaks) if len(base) > 1 else None,
            "base_samples_per_sec": speeds,
            "base_peak_gb": peaks,
        }
    return record


def range_pct(values: Sequence[float]) -> float:
    """Returns the range of values in percent of their median."""
    return 100 * (max(values) - min(values)) / statistics.median(values)
