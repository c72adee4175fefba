"""Rows that are compared with one base row, which is measured again before every few of them and after the last.

A machine is not the same for half an hour. So a row is compared with the base as it was just before and just after,
and how far those two lie apart says how much of a change is the machine's.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tftrain.bench.table import Record, Row
from tftrain.bench.training.run import Figures, RunError

EVERY = 3

Measure = Callable[[Row], Figures]


@dataclass(frozen=True)
class Compared:
    """A row and the measurements of the base row that it is compared with.

    Attributes:
        row: which one.
        figures: its own; None if it failed.
        base: of the base row before and after it, those that did not fail; of the base row itself, all there are.
        error: why there are no figures.
    """

    row: Row
    figures: Figures | None
    base: tuple[Figures, ...]
    error: str | None = None


def in_alternation(
    base: Row, rows: Sequence[Row], measure: Measure, say: Callable[[str], None], every: int = EVERY
) -> Iterator[Compared]:
    """Measures rows, and the base row before each `every` of them and at the end.

    Args:
        base: what the others are compared with.
        rows: the others.
        measure: of one row; it may raise RunError, and then the rest go on.
        say: prints a line of progress.
        every: rows between two measurements of the base.

    Yields:
        Every row as soon as the base was measured after it, and last the base itself, with the figures of its run of
        median speed.
    """
    errors: list[str] = []

    def take(row: Row) -> tuple[Figures | None, str | None]:
        try:
            figures = measure(row)
        except RunError as error:
            return None, str(error)
        say(
            f"{row.name}: {figures.samples_per_sec:.2f} samples/s, {figures.peak_gb:.3f} GB on rank {figures.peak_rank}"
        )
        return figures, None

    def take_base() -> list[Figures]:
        figures, error = take(base)
        if error:
            errors.append(error)
            say(f"{base.name}: {error}")
        return [figures] if figures else []

    before = take_base()
    runs = list(before)
    for start in range(0, len(rows), every):
        taken = [(row, *take(row)) for row in rows[start : start + every]]
        after = take_base()
        runs += after
        for row, figures, error in taken:
            yield Compared(row, figures, (*before, *after), error)
        before = after
    middle = sorted(runs, key=lambda run: run.samples_per_sec)[(len(runs) - 1) // 2] if runs else None
    yield Compared(base, middle, tuple(runs), None if runs else errors[-1])


def record(compared: Compared) -> Record:
    """Returns a row's figures and how they differ from the base's.

    Args:
        compared: with figures.

    Returns:
        peak_gb, peak_rank, state_gb_per_rank and samples_per_sec; and where the base has figures,
        samples_per_sec_change (percent) and peak_gb_change against the means of `compared.base`, and how far those lie
        apart: base_spread in percent of their mean samples/s, base_peak_spread in GB. Beside them, for json: the
        seconds of the steps, the memory by kind, and the base's figures.
    """
    figures, base = compared.figures, compared.base
    found = {
        "peak_gb": figures.peak_gb,
        "peak_rank": figures.peak_rank,
        "state_gb_per_rank": figures.state_bytes / 1e9,
        "samples_per_sec": figures.samples_per_sec,
        "state_rank": figures.state_rank,
        "step_seconds": list(figures.step_seconds),
        "skipped_steps": figures.skipped_steps,
        **figures.memory,
    }
    if base:
        speeds, peaks = [run.samples_per_sec for run in base], [run.peak_gb for run in base]
        speed, peak = statistics.fmean(speeds), statistics.fmean(peaks)
        found |= {
            "samples_per_sec_change": 100 * (figures.samples_per_sec / speed - 1),
            "peak_gb_change": figures.peak_gb - peak,
            "base_spread": 100 * (max(speeds) - min(speeds)) / speed,
            "base_peak_spread": max(peaks) - min(peaks),
            "base_samples_per_sec": speeds,
            "base_peak_gb": peaks,
        }
    return found
