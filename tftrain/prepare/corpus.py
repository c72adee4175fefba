"""Documents and paragraphs of text in strict UTF-8.

A document is a list of paragraphs without line breaks. There are three formats of files:
    blank_line: blank lines separate documents, and every line is a paragraph. The input of the original BERT (one
        sentence a line) and extracts of Wikipedia have this format.
    file: every file is one document, and blank lines separate its paragraphs. The lines of a paragraph are joined, as
        in a book with wrapped lines.
    verbatim: every file is one document, and every line is a paragraph as it is, blank ones too, but not at the end.

A line ends with a line feed, a carriage return or both, and with each other mark at which Unicode breaks a line: form
feed, vertical tab, NEL, U+2028 and U+2029. A form feed beside another end is no line of its own. Lines of verbatim text
keep these other marks. A document that is too large for memory ends with a line, and another one begins.
"""

import codecs
import re
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from tftrain.files import encodings
from tftrain.files.errors import DataError

_BLOCK = 1 << 20
# Longer paragraphs are split between words. This bounds the memory for one line of input.
LONGEST_PARAGRAPH = 1 << 16
# Bytes of memory for the paragraphs of one document: of a row of a table, and of a file, which is cut there.
LARGEST_ROW = 1 << 28
LARGEST_DOCUMENT = 1 << 26
_RARE_ENDS = "\f\v\x85\u2028\u2029"
_END = re.compile("[\f\v]?(?:\r\n|[\n\r\x85\u2028\u2029])[\f\v]?|[\f\v]")
_ENDS_HELD = 1 << 10  # until the next block of a file is read
_OTHER_SPACES = "\t\u00a0\u2003\u3000"


def read_documents(stream: BinaryIO, name: str, separator: str, cut: list[str]) -> Iterator[list[str]]:
    """Yields the documents of an uncompressed text file: exactly one, maybe empty, unless blank lines separate them.

    `cut` gets the name of the file for each document that is too large for memory. Raises a DataError if the file is
    not UTF-8; the message gives the byte offset in the uncompressed text.
    """
    yield from _documents(_lines(stream, name, separator), separator, name, cut)


def paragraphs(text: str, separator: str, name: str) -> list[str]:
    """Returns the paragraphs of a text that is one document, as in a file; raises DataError if it is too large."""
    lines = (part for line in _with_line_feeds(text, separator).split("\n") for part in _cut(line))
    return [paragraph for document in _documents(lines, separator, name) for paragraph in document]


def _with_line_feeds(text: str, separator: str) -> str:
    """Returns a text whose lines all end with a line feed, without byte order marks at their beginnings."""
    if separator != "verbatim" and any(mark in text for mark in _RARE_ENDS):
        text = _END.sub("\n", text)
    else:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text.replace("\n\ufeff", "\n")


def _documents(lines: Iterable[str], separator: str, name: str, cut: list[str] | None = None) -> Iterator[list[str]]:
    document: list[str] = []
    wrapped: list[str] = []
    size = 0
    for line in lines:
        words = " ".join(line.split()) if separator != "verbatim" else line
        size += sys.getsizeof(words)
        if cut is not None and size > LARGEST_DOCUMENT and (document or wrapped):
            yield [*document, " ".join(wrapped)] if wrapped else document
            cut.append(name)
            document, wrapped, size = [], [], sys.getsizeof(words)
        elif size > LARGEST_ROW:
            raise DataError(f"{name}: a document takes over {LARGEST_ROW >> 20} MiB; divide it, or leave it out")
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


def _lines(stream: BinaryIO, name: str, separator: str) -> Iterator[str]:
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
        if encoding := encodings.encoding(text):
            raise DataError(f"{name}: {encoding}, or leave it out")
        text = rest + text
        # The ends of lines at the end of a block belong together with those that follow.
        held = text[len(text.rstrip(f"\n\r\ufeff{_RARE_ENDS}")) :] if block else ""
        held = held if len(held) < _ENDS_HELD else ""
        *complete, rest = _with_line_feeds(text[: len(text) - len(held)], separator).split("\n")
        rest += held
        for line in complete:
            yield from _cut(line)
        if not held:
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
