"""Documents out of text files."""

import gzip

import pytest

from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError
from tftrain.prepare import corpus, sources

TEXT = "First line.\nsecond  line\n\n\n  \nOther document. \r\nIts end"


def write(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def read_documents(path, separator):
    for document in sources.read([sources.FilePart(path)], PrepareConfig(document_separator=separator)):
        yield document.paragraphs


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize(
    ("separator", "documents"),
    [
        ("blank_line", [["First line.", "second line"], ["Other document.", "Its end"]]),
        ("file", [["First line. second line", "Other document. Its end"]]),
        ("verbatim", [["", "First line.", "second  line", "", "", "  ", "Other document. ", "Its end"]]),
    ],
)
def test_the_separator_parts_documents_and_paragraphs(tmp_path, compress, separator, documents):
    content = "\n" + TEXT + "\n \n\n"
    assert list(read_documents(write(tmp_path, compress(content.encode())), separator)) == documents


def test_text_does_not_depend_on_how_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path, "äöü 漢字 🙂 \r\n\r\nx\r\n")
    expected = [["äöü 漢字 🙂"], ["x"]]
    for block in (1, 2, 3, 7, 1000):
        monkeypatch.setattr(corpus, "_BLOCK", block)
        assert list(read_documents(path, "blank_line")) == expected


def test_byte_order_mark_is_no_text(tmp_path):
    assert list(read_documents(write(tmp_path, "\ufeffword"), "file")) == [["word"]]
    # Also those of files that were joined.
    assert list(read_documents(write(tmp_path, "\ufeffa\n\n\ufeffb\n"), "blank_line")) == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("content", "offset"), [(b"good\n\xe9vil\n", 5), (b"\xff", 0), (b"ends within \xe6\xbc", 12), (b"abc \xe6\xbcx", 4)]
)
@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("compressed", [False, True])
def test_what_is_not_utf8_names_file_and_byte(tmp_path, monkeypatch, content, offset, block, compressed):
    monkeypatch.setattr(corpus, "_BLOCK", block)
    path = write(tmp_path, gzip.compress(content) if compressed else content)
    with pytest.raises(DataError, match=rf"text: byte {offset}: not UTF-8"):
        list(read_documents(path, "file"))


@pytest.mark.parametrize("space", [" ", "\t", "\u3000"])
@pytest.mark.parametrize("end", ["", "\n", "\nlast"])
def test_overlong_lines_are_cut_between_words(tmp_path, monkeypatch, end, space):
    monkeypatch.setattr(corpus, "LONGEST_PARAGRAPH", 50)
    monkeypatch.setattr(corpus, "_BLOCK", 64)
    words = [f"word{number}" for number in range(100)]
    (document,) = read_documents(write(tmp_path, space.join(words) + end), "blank_line")
    assert " ".join(document).split() == words + end.split()
    assert max(map(len, document)) <= 50
    text = "".join(chr(0x4E00 + number) for number in range(1000)) + end
    (document,) = read_documents(write(tmp_path, text), "blank_line")
    assert "".join(document) == text.replace("\n", "")


ENDS = ["\r", "\n", "\r\n", "\x85", "\u2028", "\u2029", "\f", "\v"]


@pytest.mark.parametrize("block", [1, 3, 1000])
@pytest.mark.parametrize("end", ENDS, ids=ascii)
def test_every_end_of_line_ends_a_line(tmp_path, monkeypatch, end, block):
    monkeypatch.setattr(corpus, "_BLOCK", block)
    path = write(tmp_path, end.join(["a b", "c", "", "d", "e", ""]))
    assert list(read_documents(path, "blank_line")) == [["a b", "c"], ["d", "e"]]
    assert list(read_documents(path, "file")) == [["a b c", "d e"]]
    if end in ENDS[:3]:
        assert list(read_documents(path, "verbatim")) == [["a b", "c", "", "d", "e"]]


@pytest.mark.parametrize("text", ["page one\n\fpage two", "page one\f\npage two", "page one\fpage two"])
def test_a_form_feed_beside_an_end_of_line_is_no_blank_line(tmp_path, text):
    assert list(read_documents(write(tmp_path, text), "blank_line")) == [["page one", "page two"]]
    assert list(read_documents(write(tmp_path, text), "verbatim")) == [text.split("\n")]


def test_text_without_blank_lines_is_divided_at_the_end_of_a_line(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "LARGEST_DOCUMENT", 1000)
    lines, cut = [f"line {number}" for number in range(100)], []
    for separator in ("blank_line", "file", "verbatim"):
        with open(write(tmp_path, "\n".join(lines)), "rb") as stream:
            found = list(corpus.read_documents(stream, "text", separator, cut))
        assert " ".join(paragraph for document in found for paragraph in document) == " ".join(lines)
        assert len(found) > 5
        assert cut == ["text"] * (len(found) - 1)
        cut.clear()
