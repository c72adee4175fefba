"""Reads the documents of one input file: opens and decompresses it, and chooses a reader by the ending of its name.

Several workers read a large Parquet file, each some of its row groups. Every other file is read by one worker.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from tftrain.config.prepare import PrepareConfig
from tftrain.host import addresses
from tftrain.input.errors import DataError
from tftrain.prepare import archives, compression, corpus, tables
from tftrain.prepare.tables import Columns, Row

# JSON Lines are also published as .json.
_TABLES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow")
_ARCHIVES = (".tar", ".tgz", ".zip")
# Files of other endings are text.
_REFUSED = (".7z", ".avro", ".br", ".doc", ".docx", ".epub", ".feather", ".h5", ".lz4", ".npy", ".npz", ".odt", ".orc")
_REFUSED += (".pdf", ".pickle", ".pkl", ".rar", ".sqlite", ".tfrecord", ".xls", ".xlsx")
_READ = (
    "text, .jsonl, .csv, .tsv, .parquet and .arrow, each plain or as .gz, .zst, .bz2 or .xz, and .tar and .zip of them"
)
_DIVIDED_BYTES = 8 << 20
_DAMAGED = "damaged, cut short or of another format than its name says"


class Part(NamedTuple):
    """What one worker reads of a file: the whole, or a row group; and about how many bytes of text that is."""

    path: str
    bytes: int = 0
    row_group: int | None = None


class Document(NamedTuple):
    """A document's paragraphs, none if it is empty or has a fault, and its id, if the file has one."""

    paragraphs: list[str]
    id: str | None = None
    fault: str | None = None


def parts(paths: Iterable[str]) -> Iterator[Part]:
    """Yields the parts of files, in order; raises DataError if a file can't be read."""
    for path in paths:
        _ending(path)
        with _errors_named(path):
            size = addresses.size(path)
            if path.endswith(".parquet") and size > _DIVIDED_BYTES:
                import pyarrow.parquet

                with addresses.open_file(path) as file:
                    metadata = pyarrow.parquet.ParquetFile(file).metadata
                for group in range(metadata.num_row_groups):
                    yield Part(path, metadata.row_group(group).total_byte_size, group)
            else:
                compressed = path.endswith((*compression.ENDINGS, ".parquet", ".tgz", ".zip"))
                yield Part(path, size * 3 if compressed else size)


def read(divided: Iterable[Part], config: PrepareConfig) -> Iterator[Document]:
    """Yields the documents of parts of files, empty ones too.

    Raises:
        DataError: a file can't be read, or it has a bad row and `config.skip_bad_rows` is not set.
    """
    for path, _, row_group in divided:
        with _errors_named(path), addresses.open_file(path) as stream:
            for document in _documents(stream, path, config, row_group, seekable=True):
                if document.fault and not config.skip_bad_rows:
                    raise DataError(f"{document.fault}; mend it, or leave such rows out with --skip_bad_rows")
                yield document


def _documents(
    stream: BinaryIO, name: str, config: PrepareConfig, row_group: int | None = None, seekable: bool = False
) -> Iterator[Document]:
    content = compression.decompressed(stream, name)
    ending, seekable = _ending(name), seekable and content is stream and stream.seekable()
    with contextlib.ExitStack() as stack:
        if ending in (".parquet", ".arrow", ".zip") and not seekable:
            copy = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(content, copy, 1 << 20)
            content = copy
            content.seek(0)
        if ending in _ARCHIVES:
            members = archives.zip_members if ending == ".zip" else archives.tar_members
            for member, file in members(content, name):
                yield from _documents(file, member, config)
        elif ending in _TABLES:
            columns = Columns(config.text_column, config.id_column)
            for row in _rows(content, name, ending, columns, row_group):
                yield Document(corpus.paragraphs(row.text, config.document_separator), row.id, row.fault)
        elif config.id_column:
            raise DataError(f"{name}: --id_column={config.id_column}: text has no columns; leave the file out")
        else:
            yield from map(Document, corpus.read_documents(content, name, config.document_separator))


def _rows(stream: BinaryIO, name: str, ending: str, columns: Columns, row_group: int | None) -> Iterator[Row]:
    if ending in (".csv", ".tsv"):
        return tables.delimited_rows(stream, name, columns, "," if ending == ".csv" else "\t")
    if ending in (".parquet", ".arrow"):
        from tftrain.prepare import arrow_tables

        if ending == ".arrow":
            return arrow_tables.arrow_rows(stream, name, columns)
        return arrow_tables.parquet_rows(stream, name, columns, row_group)
    return tables.json_rows(stream, name, columns)


def _ending(name: str) -> str:
    """Returns the ending that tells the format of a file; raises DataError if that format can't be read."""
    uncompressed = name.lower()
    while uncompressed.endswith(compression.ENDINGS):
        uncompressed = os.path.splitext(uncompressed)[0]
    ending = os.path.splitext(uncompressed)[1]
    if ending in _REFUSED:
        raise DataError(f"{name}: files of {ending} can't be read; expected {_READ}")
    return ending


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Turns an error of reading a file into a DataError that names it."""
    try:
        yield
    except OSError as error:
        if error.strerror:
            raise DataError(f"{path}: {error.strerror}; expected a text file that can be read") from error
        raise DataError(f"{path}: {_DAMAGED} ({error}); copy it again") from error
    except (*archives.ERRORS, ValueError) as error:
        if isinstance(error, ValueError) and not type(error).__module__.startswith("pyarrow"):
            raise
        raise DataError(f"{path}: {_DAMAGED} ({error}); copy it again") from error
