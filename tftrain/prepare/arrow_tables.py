"""The rows of Parquet and Arrow files, read in batches of some rows. A row is a document, and a column has its text."""

from collections.abc import Iterable, Iterator
from typing import BinaryIO

import pyarrow
import pyarrow.parquet
from pyarrow import types

from tftrain.input.errors import DataError
from tftrain.prepare.tables import Columns, Row

_BATCH_ROWS = 256


def parquet_rows(file: BinaryIO, name: str, columns: Columns, row_group: int | None = None) -> Iterator[Row]:
    """Yields the rows of a Parquet file, or of one of its row groups; the file must be seekable."""
    table = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
    _check_schema(table.schema_arrow, columns, name)
    groups = range(table.num_row_groups) if row_group is None else [row_group]
    first = 0 if row_group is None else sum(table.metadata.row_group(group).num_rows for group in range(row_group))
    names = [column for column in columns if column]
    batches = table.iter_batches(_BATCH_ROWS, row_groups=groups, columns=names, use_threads=False)
    yield from _batch_rows(batches, name, columns, first)


def arrow_rows(file: BinaryIO, name: str, columns: Columns) -> Iterator[Row]:
    """Yields the rows of an Arrow IPC stream, as `datasets` saves it, or of an Arrow IPC file. It must be seekable."""
    if file.peek(6)[:6] == b"ARROW1":
        table = pyarrow.ipc.open_file(file)
        batches = (table.get_batch(number) for number in range(table.num_record_batches))
    else:
        batches = table = pyarrow.ipc.open_stream(file)
    _check_schema(table.schema, columns, name)
    parts = (batch.slice(begin, _BATCH_ROWS) for batch in batches for begin in range(0, batch.num_rows, _BATCH_ROWS))
    yield from _batch_rows(parts, name, columns, 0)


def _check_schema(schema: pyarrow.Schema, columns: Columns, name: str) -> None:
    """Raises DataError unless a file has the columns, with text, and ids that are text or whole numbers."""
    columns.check(schema.names, name)
    is_text = (types.is_string, types.is_large_string, types.is_string_view)
    kinds = {"text_column": (columns.text, is_text), "id_column": (columns.id, (*is_text, types.is_integer))}
    for flag, (column, accepted) in kinds.items():
        kind = schema.field(column).type if column else None
        value = kind.value_type if column and types.is_dictionary(kind) else kind
        if column and not any(accepts(value) for accepts in accepted):
            raise DataError(f"{name}: --{flag}={column}: the column has the type {kind}; expected text")


def _batch_rows(batches: Iterable[pyarrow.RecordBatch], name: str, columns: Columns, number: int) -> Iterator[Row]:
    """Yields the rows of batches; `number` rows of the file are before them."""
    for batch in batches:
        # Arrow does not check that text is UTF-8.
        texts = batch.column(columns.text).cast(pyarrow.large_string()).cast(pyarrow.large_binary()).to_pylist()
        ids = batch.column(columns.id).cast(pyarrow.large_string()).to_pylist() if columns.id else [None] * len(texts)
        for text, identity in zip(texts, ids, strict=True):
            number += 1
            place = f"{name}: row {number}: column "
            if text is None or (columns.id and identity is None):
                yield Row(fault=f"{place}{columns.text if text is None else columns.id}: null")
                continue
            try:
                yield Row(text.decode(), identity)
            except UnicodeDecodeError as error:
                yield Row(fault=f"{place}{columns.text}: {error}")
