"""Measures the rows of a benchmark table on this machine, and writes a report.

Example, the tables and their rows:
    python -m tftrain.bench --list && python -m tftrain.bench --list=kernels

The report goes to stdout and to OUTPUT_DIR, progress to stderr. Exit codes: 0 all rows were measured, 1 a row failed
(stderr has the reason; the other rows were measured), 2 wrong flags, 130 interrupted from the keyboard (`--resume`
continues).
"""

import difflib
import logging
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tftrain.bench import host, page, picture
from tftrain.bench.config import BenchConfig
from tftrain.bench.report import FinishedRows, render
from tftrain.bench.table import BenchTable, TableRow, groups
from tftrain.bench.tables import TABLES
from tftrain.cli.program import Program
from tftrain.config.fields import ConfigError, Problem
from tftrain.host.exit_codes import ExitCode

logger = logging.getLogger("tftrain.bench")

INTERRUPTED = ExitCode.SIGNALLED + signal.SIGINT
EVERY = "all"
CONDITIONS = ("scale", "np", "cpu_threads", "working_set_mb", "extra_flags")  # flags that change what is measured


def main(argv: Sequence[str]) -> int:
    """Runs the program with its name and its flags; returns the exit status."""
    args = [f"--list={EVERY}" if arg == "--list" else arg for arg in argv]
    program = Program("bench", BenchConfig, lambda config: f"--output_dir={config.output_dir}", stream="stderr")
    return program.main(measure, args)


def measure(config: BenchConfig) -> int:
    """Lists tables, or measures those that the flags name; returns the exit status."""
    if config.list:
        tables = named(config.list, "list") if config.list != EVERY else named(config.table)
        print(listing(tables), end="")
        return 0
    codes = []
    for table, rows in chosen(config):
        try:
            codes.append(measure_table(table, rows, config))
        except ConfigError as error:
            logger.error(error)
            codes.append(ExitCode.WRONG_FLAGS)
        except Exception:  # A failure of one table does not stop the others.
            traceback.print_exc()
            codes.append(ExitCode.FAILED)
        if codes[-1] == INTERRUPTED:
            break
    return max(codes)


def measure_table(table: BenchTable, rows: list[TableRow], config: BenchConfig) -> int:
    """Measures rows of a table and writes its report; returns the exit status.

    Raises a ConfigError if the rows to resume from were measured with other flags.
    """
    settled = table.settle(config) if table.settle else None
    runs, config = settled is not config, settled or config
    chosen = {name: value for name in CONDITIONS if (value := getattr(config, name)) != getattr(BenchConfig, name)}
    under = " ".join(f"--{name}={value}" for name, value in chosen.items()) if runs else None
    store = FinishedRows(table, config.output_dir, config.resume, under)
    logger.info(f"{table.name}: {len(rows)} rows; {host.load()}")
    try:
        failed = run(table, rows, config, store)
    except KeyboardInterrupt:
        logger.info(f"interrupted; --resume continues from {store.path}")
        return INTERRUPTED
    outcomes = store.outcomes()
    report = render(table, outcomes, config.format)
    path = Path(config.output_dir) / f"{table.name}.{config.format}"
    path.write_text(report)
    print(report, end="", flush=True)
    logger.info(f"{path}; {host.load()}")
    records = [record for outcome in outcomes for record in outcome.records]
    for line in table.remarks(records) if table.remarks else ():
        logger.info(line)
    if table.draw and records:
        path.with_suffix(".png").write_bytes(picture.png(table.draw, records))
        logger.info(str(path.with_suffix(".png")))
    if outcomes:
        (table.page or page.write)(table, outcomes, path.with_suffix(".html"))
        logger.info(str(path.with_suffix(".html")))
    return ExitCode.FAILED if failed else 0


def chosen(config: BenchConfig) -> list[tuple[BenchTable, list[TableRow]]]:
    """Returns the tables and their rows that the flags name.

    Raises a ConfigError if a table or a row does not exist. The message lists those that do.
    """
    tables, globs = named(config.table), [glob.strip() for glob in config.rows.split(",")]
    if unmatched := [glob for glob in globs if not any(table.matching(glob) for table in tables)]:
        names = [row.name for table in tables for row in table.rows]
        listed = f"among {', '.join(names)}"
        if len(names) > 20:
            alike = difflib.get_close_matches(unmatched[0], names, n=5, cutoff=0.3) or names[:5]
            listed = f"such as {', '.join(alike)} (--list prints all)"
        expected = f"no row matches {', '.join(map(repr, unmatched))}; expected names or globs {listed}"
        raise ConfigError([Problem("rows", config.rows, expected)])
    return [(table, rows) for table in tables if (rows := table.matching(config.rows))]


def named(name: str | None, flag: str = "table") -> list[BenchTable]:
    """Returns the table that a flag names, or all tables for "all" and None.

    Raises a ConfigError if the table does not exist.
    """
    if name in (None, EVERY):
        return list(TABLES.values())
    if name not in TABLES:
        raise ConfigError([Problem(flag, name, f"expected one of {', '.join(TABLES)}, or all")])
    return [TABLES[name]]


def listing(tables: list[BenchTable]) -> str:
    """Returns a line for each of several tables, or the columns and rows of one."""
    if len(tables) > 1:
        width = max(len(table.name) for table in tables)
        lines = [f"{table.name:{width}}  {len(table.rows):4} rows  {table.about}" for table in tables]
        return "\n".join([*lines, "--list=NAME prints the columns and rows of a table"]) + "\n"
    (table,) = tables
    lines = [f"{table.name}: {table.about}", f"  columns: {', '.join(column.name for column in table.columns)}"]
    lines += [f"  {row.name}" for row in table.rows]
    return "\n".join(lines) + "\n"


def run(table: BenchTable, rows: list[TableRow], config: BenchConfig, store: FinishedRows) -> bool:
    """Measures the rows group by group and stores every outcome; returns whether a row failed.

    A group is measured as a whole, or skipped if the store has all of its rows: figures that are compared with each
    other come from one run. Only a table that is `row_by_row` resumes within a group.
    """
    failed = False
    for number, group in enumerate(parts := groups(rows), start=1):
        if all(store.has(row.name) for row in group):
            logger.info(f"[{number}/{len(parts)}] {group[0].group}: already measured")
            continue
        logger.info(f"[{number}/{len(parts)}] {group[0].group}")
        left = [row for row in group if not (table.row_by_row and store.has(row.name))]
        for outcome in table.outcomes(left, config, lambda words: logger.info(f"  {words}")):
            store.add(outcome)
            if outcome.error:
                failed = True
                logger.info(f"  {outcome.row} failed: {outcome.error}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv))
