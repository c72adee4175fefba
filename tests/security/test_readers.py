"""Files of strangers that stand for far more than they have: each ends in one line, with little memory."""

import contextlib
import gzip
import lzma
import pickle
import re
import struct
import tarfile
import zipfile
from functools import partial

import ml_dtypes
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.security import limited
from tftrain.files.errors import FormatError
from tftrain.formats import torch_file
from tftrain.formats.torch_file import Placeholder, TorchFile
from tftrain.prepare import data_names

MEGABYTE = b"a" * (1 << 20)
WORD = "a" * (4 << 20)


@pytest.fixture(scope="module")
def reader():
    with limited.started() as run:
        yield run


@pytest.fixture
def prepared(reader, tmp_path):
    """Returns a function that prepares a file of the test's folder."""
    options = (f"--output_dir={tmp_path / 'out'}", "--num_workers=1")
    return lambda name, *flags: reader("prepare", f"--input_files={tmp_path / name}", *options, *flags)


def compressed(path, kind, *parts):
    """Writes parts, each bytes and how many times they follow each other."""
    if kind == "gz":  # One member of the file for each time: to compress a gigabyte takes seconds.
        path.write_bytes(b"".join(gzip.compress(content, 1) * count for content, count in parts))
        return
    xz = partial(lzma.open, path, "wb", preset=0)
    with xz() if kind == "xz" else pyarrow.CompressedOutputStream(str(path), "zstd") as file:
        for content, count in parts:
            for _ in range(count):
                file.write(content)


def header(kind, size):
    info = tarfile.TarInfo("x")
    info.type, info.size = kind, size
    return info.tobuf(tarfile.USTAR_FORMAT)


def sparse_header():
    """Returns a header of GNU's sparse files that says that blocks with more of its map follow, and such a block."""
    first = bytearray(header(tarfile.GNUTYPE_SPARSE, 0))
    first[148:156], first[482] = b" " * 8, 1
    first[148:156] = b"%06o\0 " % sum(first)
    return bytes(first), b"00000000001\0" * 42 + b"\1" + bytes(7)


def endless_list():
    """The end of a .zip archive whose list of members has a gigabyte."""
    return struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65535, 65535, 1 << 30, 0, 0)


def table(path, column, write=None, **options):
    content = pyarrow.table({"text": column})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(content, path, compression="zstd", **options)
        return
    with pyarrow.ipc.new_stream(path, content.schema, options=pyarrow.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(content)


def bomb(path):
    """Writes a file whose name says what it is."""
    name, (kind, *_) = path.name.partition(".")[0], path.suffix[1:].split(".")
    sparse, block = sparse_header()
    many = 1 << 10
    streams = {
        "pax": [(header(tarfile.XHDTYPE, 1 << 30), 1), (MEGABYTE, many)],
        "global": [(header(tarfile.XGLTYPE, 1 << 30), 1), (MEGABYTE, many)],
        "longname": [(header(tarfile.GNUTYPE_LONGNAME, 1 << 30), 1), (MEGABYTE, many)],
        "sparse": [(sparse, 1), (block * 2048, many // 2)],
        "members": [(bytes(1 << 20), many), (endless_list(), 1)],
        "document": [(b"word " * 200_000 + b"\n", many)],
        "lines": [(b"abcdefgh\n" * 100_000, many)],
        "line": [(b'{"text": "', 1), (MEGABYTE, many)],
        "values": [(b'{"x": [', 1), (b"{}," * 1_000_000, 21), (b'{}], "text": "a"}\n', 1)],
        "short": [(b'{"text": "', 1), (b"ab\\n" * 1_000_000, 15), (b'"}\n', 1)],
        "cell": [(b'text,b\n"', 1), (MEGABYTE, many)],
        "cells": [(b"text,b\n", 1), (b"ab," * 1_000_000, 20), (b"\n", 1)],
        "quoted": [(b'text,b\n"', 1), ((b"a" * 99 + b"\n") * 10_000, many)],
        "fields": [(b"text,b\n", 1), (b"ab," * 1_000_000 + b'"\n",', 30)],
        "spooled": [(b"PAR1", 1), (MEGABYTE, many)],
    }
    if name in streams:
        compressed(path, kind, *streams[name])
    elif name == "dictionary":
        table(path, pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 256, pyarrow.int8()), [WORD]))
    elif name == "plain":
        table(path, [WORD] * 256, use_dictionary=False)
    elif name == "prefixes":
        table(path, [f"{WORD[: 1 << 20]}{number}" for number in range(64)], use_dictionary=False,
              column_encoding={"text": "DELTA_BYTE_ARRAY"})  # fmt: skip
    elif name == "shared":
        table(path, pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10_000, pyarrow.int8()), [WORD[: 1 << 20]]))
    elif name == "buffers":
        table(path, [WORD] * 160, compression="zstd")
    elif name == "nested":
        archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
        with archive, archive.open("a.txt", "w") as file:
            for _ in range(many // 8):
                file.write(MEGABYTE)


# What is said of those that a limit stops before memory does; text is measured against the file.
WORDS = {"members": "a list of members of", "values": "commas and brackets", "lines": "times as large"}
WORDS |= dict.fromkeys(("line", "cell", "quoted"), "longer than 64 MiB") | {"document": "times as large"}
BOMBS = [
    *("dictionary.parquet", "pax.tar.zst", "document.txt.zst"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            *("shared.arrow", "sparse.tar.zst", "members.zip.zst", "nested.zip", "line.jsonl.gz", "values.jsonl.xz"),
            *("short.jsonl.zst", "cell.csv.gz", "cells.csv.zst", "fields.csv.gz"),
        )
    ),
    # Other files that the same limits stop.
    *(
        pytest.param(name, marks=pytest.mark.nightly)
        for name in (
            *("plain.parquet", "prefixes.parquet", "buffers.arrow", "global.tar.gz", "longname.tar.zst"),
            *("lines.txt.zst", "cells.tsv.gz", "quoted.csv.zst"),
        )
    ),
]


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_expands_ends_in_one_line_with_little_memory(prepared, tmp_path, name):
    bomb(tmp_path / name)
    done = prepared(name)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr[-2000:]
    assert done.stderr.startswith(f"prepare: {tmp_path / name}")
    assert WORDS.get(name.partition(".")[0], "") in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_is_spooled_has_a_limit(prepared, tmp_path):
    bomb(tmp_path / "spooled.parquet.gz")
    done = prepared("spooled.parquet.gz", "--max_expanded_gb=0.1")
    assert "expands to more than --max_expanded_gb=0.1; raise that" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_long_name_takes_no_time():
    assert data_names.ending("." * 4_000_000 + "a.TAR.gz.zst") == ".tar"
    expected = {
        "a.parquet.gz": ".parquet",
        "a.gz": ".gz",
        "x.gz.zst": ".gz",
        "a.foo.bz2.xz": ".foo",
        "a.b/c": "",
        "a": "",
    }
    assert {name: data_names.ending(name) for name in expected} == expected


NAMES = [
    *(("torch", kind) for kind in ("BFloat16Storage", "FloatStorage", "BoolStorage")),
    *(("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter"), ("collections", "OrderedDict")),
    *(("builtins", "dict"), ("numpy", "dtype")),
]
STATES = {
    "a dictionary": b"}(X\x0c\0\0\0__defaults__X\1\0\0\0au",
    "attributes": b"N}(X\x0c\0\0\0__defaults__)X\7\0\0\0movetoku\x86",
    "a state of a dtype": b"(K\3X\1\0\0\0|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0t",
}


def saved(path, content, **entries):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
        for name, value in entries.items():
            archive.writestr(f"archive/{name}", value)


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
@pytest.mark.parametrize(("module", "name"), NAMES, ids="{0[0]}.{0[1]}".format)
def test_a_pickle_changes_nothing_outside_of_itself(tmp_path, module, name, state):
    def shared():
        numbers = [np.dtype(ml_dtypes.bfloat16).itemsize, np.dtype(np.float32).itemsize, np.dtype(np.bool_).itemsize]
        ordered = dict(vars(torch_file.collections.OrderedDict))
        return numbers, torch_file._tensor.__defaults__, ordered, vars(dict).keys()

    before = shared()
    saved(tmp_path / "x.pt", b"\x80\2" + f"c{module}\n{name}\n".encode() + state + b"b.")
    with contextlib.suppress(FormatError):
        TorchFile(tmp_path / "x.pt")
    assert shared() == before


def test_two_names_of_a_pickle_share_no_object(tmp_path):
    for module, name in NAMES:
        saved(tmp_path / "x.pt", b"\x80\2" + f"(c{module}\n{name}\nc{module}\n{name}\nt.".encode())
        first, second = TorchFile(tmp_path / "x.pt").content
        assert isinstance(first, str) or first is not second


PICKLES = {
    "an object with a large number": pickle.dumps([])[:2] + b"]r\xff\xff\xff\x7f.",
    "a long text": b"\x80\4\x8d" + struct.pack("<q", 1 << 40) + b"a.",
    "a long array": b"\x80\5\x96" + struct.pack("<q", 1 << 34) + b"a.",
    "many sets": b"\x80\4(" + b"\x8f" * (8 << 20) + b"l.",
    "many dictionaries": b"\x80\4(" + b"}" * (7 << 20) + b"l.",
}


@pytest.mark.parametrize("kind", PICKLES)
def test_a_pickle_with_large_numbers_takes_little_memory(reader, tmp_path, kind):
    saved(tmp_path / "x.pt", PICKLES[kind])
    done = reader("torch", tmp_path / "x.pt")
    assert "x.pt" in done.stdout or "opened" in done.stdout, done.stderr[-2000:]
    assert "MemoryError" not in done.stderr
    assert ("its pickle has more than" in done.stdout) == (kind == "many sets")


@pytest.mark.parametrize("how", ["deflated", "expanded", "list of members"])
def test_a_storage_is_no_larger_than_in_its_file(reader, tmp_path, how):
    path, place = tmp_path / "x.pt", Placeholder("a", (1,))
    torch_file.write(path, {"a": place}, [("a", np.zeros(1, np.float32))])
    with zipfile.ZipFile(path) as archive:
        content = archive.read("archive/data.pkl")
    kind = zipfile.ZIP_DEFLATED if how == "deflated" else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind, compresslevel=1) as archive:
        strides = re.sub(rb"K\x01\x85q.K\x01\x85", b"J\0\0\0\x40\x85K\0\x85", content) if how == "expanded" else content
        assert how != "expanded" or strides != content
        archive.writestr(zipfile.ZipInfo("archive/data.pkl"), strides)
        with archive.open("archive/data/0", "w") as file:
            for _ in range(1 << 8 if how == "deflated" else 1):
                file.write(MEGABYTE)
    if how == "list of members":
        with open(path, "wb") as file:
            file.truncate(1 << 30)
            file.seek(1 << 30)
            file.write(endless_list())
    done = reader("torch", path)
    line = done.stdout.replace("opened\n", "")
    assert line.count("\n") == 1, done.stderr[-2000:]
    assert str(path) in line


def test_offsets_in_an_arrow_file_stay_inside_it(prepared, tmp_path):
    column = pyarrow.array(["abc", "def"])
    offsets = pyarrow.py_buffer(np.array([0, 1 << 30, 6], np.int32).tobytes())
    damaged = pyarrow.StringArray.from_buffers(2, offsets, column.buffers()[2])
    table(tmp_path / "a.arrow", damaged)
    done = prepared("a.arrow")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr[-2000:]
    assert str(tmp_path / "a.arrow") in done.stderr
