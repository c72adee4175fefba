"""The rows of Parquet and Arrow files, read in batches of some rows. A row is a document, and a column has its text."""

from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet

from tftrain.input.table_rows import Row
from tftrain.prepare.columns import Columns

_BATCH_ROWS = 256


def parquet_rows(file: BinaryIO, name: str, columns: Columns, row_group: int | None = None) -> Iterator[Row]:
    """Yields the rows of a Parquet file, or of one of its row groups; the file must be seekable."""
    table = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
    columns.check(table.schema_arrow.names, name)
    groups = range(table.num_row_groups) if row_group is None else [row_group]
    before = sum(table.metadata.row_group(group).num_rows for group in range(row_group or 0))
    batches = table.iter_batches(_BATCH_ROWS, row_groups=groups, columns=columns.names, use_threads=False)
    yield from _rows(batches, name, columns, before)


def arrow_rows(file: BinaryIO, name: str, columns: Columns) -> Iterator[Row]:
    """Yields the rows of an Arrow IPC stream, as `datasets` saves it, or of an Arrow IPC file. It must be seekable."""
    if file.peek(6)[:6] == b"ARROW1":
        table = pyarrow.ipc.open_file(file)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        batches = table = pyarrow.ipc.open_stream(file)
    columns.check(table.schema.names, name)
    parts = (batch.slice(begin, _BATCH_ROWS) for batch in batches for begin in range(0, batch.num_rows, _BATCH_ROWS))
    yield from _rows(parts, name, columns, 0)


def _rows(batches: Iterable[pyarrow.RecordBatch], name: str, columns: Columns, number: int) -> Iterator[Row]:
    """Yields the rows of batches; `number` rows of the file are before them."""
    for batch in batches:
        for values in zip(*(_values(batch.column(column)) for column in columns.names), strict=True):
            number += 1
            yield Row(f"{name}, row {number}", dict(zip(columns.names, values, strict=True)))


def _values(column: pyarrow.Array) -> list[Any]:
    """Returns the values of a column, or its type for each if that is not text. Arrow does not check text for UTF-8."""
    try:
        return column.to_pylist()
    except (OverflowError, ValueError):
        if pyarrow.types.is_nested(column.type) or pyarrow.types.is_temporal(column.type):
            return [column.type] * len(column)
        texts = column.cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        return [None if text is None else text.decode(errors="surrogateescape") for text in texts]
