"""Whatever happened to the files of a checkpoint, reading it gives what was saved or an error that names the file."""

import json
import os

import numpy as np
import pytest
import safetensors.numpy

from tests.checkpoint import states
from tftrain.checkpoint import shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.save import Attempt, complete, write
from tftrain.checkpoint.tensor_slice import DTYPES, TensorData, TensorSlice

SHARD = "shard_00000_000.safetensors"
RANDOM = np.random.default_rng(0)
TENSORS = {
    "master/a": RANDOM.normal(size=(5, 3)).astype(np.float32),
    "master/layer_00/b": RANDOM.normal(size=(7,)).astype(np.float32),
    "progress/step": np.array(7),
    "progress/sums": RANDOM.normal(size=(2,)),
}


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of two ranks, of which each has half of every tensor but the scalar."""
    (tmp_path / "checkpoints").mkdir()
    attempts = [Attempt(tmp_path, 3, 1, rank, 2) for rank in range(2)]
    for rank, attempt in enumerate(attempts):
        owned = []
        for name, value in TENSORS.items():
            cut = (0, value.size // 2) if rank == 0 else (value.size // 2, value.size)
            if cut[0] < cut[1]:
                piece = TensorSlice.block(name, value.shape, states.NAMES[value.dtype], elements=cut)
                owned.append(TensorData(piece, value.reshape(-1)[slice(*cut)]))
        write(attempt, owned)
    return complete(attempts[0], {"seed": 1}, states.keep(3, 0), 1, lambda: False)


def read_all(path):
    """Reads everything as a run does."""
    reader = Reader(path)
    reader.verify()
    for name, (dtype, shape) in reader.tensors.items():
        if name in TENSORS:
            found = reader.read(TensorSlice.block(name, shape, dtype))
            np.testing.assert_array_equal(found, TENSORS[name])


def test_what_was_saved_comes_back(saved):
    read_all(saved)
    reader = Reader(saved)
    assert (reader.manifest.step, reader.manifest.run) == (3, {"seed": 1})
    assert reader.tensors.keys() == TENSORS.keys()
    assert sorted(path.name for path in saved.iterdir()) == [
        "manifest.json",
        SHARD,
        "shard_00001_000.safetensors",
    ]


def test_a_tensor_that_is_not_there_or_another_one_is_named(saved):
    reader = Reader(saved)
    for wanted in (TensorSlice.block("master/c", (2,), "F32"), TensorSlice.block("master/a", (3, 5), "F32")):
        with pytest.raises(CheckpointError, match=wanted.name):
            reader.read(wanted)


def swap(path):
    other = path.with_name("shard_00001_000.safetensors")
    path.rename(path.with_name("x"))
    other.rename(path)
    path.with_name("x").rename(other)


def link_out(path):
    target = path.parent.parent.parent / "elsewhere"
    path.rename(target)
    path.symlink_to(target)


def pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGE = {
    "flipped": states.flip,
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 4),
    "grown": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": lambda path: path.unlink(),
    "swapped": swap,
    "a link": link_out,
    "a pipe": pipe,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_shard_is_found_and_named(saved, how):
    DAMAGE[how](saved / SHARD)
    with pytest.raises(CheckpointError, match=SHARD.replace(".", r"\.")):
        read_all(saved)


@pytest.mark.parametrize("how", ["truncated", "missing", "a link", "a pipe", "a folder"])
def test_a_damaged_manifest_is_found_and_named(saved, how):
    DAMAGE[how](saved / "manifest.json")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        read_all(saved)


def changed(content, where, value):
    """Sets the entry at a path of keys, or removes it."""
    *path, last = where
    for key in path:
        content = content[key]
    if value is None:
        del content[last]
    else:
        content[last] = value


HUGE = 2**62
BLOCKS = ("tensors", "master/a", "blocks")
BLOCK = (*BLOCKS, 0)


@pytest.mark.parametrize(
    ("where", "value", "reason"),
    [
        (["format_version"], 3, "format_version is 3, expected 4; resume with the version of tftrain that has written"),
        *((["format_version"], None, "format_version"), (["step"], -1, "step"), (["step"], True, "step")),
        *((["step"], "3", "step"), (["extra"], 1, "unknown field `extra`"), (["run"], [], "run")),
        *((["run"], None, "missing required field `run`"), (["tensors", "master/a"], [], r"tensors\.master/a")),
        (["tensors", "master/a", "extra"], 1, r"tensors\.master/a: .*unknown field"),
        (["tensors", "master/a", "shape"], [5, 4], "nowhere"),
        (["tensors", "master/a", "shape"], [HUGE, HUGE], "more than"),
        (["tensors", "master/a", "shape"], [1] * 99, "more than"),
        (["tensors", "master/a", "shape"], [-5, -3], "shape"),
        (["tensors", "master/a", "dtype"], "O", "dtype"),
        (["tensors", "master/a", "dtype"], [], "dtype"),
        (
            ["tensors", "x\n"],
            {"dtype": "F32", "shape": [], "blocks": [{"pieces": [[0, 0, 1]]}]},
            "not the name of a tensor",
        ),
        (["tensors", "master/z"], {"dtype": "F32", "shape": [], "blocks": []}, "in no file"),
        (["files", SHARD, "extra"], 1, r"files\.shard_00000_000\.safetensors: .*unknown field"),
        *((["files", SHARD, "sha256"], "", "sha256"), (["files", SHARD, "sha256"], "A" * 64, "sha256")),
        (["files", SHARD, "sha256"], "a" * 64 + "\n", "sha256"),
        *((["files", SHARD, "xxh3_128"], "0" * 64, "xxh3_128"), (["files", SHARD, "xxh3_128"], 0, "xxh3_128")),
        *((["files", SHARD, "bytes"], 3, "too few"), (["files", SHARD, "bytes"], 1e99, "bytes")),
        *((["files"], {}, "does not exist"), (["files", SHARD], None, "does not exist")),
        (["files", "../" + SHARD], {"bytes": 0, "xxh3_128": "0" * 32, "sha256": "0" * 64}, "not the name of a shard"),
        ([*BLOCKS], [], "in no file"),
        ([*BLOCKS], [{"pieces": []}], "in no file"),
        ([*BLOCKS], [{"pieces": [[0, 0, 15]]}] * 2, "occurs twice"),
        ([*BLOCKS], [{"pieces": [[0, 0, 15]]}, {"pieces": []}], "in no file"),
        *(([*BLOCK, "extra"], 1, "unknown field"), ([*BLOCK, "offset"], [5, 0], "outside the tensor")),
        *(([*BLOCK, "shape"], [5], "dimensions"), ([*BLOCK, "pieces"], [[0, 0]], "pieces")),
        *(([*BLOCK, "pieces"], [[0, 0, 7, 2]], "3 or 6"), ([*BLOCK, "pieces"], [[0, 0, -1]], "pieces")),
        ([*BLOCK, "pieces"], [[0, 0, 8], [1, 7, 15]], "twice"),
        *(([*BLOCK, "pieces"], [[0, 0, 6], [1, 7, 15]], "nowhere"), ([*BLOCK, "pieces"], [[0, 0, 7]], "nowhere")),
        ([*BLOCK, "pieces"], [[0, 0, 7], [1, 7, 16]], "outside its block"),
        ([*BLOCK, "pieces"], [[0, 7, 0], [1, 7, 15]], "outside its block"),
        ([*BLOCK, "pieces"], [[0, 0, 7], [0, 7, 15]], "two pieces"),
        ([*BLOCK, "pieces"], [[0, 0, 7], [2, 7, 15]], "does not exist"),
        ([*BLOCK, "pieces"], [[0, 0, 5, 3, 1, 5]], "does not exist"),
        ([*BLOCK, "pieces"], [[0, 0, 5, 3, 0, 5]], "does not exist"),
        ([*BLOCK, "pieces"], [[0, 0, 5, HUGE, 0, 5]], "does not exist"),
        ([*BLOCK, "pieces"], [[0, 0, 5, 0, 1, 5]], "does not exist"),
        ([*BLOCK, "pieces"], [[0, 0, 8, 2, 1, 8]], "outside its block"),
        ([*BLOCK, "pieces"], [[0, 0, 8, 2, 1, HUGE]], "outside its block"),
        ([*BLOCK, "pieces"], [[0, 0, 8, 2, 1, 0]], "twice"),
    ],
)
def test_a_manifest_that_can_t_be_right_is_refused(saved, where, value, reason):
    check_refused(saved, where, value, reason)


def check_refused(saved, where, value, reason):
    path = saved / "manifest.json"
    content = json.loads(path.read_text())
    changed(content, where, value)
    path.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"manifest\.json: .*({reason})"):
        Reader(saved)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "1", "nul", "[" * 10**5, '{"step": NaN}', '{"a": 1, "a": 2}', "9" * 5000, "\xff", "\0"]
)
def test_what_is_no_manifest_is_refused(saved, text):
    (saved / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(CheckpointError, match=r"manifest\.json"):
        Reader(saved)


def test_a_huge_manifest_is_not_read(saved):
    os.truncate(saved / "manifest.json", 2**40)  # with a hole that takes no space
    with pytest.raises(CheckpointError, match="more than"):
        Reader(saved)


def with_header(path, header, length=None):
    """Replaces a shard's header, and its length before it, or another one."""
    content = path.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + content[end:])
    return path.stat().st_size


def header_of(path):
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def load(saved, size):
    files = Reader(saved).manifest.files
    return load_file(saved / SHARD, files[SHARD]._replace(bytes=size))


def load_file(path, expected):
    return list(shard.load(path, expected, lambda piece: np.empty(piece.size, DTYPES[piece.dtype])))


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("master/a"),
        lambda header: header["master/a"].update(data_offsets=[0, 2**62]),
        lambda header: header["master/a"].update(data_offsets=[-4, 24]),
        lambda header: header["master/a"].update(data_offsets=header["progress/sums"]["data_offsets"]),
        lambda header: header["master/a"].update(shape=[2**40]),
        lambda header: header["master/a"].update(dtype="I64"),
        lambda header: header.update(more=header["master/a"]),
        lambda header: header.update(__metadata__={}),
    ],
)
def test_a_header_that_is_not_what_the_manifest_says_is_refused(saved, change):
    header = header_of(saved / SHARD)
    change(header)
    size = with_header(saved / SHARD, header)
    with pytest.raises(CheckpointError, match="header"):
        load(saved, size)


@pytest.mark.parametrize(
    ("header", "length"),
    [(b"{}", 2**63), (b"{}", 2**26), (b"{}", 0), (b"[" * 9**5, None), (b"\xff", None), (b"", None)],
)
def test_a_header_of_a_mad_length_or_no_json_is_refused(saved, header, length):
    size = with_header(saved / SHARD, header, length)
    with pytest.raises(CheckpointError, match="header"):
        load(saved, size)


def test_what_the_safetensors_library_has_written_is_read(tmp_path):
    path = tmp_path / "x.safetensors"
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    path.write_bytes(safetensors.numpy.save({"a": value}))
    written = shard.Written(path.stat().st_size, {}, (TensorSlice.block("a", (2, 3), "F32"),))
    ((_, found),) = load_file(path, written)
    np.testing.assert_array_equal(found, value.reshape(-1))
