"""The rows of Parquet and Arrow files, read in batches of some rows: documents, or examples of a labelled file.

Rows can share a value, and pages are compressed, so some bytes can stand for gigabytes: a value is made as it is read.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator
from typing import Any, BinaryIO

import pyarrow
import pyarrow.parquet
from pyarrow import types

from tftrain.data.table_rows import LONGEST_LINE, Row
from tftrain.files.errors import DataError
from tftrain.prepare.columns import Columns

_BATCH_ROWS = 256
_BATCH_BYTES = 1 << 26
_NONE, _PLAIN, _ALL = range(3)  # the lists of a column that are read, see `_values`
_is_view = getattr(types, "is_binary_view", types.is_binary)  # Older versions have no views.


def parquet_rows(
    file: BinaryIO, name: str, columns: Columns | None, row_group: int | None = None, scores: Collection[str] = ()
) -> Iterator[Row]:
    """Yields the rows of a Parquet file, or of one of its row groups; the file must be seekable. See `_values`."""
    table = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=1 << 20)
    names, lists = _names(columns, table.schema_arrow.names, name, scores)
    groups = [table.metadata.row_group(group) for group in range(table.num_row_groups)]
    number = sum(group.num_rows for group in groups[: row_group or 0])
    paths = [table.schema.column(leaf).path for leaf in range(len(table.schema))]
    leaves = [leaf for leaf, path in enumerate(paths) if {path, path.split(".")[0]} & set(names)]
    for index in range(len(groups)) if row_group is None else [row_group]:
        # pyarrow's `column` aborts the process where the metadata are damaged; reading a row raises an error there.
        next(table.iter_batches(1, row_groups=[index], columns=names, use_threads=False), None)
        chunks, count = map(groups[index].column, leaves), groups[index].num_rows
        rows = min((_rows_at_once(file, chunk, count) for chunk in chunks), default=_BATCH_ROWS)
        batches = table.iter_batches(rows, row_groups=[index], columns=names, use_threads=False)
        yield from _rows(batches, name, names, lists, number)
        number += groups[index].num_rows


def _rows_at_once(file: BinaryIO, chunk: pyarrow.parquet.ColumnChunkMetaData, count: int) -> int:
    """Returns how many of the `count` rows of a column take about `_BATCH_BYTES`, as far as the file tells."""
    count, size = min(chunk.num_values, count), max(chunk.total_uncompressed_size, 1)
    file.seek(max(0, min(chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset)))
    kind, page = _page(file.read(16).ljust(32, b"\0"))
    # A value of a dictionary (page kind 2) can be as large as that, and one with a common prefix as all of the column.
    largest = size if "DELTA_BYTE_ARRAY" in chunk.encodings else page if kind == 2 else 1
    return max(1, min(_BATCH_BYTES * count // size, _BATCH_BYTES // max(largest, 1), _BATCH_ROWS))


def _page(header: bytes) -> list[int]:
    """Returns the kind and the uncompressed bytes of a page: the first two numbers of its header, in Thrift's form."""
    numbers, stream = [0, 0], iter(header)
    for index in range(2):
        next(stream)
        for place, byte in enumerate(stream):
            numbers[index] |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                break
    return [number >> 1 for number in numbers]


def arrow_rows(file: BinaryIO, name: str, columns: Columns | None, scores: Collection[str] = ()) -> Iterator[Row]:
    """Yields the rows of an Arrow IPC stream, as `datasets` saves it, or of a seekable IPC file; see `_values`."""
    if file.peek(6)[:6] == b"ARROW1":
        table = pyarrow.ipc.open_file(file)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        batches = table = pyarrow.ipc.open_stream(file)
    names, lists = _names(columns, table.schema.names, name, scores)
    parts = (batch.slice(begin, _BATCH_ROWS) for batch in batches for begin in range(0, batch.num_rows, _BATCH_ROWS))
    yield from _rows(parts, name, names, lists, 0)


def _names(
    columns: Columns | None, present: list[str], name: str, scores: Collection[str]
) -> tuple[list[str], list[int]]:
    """Returns the names of the columns to read of a file, and which lists of each; None: all, for labelled examples."""
    if columns:
        columns.check(present, name)
        return columns.names, [_NONE] * len(columns.names)
    if len(set(present)) < len(present):
        raise DataError(f"{name}: two columns have the same name; rename one")
    return present, [_ALL if each.strip().lower() in scores else _PLAIN for each in present]


def _rows(
    batches: Iterable[pyarrow.RecordBatch], name: str, names: list[str], lists: list[int], number: int
) -> Iterator[Row]:
    """Yields the rows of batches; `number` rows of the file are before them."""
    for batch in batches:
        columns = map(batch.column, names)
        for values in zip(*map(_values, columns, itertools.repeat(name), lists), strict=True):
            number += 1
            yield Row(f"{name}, row {number}", dict(zip(names, values, strict=True)))


def _values(column: pyarrow.Array, name: str, lists: int) -> Iterator[Any]:
    """Yields the values of a column, or its type for each if that is neither text, bytes, a number nor a UUID.

    With `_PLAIN`, lists and structs of these are values too, except lists of fractions: those are vectors, unless the
    column is one of `scores`, names in lower case, of which `_ALL` are read.
    """
    column = _checked(column)
    if lists and types.is_nested(column.type):
        column.validate(full=True)
    is_shared = types.is_dictionary(column.type)
    words = _checked(column.dictionary) if is_shared else column
    for place in column.indices.to_pylist() if is_shared else range(len(words)):
        yield None if place is None else _value(words[place], name, lists)


def _checked(column: pyarrow.Array) -> pyarrow.Array:
    """Returns an array whose texts lie in their buffers, which Arrow does not check on its own, UTF-8 or not."""
    if isinstance(column, pyarrow.ExtensionArray) and column.type.extension_name != "arrow.uuid":
        column = column.storage
    as_bytes = {pyarrow.string(): pyarrow.binary(), pyarrow.large_string(): pyarrow.large_binary()}
    if column.type in (*as_bytes, *as_bytes.values()) or types.is_string_view(column.type) or _is_view(column.type):
        column.view(as_bytes.get(column.type, column.type)).validate(full=True)
    return column


def _value(scalar: pyarrow.Scalar, name: str, lists: int) -> Any:
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if lists and types.is_dictionary(kind):
        return _value(scalar.value, name, lists)
    is_list = lists != _NONE and isinstance(scalar, pyarrow.ListScalar) and not types.is_map(kind)
    if is_list and (lists == _ALL or not types.is_floating(kind.value_type)):
        return [_value(each, name, lists) for each in scalar.values]
    if lists and types.is_struct(kind):
        return {field: _value(each, name, lists) for field, each in scalar.items()}
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if is_text or types.is_binary(kind) or types.is_large_binary(kind) or _is_view(kind):
        content = scalar.as_buffer()
        if content.size > LONGEST_LINE:
            raise DataError(f"{name}: a row of more than {LONGEST_LINE >> 20} MiB; leave the file out")
        return content.to_pybytes().decode(errors="surrogateescape") if is_text else content.to_pybytes()
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind)
    is_identity = types.is_fixed_size_binary(kind) or getattr(kind, "extension_name", "") == "arrow.uuid"
    return scalar.as_py() if is_number or is_identity else kind
