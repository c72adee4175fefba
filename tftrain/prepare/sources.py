"""Reads the documents of one input file: opens and decompresses it, and chooses a reader by its content or its name.

A file is what its first bytes say. Where they say nothing, as in text and in JSON, the ending of its name does.

Several workers read a Parquet file, each some of its row groups. Every other file is read by one worker.
"""

import bz2
import codecs
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
from functools import partial
from typing import BinaryIO, NamedTuple

from tftrain.config.prepare import PrepareConfig
from tftrain.data.table_rows import Row, json_rows, separated_rows
from tftrain.files import addresses
from tftrain.files.errors import DataError
from tftrain.files.reading import POINTER, is_pointer
from tftrain.host.text import listed
from tftrain.host.units import GB
from tftrain.prepare import archives, corpus, data_names
from tftrain.prepare.columns import Columns

_KINDS = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\xff\xff\xff\xff": ".arrow"}
_KINDS |= {b"PK\3\4": ".zip", b"PK\5\6": ".zip"}
_OF_ZIP = re.compile(r"\.(docx|xlsx|pptx|od[tsp]|epub|jar|whl|npz|pt|pth|kmz|apk)")
_FOREIGN = {
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; extract it",
    b"Rar!\x1a\7": "a RAR archive; extract it",
    b"\x1f\x9d": "compressed with compress; expand it with uncompress",
    b"%PDF-": "a PDF; write its text to a file, for instance with pdftotext",
    b"{\\rtf": "a document in RTF; write its text to a file",
    b"SQLite format 3": "an SQLite database; write its text as CSV or JSON Lines",
    codecs.BOM_UTF32_LE: "text in UTF-32; convert it with iconv -f UTF-32 -t UTF-8",
    codecs.BOM_UTF16_LE: "text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
    codecs.BOM_UTF16_BE: "text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8",
}
_MOST_COMPRESSIONS = 3  # one around the other
# What readers of damaged files raise; zipfile a RuntimeError if it can't decompress or decrypt.
_DAMAGED = (OSError, EOFError, ValueError, IndexError, RuntimeError)
_DAMAGED += (lzma.LZMAError, zlib.error, tarfile.TarError, zipfile.BadZipFile)
# The most text of a compressed file, in its own sizes. The first bytes are free, and a document counts as some bytes.
_MOST_EXPANSION = 200
_MOST_EXPANSION_OF_ONE = 10  # if a document is too large for memory
_FREE_BYTES = 1 << 26
_DOCUMENT_BYTES = 16


class FilePart(NamedTuple):
    """What one worker reads of a file: the whole, or a row group; and about how many bytes of text that is."""

    path: str
    bytes: int = 0
    row_group: int | None = None


class Document(NamedTuple):
    """A document's paragraphs, none if it is empty or has a fault, and its id, if the file has one."""

    paragraphs: list[str]
    id: str | None = None
    fault: str | None = None


class SourceNotes(NamedTuple):
    """What is to be said of files that are read."""

    left_out: list[str]  # members of archives that are no data
    cut: list[str]  # a name for each document that is cut because it is too large

    def words(self) -> Iterator[str]:
        """Yields a line for each kind of notes."""
        if self.left_out:
            yield data_names.words(self.left_out)
        if self.cut:
            yield (
                f"{listed([*dict.fromkeys(self.cut)], 3)}: text without the end of a document is divided "
                f"{len(self.cut)} times, at a line's end after {corpus.LARGEST_DOCUMENT >> 20} MiB of memory; blank "
                "lines separate documents"
            )


def parts(paths: Iterable[str]) -> Iterator[FilePart]:
    """Yields the parts of files, in order; raises DataError if a file can't be read."""
    for path in paths:
        with errors_named(path):
            name = addresses.file_name(path)
            if name.lower().endswith(".parquet"):
                with addresses.open_file(path) as file:
                    if file.peek(4)[:4] == b"PAR1":
                        yield from _row_groups(path, file)
                        continue
            compressed = name.lower().rpartition(".")[2] in (*data_names.COMPRESSED, "tgz", "zip")
            yield FilePart(path, addresses.size(path) * (3 if compressed else 1))


def _row_groups(path: str, file: BinaryIO) -> Iterator[FilePart]:
    import pyarrow.parquet

    metadata = pyarrow.parquet.ParquetFile(file).metadata
    for group in range(metadata.num_row_groups):
        yield FilePart(path, metadata.row_group(group).total_byte_size, group)


def read(divided: Iterable[FilePart], config: PrepareConfig, notes: SourceNotes | None = None) -> Iterator[Document]:
    """Yields the documents of parts of files, empty ones too.

    `notes` gets what the log is to say of the files. Raises a DataError if a file can't be read, or if it has a bad row
    and `config.skip_bad_rows` is not set.
    """
    notes = notes or SourceNotes([], [])
    for path, _, row_group in divided:
        with errors_named(path), addresses.open_file(path) as stream:
            size, taken, divided_before = addresses.size(path) or math.inf, 0, len(notes.cut)
            for document in _documents(stream, path, config, notes, addresses.file_name(path), row_group):
                if document.fault and not config.skip_bad_rows:
                    raise DataError(f"{document.fault}; correct it, or leave such rows out with --skip_bad_rows")
                taken += sum(map(len, document.paragraphs)) + len(document.paragraphs) + _DOCUMENT_BYTES
                most = _MOST_EXPANSION if len(notes.cut) == divided_before else _MOST_EXPANSION_OF_ONE
                if taken > _FREE_BYTES + most * size:
                    raise DataError(f"{path}: its text is {most} times as large; expand it, or leave it out")
                yield document


def _documents(
    stream: BinaryIO, name: str, config: PrepareConfig, notes: SourceNotes, file: str, group: int | None = None
) -> Iterator[Document]:
    columns, content = Columns(config.text_column, config.id_column), _decompressed(stream)
    ending = _kind(content.peek(512), name, data_names.ending(file))
    if ending in (".parquet", ".arrow", ".zip") and not (content is stream and stream.seekable()):
        content = _spooled(content, name, config.max_expanded_gb)
    if ending in (".tar", ".tgz", ".zip"):
        members = (archives.zip_members if ending == ".zip" else archives.tar_members)(content, name)
        left_out: list[str] = []
        for member, inside in data_names.data(members, left_out):
            yield from _documents(inside, member, config, notes, member)
        notes.left_out.extend(f"{name}/{each}" for each in left_out)
    elif rows := _rows(content, name, ending, columns, group):
        for text, identity, fault in map(columns.of, rows):
            yield Document(corpus.paragraphs(text, config.document_separator, name), identity, fault)
    elif config.id_column:
        raise DataError(f"{name}: --id_column={config.id_column}: text has no columns; leave the file out")
    else:
        yield from map(Document, corpus.read_documents(content, name, config.document_separator, notes.cut))


def _kind(beginning: bytes, name: str, ending: str) -> str:
    """Returns the ending of names of files with this content; raises DataError if it is of a format without a reader.

    `ending` is that of the file's own name, which counts if the content does not tell.
    """
    kind = next((kind for magic, kind in _KINDS.items() if beginning.startswith(magic)), "")
    foreign = next((what for magic, what in _FOREIGN.items() if beginning.startswith(magic)), "")
    if kind == ".zip" and _OF_ZIP.fullmatch(ending):
        foreign = "a document or a program, not an archive of texts; extract its text"
    if foreign or is_pointer(beginning):
        raise DataError(f"{name}: {foreign or POINTER}, or leave it out")
    return kind or (".tar" if beginning[257:262] == b"ustar" else ending)


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
    for _ in range(_MOST_COMPRESSIONS):
        beginning = stream.peek(10)
        opened = next((opened for magic, opened in _OPENED.items() if re.match(magic, beginning)), None)
        if opened is None:
            break
        stream = opened(stream)
    return stream


def _by_arrow(codec: str, stream: BinaryIO) -> BinaryIO:
    import pyarrow

    # The package zstandard does not tell that a file is cut short.
    return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(stream, mode="r"), codec), 1 << 20)


_OPENED = {
    rb"\x1f\x8b": gzip.open,
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": bz2.open,
    rb"\xfd7zXZ\x00": lzma.open,
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": partial(_by_arrow, "zstd"),  # a frame, or one to skip
    rb"\x04\x22\x4d\x18": partial(_by_arrow, "lz4"),
}


@contextlib.contextmanager
def errors_named(path: str) -> Iterator[None]:
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
        if "requires too much memory for decoding" in str(error):
            fault = "its zstd window is above 128 MiB, the most that this program reads"
            raise DataError(f"{path}: {fault}; write it anew: zstd -d --long=31 -c FILE | zstd -o NEW") from error
        if isinstance(error, NotImplementedError) or re.search("encrypt|expected a(t most|n archive)", str(error)):
            raise DataError(f"{path}: this program can't read it ({error}); expand it with its own tool") from error
        if isinstance(error, _DAMAGED) or type(error).__module__.startswith("pyarrow"):
            fault = "damaged, cut short or of another format than its name says"
            raise DataError(f"{path}: {fault} ({error}); copy it again") from error
        raise
