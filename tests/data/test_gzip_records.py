"""Gzip TFRecords: read at random as plain ones are, safely by several processes, and named when they are damaged."""

import gzip
import os
import pathlib
import shutil
import stat
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from tests.data import corpora
from tftrain.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from tftrain.data import gzip_records, preflight
from tftrain.data.errors import DataError
from tftrain.data.gzip_records import first_record, uncompressed_copies
from tftrain.data.records import RecordSet, match_files, scan
from tftrain.data.source import open_source

PAYLOADS = [b"first", b"", b"a longer third record" * 20, bytes(range(256)), b"last"]


def write_gzip(path, payloads):
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


@pytest.fixture
def packed(tmp_path):
    return write_gzip(tmp_path / "a.tfrecord.gz", PAYLOADS)


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory, monkeypatch):
    """The system's temporary folder, which no other test has seen."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(gzip_records.tempfile, "tempdir", str(folder))
    return folder


def test_compressed_and_plain_files_are_read_together_in_any_order(tmp_path, packed):
    plain = corpora.write_tfrecords(tmp_path / "b", [b"plain"])
    (copy, same), names = uncompressed_copies([packed, plain])
    assert same == names[1] == plain
    assert names[0] == f"{packed} (uncompressed as {copy})"
    records = RecordSet([copy, same], names)
    assert [records.read(number) for number in (5, 2, 0, 4, 1, 3)] == [
        b"plain",
        *(PAYLOADS[i] for i in (2, 0, 4, 1, 3)),
    ]
    np.testing.assert_array_equal(np.load(copy + ".index"), scan(copy))
    assert records.place(1) == f"{names[0]}: byte {len(PAYLOADS[0]) + 16}"


def test_file_of_several_members_is_one_file(tmp_path):
    plain = corpora.write_tfrecords(tmp_path / "plain", PAYLOADS)
    content = pathlib.Path(plain).read_bytes()
    (tmp_path / "x.gz").write_bytes(gzip.compress(content[:30]) + gzip.compress(content[30:]))
    (copy,), _ = uncompressed_copies([str(tmp_path / "x.gz")])
    assert pathlib.Path(copy).read_bytes() == content


def test_copy_is_made_once_and_no_glob_finds_it(packed, monkeypatch):
    first = uncompressed_copies([packed])
    monkeypatch.setattr(gzip_records, "_write_copy", None)
    assert uncompressed_copies([packed]) == first
    folder = os.path.dirname(packed)
    assert match_files(f"{folder}/*", "train_files") == [packed]
    assert not [name for name in os.listdir(folder) if name.endswith(".lock") or "unfinished" in name]


def test_changed_file_gets_a_new_copy(packed):
    ((old,), _) = uncompressed_copies([packed])
    write_gzip(packed, [b"other"])
    ((new,), _) = uncompressed_copies([packed])
    assert RecordSet([new]).read(0) == b"other"
    assert not os.path.exists(old)
    assert not os.path.exists(old + ".index")


def test_folder_that_cannot_be_written_has_its_copies_in_the_temporary_folder(packed, temporary, monkeypatch):
    real = gzip_records.os.open

    def refuse(path, *rest):
        if os.path.dirname(path) == os.path.dirname(packed) and path.endswith(".lock"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *rest)

    monkeypatch.setattr(gzip_records.os, "open", refuse)
    ((copy,), _) = uncompressed_copies([packed])
    assert copy.startswith(str(temporary))
    assert RecordSet([copy]).read(4) == b"last"
    assert stat.S_IMODE(os.stat(temporary / f"tftrain-{os.getuid()}").st_mode) == 0o700
    assert uncompressed_copies([packed])[0] == [copy]


def test_temporary_folder_of_another_user_is_not_used(packed, temporary, monkeypatch):
    monkeypatch.setattr(gzip_records.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    (temporary / f"tftrain-{os.getuid()}").mkdir(mode=0o777)
    os.chmod(temporary / f"tftrain-{os.getuid()}", 0o777)
    with pytest.raises(DataError, match=r"a\.tfrecord\.gz: .*No space left on device.*another user can write.*TMPDIR"):
        uncompressed_copies([packed])


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_copy_that_failed_leaves_nothing(packed, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(gzip_records, "write_index", fail)
    with pytest.raises((DataError, KeyboardInterrupt)):
        uncompressed_copies([packed])
    assert os.listdir(os.path.dirname(packed)) == ["a.tfrecord.gz"]


def test_damaged_files_are_named_with_the_byte(tmp_path, packed):
    content = gzip.decompress(pathlib.Path(packed).read_bytes())
    begin = sum(len(payload) + 16 for payload in PAYLOADS[:3])
    cases = {
        "cut": (pathlib.Path(packed).read_bytes()[:-12], r"byte \d+: the gzip file is cut short"),
        "crc": (pathlib.Path(packed).read_bytes()[:-8] + bytes(8), r"byte \d+: a damaged gzip file"),
        "short": (gzip.compress(content[:-3]), rf"byte {begin + 256 + 16}: the record is cut short"),
        "header": (gzip.compress(content[:5]), "byte 0: the record is cut short"),
        "text": (gzip.compress(b"no records but text"), "byte 0: the checksum of the record's length does not fit"),
        "length": (gzip.compress(content[:begin] + b"x" * 40), rf"byte {begin}: the checksum of the record's length"),
        "twice": (gzip.compress(pathlib.Path(packed).read_bytes()), "byte 0: this is gzip"),
        "none": (gzip.compress(b""), "byte 0: the file is empty"),
    }
    for name, (data, match) in cases.items():
        path = tmp_path / f"{name}.gz"
        path.write_bytes(data)
        with pytest.raises(DataError, match=rf"{name}\.gz[^:]*: {match}"):
            uncompressed_copies([str(path)])


def test_damaged_payload_is_found_when_it_is_read(tmp_path, packed):
    content = bytearray(gzip.decompress(pathlib.Path(packed).read_bytes()))
    content[14] ^= 1
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content))
    paths, names = uncompressed_copies([str(path)])
    with pytest.raises(DataError, match=r"x\.gz \(uncompressed as .*\): byte 0: the record's checksum does not fit"):
        RecordSet(paths, names).read(0)
    with pytest.raises(DataError, match=r"x\.gz: byte 0 .*checksum"):
        first_record(str(path))


def test_first_record_needs_no_copy(packed):
    assert first_record(packed) == (b"first", f"{packed}: byte 0")
    assert os.listdir(os.path.dirname(packed)) == ["a.tfrecord.gz"]


def test_processes_that_start_together_make_each_copy_once(tmp_path):
    payloads = [os.urandom(2000) for _ in range(300)]
    paths = [write_gzip(tmp_path / f"{number}.gz", payloads) for number in range(4)]
    code = (
        "import sys; from tftrain.data import gzip_records as g; write = g._write_copy; made = []\n"
        "def counted(path, copy): made.append(path); write(path, copy)\n"
        "g._write_copy = counted; copies, _ = g.uncompressed_copies(sys.argv[1:])\n"
        "from tftrain.data.records import RecordSet; records = RecordSet(copies)\n"
        "print(len(made), sum(map(len, map(records.read, range(len(records))))))"
    )
    ranks = [
        subprocess.Popen([sys.executable, "-c", code, *paths], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    found = [list(map(int, rank.communicate(timeout=120)[0].split())) for rank in ranks]
    assert sum(made for made, _ in found) == 4
    assert [size for _, size in found] == [4 * 300 * 2000] * 3


def test_all_forms_of_standard_records_give_the_same_batches(tmp_path):
    rng = np.random.default_rng(0)
    features = [corpora.standard_example(rng)[1] for _ in range(6)]
    names = {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}
    original = [corpora.serialize(example) for example in features]
    version2 = [corpora.serialize({names.get(key, key): value for key, value in item.items()}) for item in features]
    files = {
        "plain": corpora.write_tfrecords(tmp_path / "plain", original),
        "names": corpora.write_tfrecords(tmp_path / "names", version2),
        "gzip": write_gzip(tmp_path / "gzip", original),
        "both": write_gzip(tmp_path / "both", version2),
    }
    batches = {}
    for form, path in files.items():
        config = TrainConfig(model=ModelConfig(vocab_size=100), data=DataConfig(train_files=path), run=RunConfig())
        assert preflight.problems(config) == []
        assert preflight.sizes(config) == (100, 16, 3)
        source = open_source(config.data, "train", 100, 1)
        batches[form] = source.batch(tf.constant(0, tf.int64), 6, lambda numbers: numbers[::-1])
    for form, batch in batches.items():
        for key, value in batches["plain"].items():
            np.testing.assert_array_equal(batch[key], value, err_msg=f"{form} {key}")
    np.testing.assert_array_equal(batches["both"]["input_ids"][5], features[0]["input_ids"])
