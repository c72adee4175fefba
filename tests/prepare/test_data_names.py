"""What is no data is left out and named, alike in folders, archives and addresses; a file is what its content says."""

import gzip
import io
import json
import logging
import subprocess
import uuid
from decimal import Decimal

import pyarrow
import pytest

from tests.prepare.test_sources import arrow, csv, json_lines, parquet, tar, tsv, write, zipped
from tftrain.config.prepare import PrepareConfig
from tftrain.files.errors import DataError
from tftrain.prepare import data_names, sources
from tftrain.prepare.input_files import list_files

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
NO_DATA = {
    **dict.fromkeys(("_SUCCESS", "_started_1", "part.crc", ".part-0.crc"), b""),
    **dict.fromkeys(("_committed_1", "_temporary/0/part-0.txt", "_delta_log/0.json", "._part", "a/b.txt.bak"), b"no"),
    **dict.fromkeys(("MD5SUMS", "sha256sums.txt", "Thumbs.db", "part-0.txt~", ".part.swp", "x.orig", "#x#"), b"no"),
    **dict.fromkeys(("README.md", "LICENSE", "dataset_infos.json", "picture.png", "DATASET_CARD.rst"), b"no"),
    "pointer.txt": POINTER,
    "empty.txt": b"",
}
DATA = {"part-0.txt": b"one\n\ntwo\n", "_year=2020/_x=1/part.txt": b"three\n", "z_.txt": b"four\n"}
FORMS = {
    "folder": lambda files: files,
    "tar": lambda files: {"a.tar.gz": gzip.compress(tar(files))},
    "zip": lambda files: {"a.zip": zipped(files)},
    "a tar in a zip": lambda files: {"a.zip": zipped({"x/a.tar": tar(files)})},
}


def read(value, **flags):
    notes = sources.SourceNotes([], [])
    files = list_files([str(value)])[0]
    found = list(sources.read(sources.parts(files), PrepareConfig(**flags), notes))
    return [document.paragraphs for document in found], notes


@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_data_is_left_out_and_counted(tmp_path, form, caplog):
    caplog.set_level(logging.INFO)
    write(tmp_path, FORMS[form](NO_DATA | DATA))
    found, notes = read(tmp_path)
    assert sorted(paragraph for paragraphs in found for paragraph in paragraphs) == ["four", "one", "three", "two"]
    words = "\n".join([*caplog.messages, data_names.words(notes.left_out)])
    assert "files that are no data: " in words
    assert "more; a file that is named is read" in words


def test_an_address_of_a_folder_is_a_folder_and_a_glob_means_what_it_matches(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    write(tmp_path, NO_DATA | DATA)
    assert read(f"file://{tmp_path}")[0] == read(tmp_path)[0]
    for root in ("", "file://"):
        assert read(f"{root}{tmp_path}/_com*")[0] == [["no"]]
        assert read(f"{root}{tmp_path}/*.md")[0] == [["no"]]
        assert read(f"{root}{tmp_path}/_committed_1")[0] == [["no"]]
    assert "left out" in caplog.text


def test_a_description_of_data_of_its_kind_is_data(tmp_path):
    files = {"README.md": b"read me\n", "a.md": b"a\n", "LICENSE": b"no\n"}
    for form in FORMS.values():
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        write(folder, form(files))
        assert sorted(read(folder)[0]) == [["a"], ["read me"]]
    write(tmp_path / "alone", {"README.md": b"read me\n"})
    assert read(tmp_path / "alone")[0] == [["read me"]]


def test_a_folder_without_data_names_what_it_has(tmp_path):
    write(tmp_path, {"_x.txt": b"a", "p.txt": POINTER})
    with pytest.raises(DataError, match=r"no data; left out 2 files .*_x.txt, .*p.txt \(a Git LFS pointer; run git l"):
        list_files([str(tmp_path)])


def test_source_code_whose_name_begins_with_a_line_is_data(tmp_path):
    write(tmp_path, {"__init__.py": b"a\n", "_x.py": b"b\n", "__pycache__/x.pyc": b"c"})
    assert read(tmp_path)[0] == [["a"], ["b"]]


def zstd(*options, content=b"one\n\ntwo\n"):
    return subprocess.run(["zstd", "-q", "-c", *options], input=content, capture_output=True, check=True).stdout


SKIPPED = b"\x50\x2a\x4d\x18\x04\0\0\0size"
CODEC = pyarrow.Codec("zstd")
CONTENT = {
    "parquet.txt": parquet(["one", "two"]),
    "arrow": arrow(["one", "two"]),
    "file.csv": arrow(["one", "two"], pyarrow.ipc.new_file),
    "zip.jsonl": zipped({"a.txt": b"one\n\ntwo\n"}),
    "tar.txt": tar({"a.txt": b"one\n\ntwo\n"}),
    "twice.txt.gz.gz": gzip.compress(gzip.compress(b"one\n\ntwo\n")),
    "plain.gz": b"one\n\ntwo\n",
    "gz.parquet": gzip.compress(parquet(["one", "two"])),
    "skip.zst": SKIPPED + CODEC.compress(b"one\n\n", asbytes=True) + SKIPPED + CODEC.compress(b"two\n", asbytes=True),
    "skip.tar": SKIPPED + CODEC.compress(tar({"a.txt": b"one\n\ntwo\n"}), asbytes=True),
    "lz4.lz4": pyarrow.Codec("lz4").compress(b"one\n\ntwo\n", asbytes=True),
    "old.jsonl": json_lines(["one", "two"]).replace(b"\n", b"\r"),
    "old.tsv": tsv(["one", "two"]).replace(b"\n", b"\r"),
    "old.csv": csv(["one", "two"]).replace(b"\r\n", b"\r"),
    "windows.jsonl": json_lines(["one", "two"]).replace(b"\n", b"\r\n"),
}


@pytest.mark.parametrize("name", CONTENT)
def test_a_file_is_what_its_content_says(tmp_path, name):
    write(tmp_path, {name: CONTENT[name]})
    assert read(tmp_path / name)[0] == [["one"], ["two"]]


def test_a_row_of_json_has_other_ends_of_lines_inside(tmp_path):
    text = "one\u2028two\x85three"
    write(tmp_path, {"a.jsonl": json.dumps({"text": text}, ensure_ascii=False) + "\n"})
    assert read(tmp_path)[0] == [["one", "two", "three"]]


def zip_with(place, value):
    """Returns a zip file with another byte in the header and in the directory."""
    content = bytearray(zipped({"a.txt": b"one\n"}))
    content[place] = content[content.index(b"PK\1\2") + place + 2] = value
    return bytes(content)


POINTED = "a Git LFS pointer, not the file itself; run git lfs pull"
FOREIGN = {
    **dict.fromkeys(("p.txt", "p.parquet", "p.arrow", "p.jsonl", "p.txt.gz", "p.csv"), (POINTER, POINTED)),
    "lzma.zip": (zip_with(8, 9), "this program can't read it .*compression.*; expand it with its own tool"),
    "encrypted.zip": (zip_with(6, 1), "this program can't read it .*is encrypted.*; expand it with its own tool"),
    "a.txt": (b"%PDF-1.7\nx", "a PDF; write its text to a file"),
    "a.docx": (zipped({"a.xml": b"x"}), "a document or a program, not an archive of texts"),
    "a.7z": (b"7z\xbc\xaf\x27\x1c\0\4", "a 7z archive; extract it"),
    "u.csv": ("text\na\n".encode("utf-16"), "text in UTF-16; convert it with iconv -f UTF-16 -t UTF-8"),
    "jp.txt": ("今日は\n".encode("iso2022_jp"), "ISO-2022-JP, not UTF-8; convert it with iconv -f ISO-2022-JP"),
    "jp.csv": ("text,b\n今日,x\n".encode("iso2022_jp"), "line 2: ISO-2022-JP, not UTF-8"),
    "u.tsv": ("text\tb\nab\tx\n".encode("utf-16-le"), "line 1: UTF-16LE, not UTF-8"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_format_without_a_reader_is_named(tmp_path, name):
    content, words = FOREIGN[name]
    write(tmp_path, {name: content})
    with pytest.raises(DataError, match=f"{name}.* {words}"):
        read(tmp_path / name)


@pytest.mark.skipif(subprocess.run(["which", "zstd"], capture_output=True).returncode != 0, reason="no zstd")
def test_a_window_that_is_too_large_is_named(tmp_path):
    write(tmp_path, {"a.txt.zst": zstd("--long=31")})
    with pytest.raises(DataError, match="its zstd window is above 128 MiB, the most that this program reads; write it"):
        read(tmp_path)


def binary_table(kind, rows):
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array(rows, kind)}), sink)
    return sink.getvalue()


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary(), pyarrow.binary(3)], ids=str)
def test_bytes_of_utf8_are_text(tmp_path, kind):
    write(tmp_path, {"a.parquet": binary_table(kind, [b"a b", b"c d"])})
    assert read(tmp_path)[0] == [["a b"], ["c d"]]
    write(tmp_path, {"a.parquet": binary_table(kind, [b"a b", b"\xffab"])})
    with pytest.raises(DataError, match="row 2: column text: bytes that are not UTF-8"):
        read(tmp_path)


UUID = uuid.UUID(int=5)
IDS = {
    "bytes": (pyarrow.array([b"x1", b"\xff\1"]), ["x1", "ff01"]),
    "filled up": (pyarrow.array([b"ab", b"c\0"], pyarrow.binary(2)), ["ab", "c"]),
    "decimal": (pyarrow.array([Decimal("3.00"), Decimal("3.5")]), ["3", None]),
    "float": (pyarrow.array([3.0, 3.5]), ["3", None]),
    "not finite": (pyarrow.array([float("nan"), float("inf")]), [None, None]),
    "uuid": (pyarrow.array([UUID.bytes] * 2, pyarrow.binary(16)), [str(UUID)] * 2),
    "truth": (pyarrow.array([True, False]), [None, None]),
    "list": (pyarrow.array([[1], [2]]), [None, None]),
}


@pytest.mark.parametrize("kind", IDS)
def test_ids_of_other_types_are_text_or_whole_numbers(tmp_path, kind):
    column, expected = IDS[kind]
    sink = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b"], "id": column}), sink)
    write(tmp_path, {"a.parquet": sink.getvalue()})
    parts = sources.parts([str(tmp_path / "a.parquet")])
    found = list(sources.read(parts, PrepareConfig(id_column="id", skip_bad_rows=True)))
    assert [document.id for document in found] == expected
    if kind == "list":
        assert "column id: list<element: int64>; expected text or a whole number" in found[0].fault


def test_what_is_divided_is_said_once():
    (line,) = sources.SourceNotes([], ["a.txt", "a.txt", "b.txt"]).words()
    assert line.startswith("a.txt, b.txt: text without the end of a document is divided 3 times, at a line's end")
