"""Documents and paragraphs of text in strict UTF-8.

A document is a list of paragraphs without line breaks. There are three formats of files:
    blank_line: blank lines separate documents, and every line is a paragraph. The input of the original BERT (one
        sentence a line) and extracts of Wikipedia have this format.
    file: every file is one document, and blank lines separate its paragraphs. The lines of a paragraph are joined, as
        in a book with wrapped lines.
    verbatim: every file is one document, and every line is a paragraph as it is, blank ones too, but not at the end.
"""

import codecs
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tftrain.input.errors import DataError

_BLOCK = 1 << 20
# Longer paragraphs are split between words. This bounds the memory for one line of input.
LONGEST_PARAGRAPH = 1 << 16
# Bytes of memory for the paragraphs of one document.
LARGEST_DOCUMENT = 1 << 28
_OTHER_SPACES = "\t\u00a0\u2003\u3000"


def read_documents(stream: BinaryIO, name: str, separator: str) -> Iterator[list[str]]:
    """Yields the documents of an uncompressed text file: exactly one, maybe empty, unless blank lines separate them.

    Raises:
        DataError: a document is too large, or not UTF-8; the message gives the byte offset in the uncompressed text.
    """
    yield from _documents(_lines(stream, name), separator, name)


def paragraphs(text: str, separator: str, name: str) -> list[str]:
    """Returns the paragraphs of a text that is one document, as in a file; raises DataError if it is too large."""
    lines = (part for line in text.replace("\r\n", "\n").split("\n") for part in _cut(line))
    return [paragraph for document in _documents(lines, separator, name) for paragraph in document]


def _documents(lines: Iterable[str], separator: str, name: str) -> Iterator[list[str]]:
    document: list[str] = []
    wrapped: list[str] = []
    size = 0
    for line in lines:
        words = " ".join(line.split()) if separator != "verbatim" else line
        size += sys.getsizeof(words)
        if size > LARGEST_DOCUMENT:
            raise DataError(f"{name}: a document takes over {LARGEST_DOCUMENT >> 20} MiB; divide it, or leave it out")
        if separator == "verbatim":
            document.append(line)
        elif separator == "file":
            if words:
                wrapped.append(words)
            elif wrapped:
                document.append(" ".join(wrapped))
                wrapped = []
        elif words:
            document.append(words)
        elif document:
            yield document
            document, size = [], 0
    while separator == "verbatim" and document and not document[-1].strip():
        document.pop()
    if wrapped:
        document.append(" ".join(wrapped))
    if document or separator != "blank_line":
        yield document


def _lines(stream: BinaryIO, name: str) -> Iterator[str]:
    """Yields the lines of a file, long ones in parts."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    offset, rest, bom_checked = 0, "", False
    block = b"x"
    while block:
        block = stream.read(_BLOCK)
        undecoded = len(decoder.getstate()[0])
        try:
            text = decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}: byte {offset - undecoded + error.start}: not UTF-8 ({error.reason}); convert the file, "
                f"for instance with iconv -t UTF-8, or leave it out if it is not text"
            ) from error
        offset += len(block)
        if text and not bom_checked:
            text, bom_checked = text.removeprefix("\ufeff"), True
        *complete, rest = (rest + text).replace("\r\n", "\n").split("\n")
        for line in complete:
            yield from _cut(line)
        *parts, rest = _cut(rest)
        yield from parts
    if rest:
        yield rest


def _cut(line: str) -> Iterator[str]:
    """Yields the parts of a line, of at most LONGEST_PARAGRAPH characters, split at a space if there is one."""
    while len(line) > LONGEST_PARAGRAPH:
        end = line.rfind(" ", 1, LONGEST_PARAGRAPH)
        if end < 0:
            end = max(line.rfind(space, 1, LONGEST_PARAGRAPH) for space in _OTHER_SPACES)
        end = LONGEST_PARAGRAPH if end < 0 else end
        yield line[:end]
        line = line[end:]
    yield line
