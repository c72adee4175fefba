"""Tables, archives and compressed files: the same documents as from text, and one line for what can't be read."""

import bz2
import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.kit import corpora
from tests.prepare.test_prepare import contents
from tftrain.config.prepare import PrepareConfig
from tftrain.data.manifest import read_manifest
from tftrain.files.errors import DataError
from tftrain.prepare import corpus_chunks, sources
from tftrain.prepare.input_files import list_files
from tftrain.prepare.objectives import objective_of
from tftrain.prepare.preparation import prepare

COMPRESS = {".gz": partial(gzip.compress, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}
COMPRESS[".zst"] = lambda content: pyarrow.Codec("zstd").compress(content, asbytes=True)
DOCUMENTS = corpora.text(30, seed=5).strip().split("\n\n")


def table(documents, **columns):
    return pyarrow.table({"id": [f"number {n}" for n in range(len(documents))], "text": documents, **columns})


def parquet(documents, rows=4, **columns):
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table(documents, **columns), sink, row_group_size=rows)
    return sink.getvalue()


def arrow(documents, new=pyarrow.ipc.new_stream, rows=4):
    sink, content = io.BytesIO(), table(documents)
    with new(sink, content.schema) as writer:
        writer.write_table(content, max_chunksize=rows)
    return sink.getvalue()


def json_lines(documents):
    lines = [json.dumps({"id": number, "text": text}) for number, text in enumerate(documents)]
    return ("\n".join(lines) + "\n").encode()


def csv(documents):
    return ("text,length\r\n" + "".join(f'"{text}",{len(text)}\r\n' for text in documents)).encode()


def tsv(documents):
    return ("number\ttext\n" + "".join(f"1\t{text}\n" for text in documents)).encode()


def tar(files, mode="w"):
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode=mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return sink.getvalue()


def zipped(files, links=()):
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr = 3, (0o120777 if name in links else 0o100644) << 16
            archive.writestr(info, content)
    return sink.getvalue()


def bytes_of(content):
    return content if isinstance(content, bytes) else content.encode()


def write(folder, files):
    for name, content in files.items():
        path = Path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes_of(content))
    return str(folder)


def saved_dataset(files):
    """The files that `datasets` writes with save_to_disk, and one that its `map` leaves behind."""
    state = {"_data_files": [{"filename": name} for name in files], "_fingerprint": "0", "_split": None}
    settings = {"state.json": json.dumps(state), "dataset_info.json": '{"features": {}}'}
    return {**files, **settings, "cache-0123.arrow": arrow(["a stale document"])}


def one_a_file(documents):
    return {f"{number:03}.txt": text for number, text in enumerate(documents)}


def forms(documents):
    """Returns the same documents in every format: files by the name of the form."""
    third = len(documents) // 3
    blocks = [documents[:third], documents[third : 2 * third], documents[2 * third :]]
    texts = {name: text.encode() for name, text in one_a_file(documents).items()}
    formats = {"jsonl": json_lines, "csv": csv, "parquet": parquet, "arrow": arrow}
    whole = {f"all.{name}": make(documents) for name, make in formats.items()}
    found = {
        "text": {"all.txt": "\n\n".join(documents)},
        "texts of several documents": {f"{n}.txt": "\n\n".join(block) for n, block in enumerate(blocks)},
        "jsonl in parts": {f"{number}.jsonl": json_lines(block) for number, block in enumerate(blocks)},
        "arrow file": {"all.arrow": arrow(documents, pyarrow.ipc.new_file)},
        "tar of texts": {"all.tar": tar(texts)},
        "tar.zst of tables": {"all.tar.zst": COMPRESS[".zst"](tar({"a.parquet": whole["all.parquet"]}))},
        "tgz": {"all.tgz": tar({"./b/a.jsonl.bz2": bz2.compress(json_lines(documents))}, "w:gz")},
        "zip of texts": {"all.zip": zipped(texts | {".hidden/x.txt": b"no document"})},
        "zip of tables": {"all.zip": zipped({"a/b.arrow": whole["all.arrow"]})},
        "dataset": saved_dataset(
            {"data-00000-of-00002.arrow": arrow(blocks[0] + blocks[1]), "data-00001-of-00002.arrow": arrow(blocks[2])}
        ),
        "dataset of splits": {"dataset_dict.json": '{"splits": ["train"]}'}
        | {f"train/{name}": content for name, content in saved_dataset({"data-0.arrow": whole["all.arrow"]}).items()},
    }
    saved = {f"it/{name}": content for name, content in found["dataset"].items()}
    texts_and_link = {**texts, "link.txt": "000.txt"}
    found |= {
        "tar of a dataset": {"all.tar": tar({name: bytes_of(content) for name, content in saved.items()})},
        "zip of a dataset": {"all.zip": zipped(saved)},
        "zip of texts and a link": {"all.zip": zipped(texts_and_link, links=("link.txt",))},
    }
    found |= {name: {name: content} for name, content in whole.items()}
    for ending, compress in COMPRESS.items():
        found |= {name + ending: {name + ending: compress(content)} for name, content in whole.items()}
    return found


def documents_of(folder, **changes):
    config = PrepareConfig(**changes)
    return sources.read(sources.parts(list_files([str(folder)])[0]), config)


@pytest.mark.parametrize("form", forms(DOCUMENTS))
def test_every_form_has_the_documents_of_the_text(tmp_path, form):
    expected = [text.split("\n") for text in DOCUMENTS]
    files = forms(DOCUMENTS)[form]
    changes = {"document_separator": "file"} if "of texts" in form else {}
    if changes:
        expected = [[" ".join(document)] for document in expected]
    found = [document.paragraphs for document in documents_of(write(tmp_path, files), **changes)]
    assert found == expected


@pytest.mark.parametrize("inside", ["", "*/*", "b", "b/*.parquet"])
def test_addresses_may_be_of_files_in_an_archive(tmp_path, inside):
    write(tmp_path, {"a.zip": zipped({"b/a.parquet": parquet(DOCUMENTS, rows=7)})})
    (address,) = list_files([f"zip://{inside}::file://{tmp_path}/a.zip"])[0]
    assert address == f"zip://b/a.parquet::file://{tmp_path}/a.zip"
    parts = list(sources.parts([address]))
    assert len(parts) == 5
    expected = [text.split("\n") for text in DOCUMENTS]
    assert [each.paragraphs for each in sources.read(parts, PrepareConfig())] == expected


# The number of workers of each form.
WORKERS = {"text": 1, "all.jsonl.zst": 1, "all.parquet": 2}
MORE = {"text": 2, "one a file": 3, "jsonl in parts": 1, "dataset": 1}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [WORKERS, pytest.param(MORE, marks=pytest.mark.nightly)], ids=" ".join)
def test_every_form_gives_the_same_bytes_for_any_number_of_workers(prepare_config, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(corpus_chunks, "_TASK_BYTES", 2000)
    # Each document is one paragraph, so the separator changes nothing.
    documents = [text.replace("\n", " ") for text in corpora.text(60, seed=5).strip().split("\n\n")]
    files = forms(documents) | {"one a file": one_a_file(documents)}
    prepared = {}
    for form, count in workers.items():
        folder = tmp_path / form
        write(folder / "in", files[form])
        separator = "file" if form == "one a file" else "blank_line"
        changes = {"input_files": str(folder / "in"), "document_separator": separator, "heldout_window": 5}
        changes |= {"tokenizer_type": "bpe", "vocab_file": None, "vocab_size": 300}  # This loads no TensorFlow.
        prepare(prepare_config(folder / "out", num_workers=count, **changes))
        prepared[form] = contents(folder / "out")
    assert len(prepared["text"]) > 10
    assert [form for form in prepared if prepared[form] != prepared["text"]] == []


def test_a_row_is_a_document_whatever_is_in_it(tmp_path):
    text = "one\r\n\n  two  words \n\n\nthree"
    write(tmp_path, {"a.jsonl": json_lines([text, "", "\n"])})
    assert [document.paragraphs for document in documents_of(tmp_path)] == [["one", "two words", "three"], [], []]
    write(tmp_path, {"a.jsonl": json_lines(["wrapped\nline\n\nother"])})
    found = documents_of(tmp_path, document_separator="file")
    assert [document.paragraphs for document in found] == [["wrapped line", "other"]]


NOT_UTF8 = pyarrow.array([b"a", b"\xff", b"c"]).view(pyarrow.string())
BAD = {
    "a.jsonl": (b'{"text":"a"}\n{"text":"b"\n\n{"text":3}\n[1]\n{"text":"\xff"}\n{"body":1,"id":2}\n{"text":"c"}', [
        *("line 2: not JSON: Input data was truncated", "line 4: column text: int; expected text"),
        *("line 5: expected a JSON object", "line 6: not JSON: ", "line 7: no column text; the row has body, id"),
    ]),
    "a.csv": (b'id,text\n1,a\n2\n3,"b\n4,b"\n\n5,b,c\n6,"b"x\n7,\xff\n8,c\n', [
        "line 3: 1 fields; expected 2, as in the first line",
        "line 7: 3 fields; expected 2, as in the first line",
        "line 8: ',' expected after '\"'",
        "line 9: column text: not UTF-8",
    ]),
    "a.tsv": (b'id\ttext\n1\ta "\n2\n3\tc\n', ["line 3: 1 fields; expected 2, as in the first line"]),
    "a.parquet": (parquet(["a", None, "c"], rows=1), ["row 2: column text: NoneType; expected text"]),
    "a.arrow": (arrow(["a", None, "c"], rows=2), ["row 2: column text: NoneType; expected text"]),
    "b.arrow": (arrow(NOT_UTF8), ["row 2: column text: not UTF-8"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_named_or_counted(tmp_path, name):
    content, faults = BAD[name]
    folder = write(tmp_path, {name: content})
    with pytest.raises(DataError, match=f"^{re.escape(f'{folder}/{name}, {faults[0]}')}.*leave such rows out with"):
        list(documents_of(folder))
    found = list(documents_of(folder, skip_bad_rows=True))
    places = [document.fault.removeprefix(f"{folder}/{name}, ") for document in found if document.fault]
    assert len(places) == len(faults)
    for place, fault in zip(places, faults, strict=True):
        assert place.startswith(fault)
    assert [found[0].paragraphs[0][0], found[-1].paragraphs[0]] == ["a", "c"]


KINDS = {
    "list": (pyarrow.ListArray.from_arrays([0, 1, 2], NOT_UTF8[:2]), "list<item: string>"),
    "struct": (pyarrow.StructArray.from_arrays([NOT_UTF8[:2]], ["a"]), "struct<a: string>"),
    "date": (pyarrow.array([1 << 60] * 2, pyarrow.date64()), "date64\\[ms\\]"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_no_text_has_bad_rows_whatever_is_in_it(tmp_path, kind):
    column, name = KINDS[kind]
    content = pyarrow.table({"text": column})
    with pyarrow.ipc.new_stream(tmp_path / "a.arrow", content.schema) as writer:
        writer.write_table(content)
    with pytest.raises(DataError, match=f"row 1: column text: {name}; expected text; correct it"):
        list(documents_of(tmp_path))
    assert [bool(document.fault) for document in documents_of(tmp_path, skip_bad_rows=True)] == [True, True]


def test_skipped_rows_are_in_manifest_and_log(prepare_config, tmp_path, caplog):
    content = json_lines(DOCUMENTS[:15]) + b"{}\nnope\n" + json_lines(DOCUMENTS[15:])
    path = write(tmp_path, {"a.jsonl": content}) + "/a.jsonl"
    caplog.set_level("INFO")
    made = prepare(prepare_config(tmp_path / "out", input_files=path, skip_bad_rows=True))
    assert (read_manifest(made.folder).bad_rows, made.documents) == (2, 30)
    first = f"--skip_bad_rows: rows are left out, the first: {path}, line 16: no column text; the row has none"
    assert first in caplog.messages
    assert "bad rows left out                              2" in caplog.messages
    with pytest.raises(DataError, match="line 16: no column text"):
        prepare(prepare_config(tmp_path / "other", input_files=path))


def test_an_id_decides_the_split_not_the_place(prepare_config, tmp_path):
    documents = corpora.text(60, seed=7).strip().split("\n\n")
    rows = [json.dumps({"name": f"n{number}", "body": text}) for number, text in enumerate(documents)]
    held_out = []
    for number, order in enumerate((rows, rows[::-1])):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("\n".join(order))
        changes = {"input_files": str(path), "text_column": "body", "id_column": "name", "heldout_window": 0}
        config = prepare_config(tmp_path / f"out{number}", **changes)
        (work := tmp_path / f"work{number}").mkdir()
        spool, *_ = corpus_chunks.read_corpus(objective_of(config), str(work), [str(path)], corpus_chunks.Workers(1))
        chunks = [chunk for chunk in spool.chunks() if chunk.split == "eval"]
        held_out.append({str(each.paragraphs) for chunk in chunks for each in spool.read(chunk)})
    assert held_out[0] == held_out[1]
    assert 1 <= len(held_out[0]) <= 20


DAMAGED = "damaged, cut short or of another format than its name says ("
REFUSED = [
    ("a.jsonl.gz", COMPRESS[".gz"](json_lines(DOCUMENTS))[:200], DAMAGED),
    ("a.jsonl.zst", COMPRESS[".zst"](json_lines(DOCUMENTS))[:200], DAMAGED),
    ("a.txt.bz2", bz2.compress(b"word\n" * 9999)[:-9], DAMAGED),
    ("a.txt.xz", lzma.compress(b"word\n" * 9999)[:-9], DAMAGED),
    ("a.txt.zst", b"\x28\xb5\x2f\xfd" + b"\xff" * 99, DAMAGED),
    *(("a.txt.xz", b"\xfd7zXZ\x00" + b"\xff" * 99, DAMAGED), ("a.txt.bz2", b"BZh91AY&SY" + b"\xff" * 99, DAMAGED)),
    *(("a.parquet", b"text" * 9, DAMAGED), ("a.parquet", parquet(DOCUMENTS)[:-500], DAMAGED)),
    *(("a.arrow", arrow(DOCUMENTS)[:700], DAMAGED), ("a.arrow", b"text", DAMAGED)),
    ("a.tar", tar({"a.txt": b"word" * 999, "b.txt": b"word"})[:2000], DAMAGED),
    ("a.tar", tar({"a.txt": b"word", "b.txt": b"word"})[:1024], DAMAGED),
    ("a.tar", tar({"a.txt": b"word", "b.txt": b"word"}).replace(b"b.txt", b"c.txt"), DAMAGED),
    ("a.tar", b"text", DAMAGED),
    ("a.zip", zipped({"a.txt": b"word"})[:-9], DAMAGED),
    ("a.parquet", parquet(["a"]).replace(b"text", b"body"), "--text_column=text: the file has the columns id, body"),
    ("a.csv", b"id,body\n1,a\n", "--text_column=text: the file has the columns id, body; expected one with this name"),
    ("a.csv", b"text,text\na,a\n", "--text_column=text: the file has the columns text, text; expected one"),
    ("a.tar", tar({"b.csv": b"body\na\n"}), "/b.csv: --text_column=text: the file has the columns body"),
    ("a.arrow", arrow([[1], [2]]), ", row 1: column text: list<item: int64>; expected text"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "line"), REFUSED, ids=[f"{name}-{at}" for at, (name, *_) in enumerate(REFUSED)]
)
def test_what_is_damaged_or_has_another_schema_is_named(tmp_path, name, content, line):
    folder = write(tmp_path, {name: content})
    with pytest.raises(DataError, match=f"^{re.escape(f'{folder}/{name}')}(: )?{re.escape(line)}"):
        list(documents_of(folder))


@pytest.mark.parametrize(("name", "make"), [("a.jsonl", json_lines), ("a.csv", csv), ("a.tsv", tsv)])
def test_an_overlong_line_is_refused(tmp_path, monkeypatch, name, make):
    monkeypatch.setattr("tftrain.data.table_rows.LONGEST_LINE", 50)
    folder = write(tmp_path, {f"a.{make.__name__.replace('json_lines', 'jsonl')}": make(["a", "long" * 50, "c"])})
    with pytest.raises(DataError, match=r"a\.\w+, line \d: longer than"):
        list(documents_of(folder, skip_bad_rows=True))
