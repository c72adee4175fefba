"""Documents out of text files: strict UTF-8, plain or gzip, one document a file or documents parted by blank lines.

A document is a list of paragraphs, each on one line. With `blank_line` every line is a paragraph (as in the original
BERT's input, one sentence a line, and in extracts of Wikipedia). With `file` blank lines part the paragraphs, and the
lines of one are joined, as in a book of wrapped lines.
"""

import codecs
import gzip
import zlib
from collections.abc import Iterator

from tftrain.data.errors import DataError

_BLOCK = 1 << 20
# Longer paragraphs are cut between words, which bounds the memory that one line of input can take.
LONGEST_PARAGRAPH = 1 << 16


def read_documents(path: str, separator: str) -> Iterator[list[str]]:
    """Yields the documents of one file.

    Args:
        path: plain text, or gzip if it begins as gzip does.
        separator: "blank_line" or "file".

    Raises:
        DataError: the file cannot be read or is not UTF-8; it names the byte offset in the (uncompressed) text.
    """
    document: list[str] = []
    wrapped: list[str] = []
    for line in _lines(path):
        words = " ".join(line.split())
        if separator == "file":
            if words:
                wrapped.append(words)
            elif wrapped:
                document.append(" ".join(wrapped))
                wrapped = []
        elif words:
            document.append(words)
        elif document:
            yield document
            document = []
    if wrapped:
        document.append(" ".join(wrapped))
    if document:
        yield document


def _lines(path: str) -> Iterator[str]:
    """Yields the lines of a file, an overlong one in parts; an unfinished part ends at a space."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    offset, rest, begun = 0, "", False
    for block in _blocks(path):
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: byte {offset - held + error.start}: not UTF-8 ({error.reason}); convert the file, "
                f"for instance with iconv -t UTF-8"
            ) from error
        offset += len(block)
        if text and not begun:
            text, begun = text.removeprefix("\ufeff"), True
        *whole, rest = (rest + text).replace("\r\n", "\n").split("\n")
        for line in whole:
            yield from _cut(line)
        while len(rest) > LONGEST_PARAGRAPH:
            part, rest = _cut_once(rest)
            yield part
    if rest:
        yield rest


def _cut(line: str) -> Iterator[str]:
    while len(line) > LONGEST_PARAGRAPH:
        part, line = _cut_once(line)
        yield part
    yield line


def _cut_once(line: str) -> tuple[str, str]:
    at = line.rfind(" ", 1, LONGEST_PARAGRAPH)
    at = LONGEST_PARAGRAPH if at < 0 else at
    return line[:at], line[at:]


def _blocks(path: str) -> Iterator[bytes]:
    """Yields the bytes of a file, uncompressed, and an empty block at the end."""
    try:
        with open(path, "rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            with gzip.GzipFile(fileobj=file) if compressed else file as stream:
                while block := stream.read(_BLOCK):
                    yield block
                yield b""
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is cut short; copy it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: a damaged gzip file ({error}); copy it again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; expected a text file that can be read") from error
