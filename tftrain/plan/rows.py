"""Published rows: those of the reference tables, or of any file in one of their four formats."""

import csv
import io
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

from tftrain.fields import ConfigError, Problem
from tftrain.plan.formats import FORMATS
from tftrain.plan.published import Row

REFERENCE = ("encoder_a100.csv", "decoder_3d_a100.csv", "decoder_3d_a64fx.csv", "decoder_sweep_a100.csv")


def read_reference() -> list[Row]:
    """Returns every row of the reference tables that come with the planner."""
    folder = resources.files("tftrain.plan") / "reference"
    return [row for name in REFERENCE for row in read_text((folder / name).read_text(), name)]


def read_file(path: str) -> list[Row]:
    """Returns the rows of a file in one of the reference formats.

    Raises:
        ConfigError: it can't be read, its columns are those of no format, or a row is wrong.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([Problem("rows_file", path, f"expected a readable CSV file: {error}")]) from error
    return read_text(text, path)


def read_text(text: str, name: str) -> list[Row]:
    """Does what `read_file` does, for what the file `name` holds."""
    reader = csv.DictReader(io.StringIO(text))
    columns = set(reader.fieldnames or ())
    for needed, read in FORMATS:
        if needed <= columns:
            return list(_read_rows(reader, read, name))
    formats = "; or ".join(", ".join(sorted(needed)) for needed, _ in FORMATS)
    raise ConfigError([Problem("rows_file", name, f"expected columns of a reference table, among them {formats}")])


def _read_rows(reader: csv.DictReader, read: Callable[[dict[str, str]], Row], name: str) -> Iterable[Row]:
    for cells in reader:
        place = f"line {reader.line_num} of {name}"
        try:
            row = read(cells)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError([Problem("rows_file", place, f"{type(error).__name__} {error}")]) from error
        ranks = int(cells.get("gpus") or row.workload.ranks)
        if row.workload.ranks != ranks:
            sizes = f"dp={row.workload.dp} * tp={row.workload.tp} * pp={row.workload.pp}"
            raise ConfigError([Problem("rows_file", place, f"expected {sizes} to be its {ranks} GPUs")])
        yield row
