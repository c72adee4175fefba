"""The tables of published rows: each row runs scaled on this machine, beside its plan and its published figures.

A row that can't fit is not started, and a row that fails reports the reason; both have planned and published figures.
Rows that scale to the same run, for example rows that differ only in the number of nodes, share it. Changes are against
the table's base row: measured as it ran just before and after, planned and published by their own figures.
"""

import dataclasses
import functools
import statistics
from collections.abc import Iterator, Mapping, Sequence

from tftrain.bench.config import BenchConfig
from tftrain.bench.published import compare, order, rows, scale
from tftrain.bench.published.case import Case, prepare, refusal
from tftrain.bench.published.chart import draw
from tftrain.bench.published.page import write
from tftrain.bench.published.row import PublishedRow
from tftrain.bench.report import spread
from tftrain.bench.table import BenchTable, Record, RowOutcome, Say, TableRow, columns
from tftrain.bench.training import alternation, run
from tftrain.bench.worker import MeasureError

STEPS = 20  # the start of a run takes longer; steps of small models vary by a third
SWEEPS = ("sweep_", "foundry_")  # tables too long to run, unless --rows names the rows

COLUMNS = columns(
    "row settings status scale peak_gb:3 peak_gb_change_pct:1 samples_per_sec:2 "
    "samples_per_sec_change_pct:1 step_spread_pct:1 base_spread_pct:1 base_peak_spread_pct:1 planned_gb:2 "
    "planned_gb_change_pct:1 planned_samples_per_sec_per_gpu:3 planned_speed_change_pct:1 published_gb:2 "
    "published_gb_change_pct:1 published_samples_per_sec_per_gpu:3 published_speed_change_pct:1 note"
)


def measure(
    published: Sequence[PublishedRow], group: list[TableRow], config: BenchConfig, say: Say
) -> Iterator[RowOutcome]:
    """Measures rows of a table with its base row, the first of `published`, even if that was not chosen."""
    figures = reference(published)
    if _planned_only(group[0].group, config):
        say("planned only; name rows with --rows to run them")
        for row in group:
            yield RowOutcome(row.name, [figures[row.name] | {"status": "planned only"}], final=False)
        return
    machine, size = _host_and_scale(published, config)
    say(f"scale {size}; {machine.gb:.1f} GB a rank")
    base = TableRow(published[0].name, group[0].group)
    others = [row for row in group if row.name != base.name]
    chosen = {row.name for row in group}
    named = {each.name: each for each in published}
    cases = {row.name: prepare(named[row.name], size, machine.ranks, config) for row in (base, *others)}
    shared = same_runs(others, cases)
    unfit = {name: why for name, case in cases.items() if (why := refusal(case, machine))}

    def one(row: TableRow) -> run.Figures:
        if row.name in unfit:
            raise MeasureError(unfit[row.name])
        return run.measure(cases[row.name].flags, cases[row.name].work.ranks, config.steps or STEPS)

    distinct = [same[0] for same in shared.values()]
    for compared in alternation.in_alternation(base, distinct, one, say, rounds=config.rounds):
        measured = compared.row.name
        for name in [row.name for row in shared.get(measured, [compared.row]) if row.name in chosen]:
            record = figures[name] | case_record(cases[name], size) | run_record(compared, name == base.name)
            record["status"] = unfit.get(name) or ("measured" if compared.figures else f"failed: {compared.error}")
            if name != measured:
                record["note"] += f"; the same run as {measured}"
            # The row may fit later, when more memory is free.
            error = None if compared.figures or name in unfit else compared.error
            yield RowOutcome(name, [record], error, final=name not in unfit)


def same_runs(others: Sequence[TableRow], cases: Mapping[str, Case]) -> dict[str, list[TableRow]]:
    """Returns the rows that are one run on this machine, by the name of the first of them; `cases` are by name too."""
    groups: dict[tuple, list[TableRow]] = {}
    for row in others:
        groups.setdefault((cases[row.name].work.ranks, *cases[row.name].flags), []).append(row)
    return {same[0].name: same for same in groups.values()}


def settle(published: Sequence[PublishedRow], config: BenchConfig) -> BenchConfig:
    """Returns the configuration with the scale and the ranks of a table on this machine, if any row runs."""
    if _planned_only(published[-1].table, config):
        return config
    machine, size = _host_and_scale(published, config)
    return dataclasses.replace(config, scale=str(size.factor), np=machine.ranks)


def _host_and_scale(published: Sequence[PublishedRow], config: BenchConfig) -> tuple[scale.LocalMachine, scale.Scale]:
    machine = scale.inspect(config.np, any(row.workload.pp > 1 for row in published))
    return machine, scale.choose(config.scale, published, machine)


def _planned_only(table: str, config: BenchConfig) -> bool:
    return table.startswith(SWEEPS) and config.rows == BenchConfig.rows


def case_record(case: Case, size: scale.Scale) -> Record:
    """Returns the record of a case: its scale, and for json its sizes, ranks and flags."""
    own = {"scale": str(size), "sizes": case.sizes, "ranks": case.work.ranks, "flags": " ".join(case.flags)}
    return own | {"note": "; ".join(part for part in (case.note, f"run as {case.sizes}") if part)}


def run_record(compared: alternation.Compared, is_base: bool) -> Record:
    """Returns the record of a run: empty if it failed; the base has no change against itself."""
    if compared.figures is None:
        return {}
    record = alternation.record(compared)
    steps = spread(compared.figures.step_seconds)
    record["step_spread_pct"] = 100 * (steps["high"] - steps["low"]) / steps["median"]
    if compared.base:
        peaks = record["base_peak_gb"]
        record["base_spread_pct"] = record["base_spread"]
        if record["base_peak_spread"] is not None:
            record["base_peak_spread_pct"] = 100 * record["base_peak_spread"] / statistics.median(peaks)
        if not is_base:
            record["samples_per_sec_change_pct"] = record["samples_per_sec_change"]
            record["peak_gb_change_pct"] = _change(record["peak_gb"], statistics.median(peaks))
    return record


def reference(published: Sequence[PublishedRow]) -> dict[str, Record]:
    """Returns for each row the record that needs no run: settings, plan at the published scale, published figures."""
    plans = compare.plan_all(published)
    records = {row.name: _reference(row, plan) for row, plan in zip(published, plans, strict=True)}
    base = records[published[0].name]
    for row in published:
        record = records[row.name]
        record["settings"] = row.against(published[0])
        if record is not base:
            for figure in ("planned_gb", "planned_speed", "published_gb", "published_speed"):
                column = figure.replace("speed", "samples_per_sec_per_gpu")
                record[f"{figure}_change_pct"] = _change(record[column], base[column])
    return records


def _reference(row: PublishedRow, plan: compare.Planned) -> Record:
    seconds = row.reference_seconds
    speed = row.counted * row.workload.global_batch / (seconds * row.workload.ranks) if seconds else None
    return {
        "row": row.name,
        "stages": row.workload.pp,
        "planned_gb": plan.gb if plan.fits else "OOM",
        "planned_samples_per_sec_per_gpu": plan.samples_per_sec_per_gpu,
        "published_gb": "OOM" if row.reference.out_of_memory else row.reference.gb,
        "published_samples_per_sec_per_gpu": speed,
        "note": f"source: {row.note}" if row.note else None,
    }


def _change(value: float | str | None, base: float | str | None) -> float | None:
    """Returns the difference of a figure from the base's in percent; None if one is missing or did not fit."""
    if isinstance(value, str) or isinstance(base, str) or not value or not base:
        return None
    return 100 * (value / base - 1)


def _table(name: str, published: Sequence[PublishedRow]) -> BenchTable:
    kind = "a decoder" if published[-1].workload.model.causal else "an encoder"
    own = next(row for row in published if row.table == name)
    return BenchTable(
        name,
        f"published rows of {kind} on {own.cluster}, each against {published[0].name}",
        COLUMNS,
        tuple(TableRow(row.name, name) for row in published),
        functools.partial(measure, published),
        draw=draw,
        remarks=order.lines,
        page=write,
        settle=functools.partial(settle, published),
        row_by_row=True,
    )


PUBLISHED = tuple(_table(name, published) for name, published in rows.by_table().items())
