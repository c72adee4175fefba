"""Measures the rows of a benchmark table: `python -m tftrain.bench --table=NAME`, or `--list`.

The report goes to stdout and to OUTPUT_DIR, progress to stderr. Exit codes: 0 every row was measured, 1 a row failed
(stderr says why; the others were measured), 2 wrong flags, 130 interrupted from the keyboard (`--resume` goes on).
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tftrain import flags
from tftrain.bench import host
from tftrain.bench.config import BenchConfig
from tftrain.bench.report import Store, render
from tftrain.bench.table import Row, Table, groups
from tftrain.bench.tables import TABLES
from tftrain.fields import ConfigError, Problem

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Runs the program.

    Args:
        argv: the program's name and its flags.

    Returns:
        The exit status.
    """
    try:
        config = flags.parse(BenchConfig, ["python -m tftrain.bench", *argv[1:]])
        if problems := config.problems():
            raise ConfigError(problems)
        if config.list:
            print(listing(), end="")
            return 0
        table, rows = chosen(config)
    except ConfigError as error:
        flags.refuse("tftrain.bench", error)
    store = Store(table, config.output_dir, config.resume)
    say(f"{table.name}: {len(rows)} rows; {host.load()}")
    try:
        failed = run(table, rows, config, store)
    except KeyboardInterrupt:
        say(f"interrupted; --resume goes on from {store.path}")
        return EXIT_INTERRUPTED
    report = render(table, store.outcomes(), config.format)
    path = Path(config.output_dir) / f"{table.name}.{config.format}"
    path.write_text(report)
    print(report, end="", flush=True)
    say(f"{path}; {host.load()}")
    records = [record for outcome in store.outcomes() for record in outcome.records]
    if table.draw and records:
        table.draw(records, path.with_suffix(".png"))
        say(str(path.with_suffix(".png")))
    return EXIT_FAILED if failed else 0


def chosen(config: BenchConfig) -> tuple[Table, list[Row]]:
    """Returns the table and the rows that the flags name.

    Raises:
        ConfigError: there is no such table or row; the message lists those that there are.
    """
    table = TABLES.get(config.table)
    if table is None:
        raise ConfigError([Problem("table", config.table, f"expected one of {', '.join(TABLES)}")])
    rows = table.matching(config.rows)
    if not rows:
        names = ", ".join(row.name for row in table.rows)
        raise ConfigError([Problem("rows", config.rows, f"expected a glob that matches some of {names}")])
    return table, rows


def listing() -> str:
    """Returns every table with its columns and its rows."""
    lines = []
    for table in TABLES.values():
        lines += [f"{table.name}: {table.about}", f"  columns: {', '.join(column.name for column in table.columns)}"]
        lines += [f"  {row.name}" for row in table.rows]
    return "\n".join(lines) + "\n"


def run(table: Table, rows: list[Row], config: BenchConfig, store: Store) -> bool:
    """Measures the rows, group by group, and keeps every outcome.

    A group is measured as a whole or, where all of its rows are kept from an earlier run, not at all: figures that are
    compared with each other come from one run.

    Returns:
        Whether a row failed.
    """
    failed = False
    for number, group in enumerate(parts := groups(rows), start=1):
        if all(store.has(row.name) for row in group):
            say(f"[{number}/{len(parts)}] {group[0].group}: kept from an earlier run")
            continue
        say(f"[{number}/{len(parts)}] {group[0].group}")
        for outcome in table.measure(group, config, lambda words: say(f"  {words}")):
            store.add(outcome)
            if outcome.error:
                failed = True
                say(f"  {outcome.row} failed: {outcome.error}")
    return failed


def say(words: str) -> None:
    """Prints a line of progress."""
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
