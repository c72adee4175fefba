"""Compares planned with published figures: a line for each row, and the errors of each table."""

import csv
import io
import itertools
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tftrain.bench.published.row import PublishedRow
from tftrain.host.units import GB
from tftrain.plan import memory, reported_flops, timing
from tftrain.plan.cluster import CLUSTERS
from tftrain.plan.system import systems

MIN_DIFFERENCE = 0.05  # runs of one configuration differ by less in the mean, and by more at most: see `repeats`
COLUMNS = (
    "row", "predicted_gb", "predicted_samples_per_sec_per_gpu", "predicted_sec_per_iteration",
    "predicted_tflops_per_gpu", "fits", "reference_gb", "reference_samples_per_sec_per_gpu",
    "reference_sec_per_iteration", "reference_tflops_per_gpu", "error_gb_pct", "error_pct",
)  # fmt: skip


class Planned(NamedTuple):
    """A published row with its plan."""

    row: PublishedRow
    gb: float  # planned peak memory of the fullest device in GB
    fits: bool  # whether the plan fits a device
    seconds: float  # an iteration
    samples_per_sec_per_gpu: float  # as the next one, by the formulas of the source
    tflops_per_gpu: float

    @property
    def memory_error(self) -> float | None:
        """(planned - published) / published memory in percent; None if nothing is published."""
        return _error(self.gb, self.row.reference.gb)

    @property
    def error(self) -> float | None:
        """The same of the figure by which the row states speed."""
        planned = self.samples_per_sec_per_gpu, self.seconds, self.tflops_per_gpu
        pairs = zip(planned, self.row.reference[2:], strict=True)
        return next((_error(*pair) for pair in pairs if pair[1] is not None), None)


def _error(planned: float, published: float | None) -> float | None:
    return None if published is None else 100 * (planned / published - 1)


def plan_all(rows: Sequence[PublishedRow]) -> list[Planned]:
    """Plans rows; a table without a stated model and device is scaled so that its first row has no error."""
    plans: list[Planned] = []
    scales: dict[str, tuple[float, float]] = {}
    for row in rows:
        planned = plan(row)
        if row.relative:
            published = row.reference
            if row.table not in scales and published.gb and published.samples_per_sec_per_gpu:
                speed = published.samples_per_sec_per_gpu / planned.samples_per_sec_per_gpu
                scales[row.table] = published.gb / planned.gb, speed
            memory_factor, speed_factor = scales.get(row.table, (1.0, 1.0))
            planned = planned._replace(
                gb=planned.gb * memory_factor,
                seconds=planned.seconds / speed_factor,
                samples_per_sec_per_gpu=planned.samples_per_sec_per_gpu * speed_factor,
                tflops_per_gpu=planned.tflops_per_gpu * speed_factor,
            )
        plans.append(planned)
    return plans


def plan(row: PublishedRow) -> Planned:
    """Plans one row.

    If a source does not state checkpointing, memory is planned without it. If that does not fit, it is planned with
    full checkpointing.
    """
    cluster, constants, work = CLUSTERS[row.cluster], systems()[row.system], row.workload
    needed = memory.estimate(work, constants)
    if row.checkpointing_unstated and not needed.fits(cluster):
        needed = memory.estimate(work._replace(checkpointing="full"), constants)
    seconds = timing.step(work, cluster, constants).total
    return Planned(
        row,
        needed.on(cluster).total / GB,
        needed.fits(cluster),
        seconds,
        row.counted * work.global_batch / (seconds * work.ranks),
        reported_flops.reported(work, row.formula) / (seconds * work.ranks * 1e12),
    )


def summarize(planned: Sequence[Planned]) -> list[list[str]]:
    """Returns the cells of each table's line, in the order of SUMMARY_COLUMNS; "-" where nothing is published.

    The first cells are mean absolute errors in percent and rank correlations of memory and of time. The last ones are
    the percentage of the pairs of rows whose published times differ by > MIN_DIFFERENCE, and the rank correlation of
    these pairs.
    """
    lines = []
    for table in dict.fromkeys(each.row.table for each in planned):
        chosen = [each for each in planned if each.row.table == table]
        sized = [(each.gb, each.row.reference.gb) for each in chosen if each.row.reference.gb]
        timed = [(each.seconds, each.row.reference_seconds) for each in chosen if each.row.reference_seconds]
        memory_errors = [abs(each.memory_error) for each in chosen if each.memory_error is not None]
        time_errors = [abs(each.error) for each in chosen if each.error is not None]
        pairs = itertools.combinations([right for _, right in timed], 2)
        separated = [100.0 * differ(*pair, MIN_DIFFERENCE) for pair in pairs]
        of_memory = _shown(_mean(memory_errors), ".1f"), _shown(kendall_tau(sized), ".3f")
        of_time = _shown(_mean(time_errors), ".1f"), _shown(kendall_tau(timed), ".3f")
        apart = _shown(_mean(separated), ".0f"), _shown(kendall_tau(timed, MIN_DIFFERENCE), ".3f")
        lines.append([table, str(len(chosen)), *of_memory, *of_time, *apart])
    return lines


def differ(one: float, other: float, share: float) -> bool:
    """Whether two positive figures differ by more than a share of the smaller one."""
    return abs(one - other) > share * min(one, other)


def repeats(planned: Sequence[Planned]) -> list[float]:
    """Returns, for each workload published more than once, the percentage by which its slowest run is slower."""
    times: dict[Hashable, list[float]] = {}
    for row in (each.row for each in planned):
        if row.reference_seconds and not row.relative:
            times.setdefault((row.workload, row.cluster, row.system), []).append(row.reference_seconds)
    return [100 * (max(runs) / min(runs) - 1) for runs in times.values() if len(runs) > 1]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def kendall_tau(pairs: Sequence[tuple[float, float]], min_difference: float = 0.0) -> float | None:
    """Returns Kendall's tau-b of pairs of numbers: concordant - discordant pairs over untied pairs (Kendall, 1945).

    Pairs whose right numbers differ by no more than `min_difference`, a share of the smaller one, do not count. Returns
    None if fewer than two pairs count, or if all numbers of one side are tied.
    """
    changes = [
        (left - other_left, right - other_right)
        for (left, right), (other_left, other_right) in itertools.combinations(pairs, 2)
        if not min_difference or differ(right, other_right, min_difference)
    ]
    concordance = sum((left * right > 0) - (left * right < 0) for left, right in changes)
    untied = sum(left != 0 for left, _ in changes) * sum(right != 0 for _, right in changes)
    return concordance / untied**0.5 if untied else None


def cells(planned: Planned) -> list[str]:
    """Returns the cells of a row's line, in the order of COLUMNS; "-" where nothing is published."""
    published = planned.row.reference
    return [
        planned.row.name,
        f"{planned.gb:.2f}",
        f"{planned.samples_per_sec_per_gpu:.4g}",
        f"{planned.seconds:.6g}",
        f"{planned.tflops_per_gpu:.2f}",
        "yes" if planned.fits else "OOM",
        "OOM" if published.out_of_memory else _shown(published.gb, ".2f"),
        _shown(published.samples_per_sec_per_gpu),
        _shown(published.sec_per_iteration),
        _shown(published.tflops_per_gpu),
        _shown(planned.memory_error, "+.1f"),
        _shown(planned.error, "+.1f"),
    ]


def _shown(value: float | None, form: str = "g") -> str:
    return "-" if value is None else f"{value:{form}}"


SUMMARY_COLUMNS = (
    "table", "rows", "memory_mape_pct", "memory_kendall_tau", "time_mape_pct", "time_kendall_tau",
    "time_pairs_apart_pct", "time_kendall_tau_apart",
)  # fmt: skip


def render(columns: Sequence[str], lines: Sequence[Sequence[str]], form: str, texts: Sequence[str] = ()) -> str:
    """Returns a table as csv, md, or text with aligned columns; md aligns the columns `texts`, or the first, left."""
    if form == "csv":
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([columns, *lines])
        return out.getvalue()
    if form == "md":
        marks = ["---" if column in (texts or columns[:1]) else "---:" for column in columns]
        return "".join(f"| {' | '.join(line)} |\n" for line in (columns, marks, *lines))
    widths = [max(len(line[column]) for line in (columns, *lines)) for column in range(len(columns))]
    aligned = (
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in (columns, *lines)
    )
    return "".join("  ".join(line) + "\n" for line in aligned)
