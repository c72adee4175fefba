"""Reads the documents of one input file: opens and decompresses it, and chooses a reader by the ending of its name.

Several workers read a Parquet file, each some of its row groups. Every other file is read by one worker.
"""

import bz2
import contextlib
import gzip
import io
import lzma
import math
import re
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import BinaryIO, NamedTuple

from tftrain.config.prepare import PrepareConfig
from tftrain.host import addresses
from tftrain.host.units import GB
from tftrain.input.errors import DataError
from tftrain.input.table_rows import Row, json_rows, separated_rows
from tftrain.prepare import archives, corpus
from tftrain.prepare.columns import Columns

_COMPRESSED = ("gz", "zst", "bz2", "xz")
# What readers of damaged files raise; zipfile a RuntimeError if it can't decompress or decrypt.
_DAMAGED = (OSError, EOFError, ValueError, IndexError, RuntimeError)
_DAMAGED += (lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# A compressed file may have so many times its size of text. Text of some bytes is free, and a document counts as some.
_MOST_EXPANSION = 200
_FREE_BYTES = 1 << 26
_DOCUMENT_BYTES = 16


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
        with _errors_named(path):
            name = addresses.file_name(path)
            if name.endswith(".parquet"):
                import pyarrow.parquet

                with addresses.open_file(path) as file:
                    metadata = pyarrow.parquet.ParquetFile(file).metadata
                for group in range(metadata.num_row_groups):
                    yield Part(path, metadata.row_group(group).total_byte_size, group)
            else:
                compressed = name.rpartition(".")[2] in (*_COMPRESSED, "tgz", "zip")
                yield Part(path, addresses.size(path) * (3 if compressed else 1))


def read(divided: Iterable[Part], config: PrepareConfig) -> Iterator[Document]:
    """Yields the documents of parts of files, empty ones too.

    Raises:
        DataError: a file can't be read, or it has a bad row and `config.skip_bad_rows` is not set.
    """
    for path, _, row_group in divided:
        with _errors_named(path), addresses.open_file(path) as stream:
            left = _FREE_BYTES + _MOST_EXPANSION * (addresses.size(path) or math.inf)
            for document in _documents(stream, path, config, row_group, addresses.file_name(path)):
                if document.fault and not config.skip_bad_rows:
                    raise DataError(f"{document.fault}; correct it, or leave such rows out with --skip_bad_rows")
                left -= sum(map(len, document.paragraphs)) + _DOCUMENT_BYTES
                if left < 0:
                    raise DataError(f"{path}: its text is {_MOST_EXPANSION} times as large; expand it, or leave it out")
                yield document


def _documents(stream: BinaryIO, name: str, config: PrepareConfig, group: int | None, file: str) -> Iterator[Document]:
    columns, content = Columns(config.text_column, config.id_column), _decompressed(stream)
    ending = _ending(file)
    if ending in (".parquet", ".arrow", ".zip") and not (content is stream and stream.seekable()):
        content = _spooled(content, name, config.max_expanded_gb)
    if ending in (".tar", ".tgz", ".zip"):
        members = archives.zip_members if ending == ".zip" else archives.tar_members
        for member, inside in members(content, name):
            # `datasets` saves other files beside its rows; state.json is one of them, but not every one.
            beside = re.search(r"/(cache-\w+\.arrow|dataset_(info|dict)\.json)$", member)
            if not (beside or b'"_data_files"' in inside.peek(30)[:30]):
                yield from _documents(inside, member, config, None, member)
    elif rows := _rows(content, name, ending, columns, group):
        for text, identity, fault in map(columns.of, rows):
            yield Document(corpus.paragraphs(text, config.document_separator, name), identity, fault)
    elif config.id_column:
        raise DataError(f"{name}: --id_column={config.id_column}: text has no columns; leave the file out")
    else:
        yield from map(Document, corpus.read_documents(content, name, config.document_separator))


def _ending(file: str) -> str:
    """Returns the ending of a name in lower case, without those of compression after another: .tar of a.tar.gz."""
    _, *endings = file.lower().rpartition("/")[2].split(".")
    while len(endings) > 1 and endings[-1] in _COMPRESSED:
        endings.pop()
    return f".{endings[-1]}" if endings else ""


def _spooled(packed: BinaryIO, name: str, most_gb: float) -> BinaryIO:
    """Returns a seekable file in the temporary folder with the rest of a stream."""
    file = tempfile.TemporaryFile()  # noqa: SIM115
    while block := packed.read(1 << 20):
        if file.tell() + len(block) > most_gb * GB:
            raise DataError(f"{name}: expands to more than --max_expanded_gb={most_gb:g}; raise that, or expand it")
        file.write(block)
    file.seek(0)
    return file


def _rows(stream: BinaryIO, name: str, ending: str, columns: Columns, row_group: int | None) -> Iterator[Row] | None:
    """Returns the rows of a table, or None if the ending of its name is that of text."""
    if ending in (".jsonl", ".ndjson", ".json"):  # JSON Lines are also published as .json.
        return json_rows(stream, name)
    if ending in (".csv", ".tsv"):
        return separated_rows(stream, name, "," if ending == ".csv" else "\t", columns.check)
    if ending not in (".parquet", ".arrow"):
        return None
    from tftrain.prepare import arrow_tables

    if ending == ".arrow":
        return arrow_tables.arrow_rows(stream, name, columns)
    return arrow_tables.parquet_rows(stream, name, columns, row_group)


def _decompressed(stream: BinaryIO) -> BinaryIO:
    """Returns a stream of the content of a file, whose first bytes tell whether and how it is compressed."""
    first = stream.peek(10)
    if first.startswith(b"\x1f\x8b"):
        return gzip.open(stream)
    if re.match(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)", first):
        return bz2.open(stream)
    if first.startswith(b"\xfd7zXZ\x00"):
        return lzma.open(stream)
    if not first.startswith(b"\x28\xb5\x2f\xfd"):
        return stream
    import pyarrow

    # The package zstandard does not tell that a file is cut short.
    content = pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), "zstd")
    return io.BufferedReader(content, 1 << 20)


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    """Turns an error of reading a file into a DataError that names it."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.strerror:
            raise DataError(f"{path}: {error.strerror}; expected a text file that can be read") from error
        if isinstance(error, MemoryError):
            raise DataError(f"{path}: a row or a document needs more memory than there is; leave it out") from error
        if isinstance(error, _DAMAGED) or type(error).__module__.startswith("pyarrow"):
            fault = "damaged, cut short or of another format than its name says"
            raise DataError(f"{path}: {fault} ({error}); copy it again") from error
        raise
