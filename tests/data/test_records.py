"""TFRecords by random access: what TensorFlow writes is read, what is damaged is named."""

import os
import re
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.kit.corpora import standard_example, write_tfrecords
from tftrain.data import record_index, records
from tftrain.data.example import canonical, decode, encode
from tftrain.data.records import RecordSet, load_offsets, match_files, write_records
from tftrain.files.errors import DataError

PAYLOADS = [b"first", b"", b"a longer third record" * 20, bytes(range(256)), b"last"]


@pytest.fixture
def shard(tmp_path):
    return write_tfrecords(tmp_path / "a.tfrecord", PAYLOADS)


def damage(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def begin_of(number):
    return sum(len(payload) + 16 for payload in PAYLOADS[:number])


def test_tensorflow_reads_what_we_write(tmp_path):
    path = str(tmp_path / "ours")
    write_records(path, PAYLOADS)
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == PAYLOADS
    np.testing.assert_array_equal(np.load(path + ".index"), records.scan(path))


def test_we_read_what_tensorflow_writes_in_any_order(tmp_path, shard):
    other = write_tfrecords(tmp_path / "b.tfrecord", [b"of another file"])
    found = RecordSet([shard, other])
    assert found.place(2) == f"{shard}: byte {begin_of(2)}"
    assert found.counts == [5, 1]
    numbers = (5, 2, 0, 4, 1, 3)
    assert [found.read(number) for number in numbers] == [[*PAYLOADS, b"of another file"][n] for n in numbers]


def test_index_is_written_beside_a_scanned_file_and_equals_the_scan(shard):
    scanned = load_offsets(shard)
    assert scanned.tolist() == [begin_of(number) for number in range(6)]
    np.testing.assert_array_equal(np.load(shard + ".index"), scanned)


def npy(shape, data=b"", descr="'<u8'"):
    """Returns a .npy file whose header says what it is told to."""
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def offsets(*values, dtype="<u8"):
    return npy(f"({len(values)},)", np.array(values, dtype).tobytes(), f"'{dtype}'")


INDICES = {
    "other file size": offsets(0, 30),
    "not increasing": offsets(0, 500, 21, begin_of(5)),
    "not from 0": offsets(21, begin_of(5)),
    "other dtype": offsets(0, begin_of(5), dtype="<i4"),
    "other rank": npy("(1, 2)", np.array([[0, begin_of(5)]], np.uint64).tobytes()),
    "empty": offsets(),
    # Differences of signed numbers that wrap around are all positive.
    "wrapping": offsets(0, 2**63 - 1, 2**63 + 20, 2**64 - 100, 40, begin_of(5)),
    "no array": b"\x80\x04not an array",
    "huge": npy("(1099511627776,)"),
    "negative": npy("(-1,)", bytes(48)),
    "no tuple": npy("(" * 40),
    "code": npy("(__import__('os').abort(),)"),
    "huge type": npy("(6,)", bytes(48), descr="'|V2147483647'"),
    "objects": npy("(6,)", bytes(48), descr="'|O'"),
    "zip": b"PK\x03\x04" + bytes(100),
    "zeros": bytes(1 << 21),
}


@pytest.mark.parametrize("content", INDICES.values(), ids=INDICES)
def test_an_index_that_does_not_fit_or_is_hostile_is_made_anew(shard, content):
    expected = load_offsets(shard)
    with open(shard + ".index", "wb") as file:
        file.write(content)
    tracemalloc.start()
    np.testing.assert_array_equal(load_offsets(shard), expected)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    np.testing.assert_array_equal(np.load(shard + ".index"), expected)


def test_index_that_is_a_pipe_is_made_anew(shard):
    os.mkfifo(shard + ".index")
    assert len(RecordSet([shard])) == 5
    assert os.path.isfile(shard + ".index")


def test_index_is_not_written_through_a_symbolic_link(tmp_path, shard):
    (tmp_path / "precious").write_bytes(b"as it was")
    os.symlink(tmp_path / "precious", shard + ".index")
    load_offsets(shard)
    assert (tmp_path / "precious").read_bytes() == b"as it was"


def test_index_of_many_records_is_mapped_and_checked_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(record_index, "_INDEX_IN_MEMORY", 64)
    path = str(tmp_path / "x")
    write_records(path, [bytes([number]) for number in range(200)])
    found = RecordSet([path])
    assert [found.read(number) for number in (0, 63, 64, 65, 199)] == [b"\0", b"\x3f", b"\x40", b"\x41", b"\xc7"]
    offsets = np.load(path + ".index")
    for place in (1, 64, 65, 128, 199):
        bad = offsets.copy()
        bad[place] = bad[place - 1]
        with open(path + ".index", "wb") as file:
            np.save(file, bad)
        np.testing.assert_array_equal(load_offsets(path), offsets)


def test_index_of_one_record_as_long_as_the_file_reads_no_such_record(tmp_path):
    path = str(tmp_path / "x")
    write_records(path, [b"a"])
    with open(path, "r+b") as file:
        file.truncate(1 << 40)
    with open(path + ".index", "wb") as file:
        np.save(file, np.array([0, 1 << 40], np.uint64))
    tracemalloc.start()
    with pytest.raises(DataError, match="byte 0: the record has another length"):
        RecordSet([path]).read(0)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_index_in_a_folder_that_cannot_be_written_is_not_needed(shard, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(record_index.tempfile, "mkstemp", refuse)
    assert RecordSet([shard]).read(4) == b"last"
    assert not os.path.exists(shard + ".index")


def test_index_of_other_records_of_the_same_size_is_found_out(shard):
    np.save(shard + ".index", np.array([0, 40, begin_of(5)], np.uint64))
    os.rename(shard + ".index.npy", shard + ".index")
    with pytest.raises(DataError, match=r"a\.tfrecord: byte 0: .*index"):
        RecordSet([shard]).read(0)


LENGTH = struct.pack("<Q", 1 << 60)  # With a right checksum; nothing of that size is allocated.


@pytest.mark.parametrize(
    ("number", "offset", "data", "read", "scanned"),
    [
        (2, 12 + 7, b"X", "checksum", None),
        (3, 0, b"\xff", "length", "length"),
        (4, 0, LENGTH + struct.pack("<I", records.masked_crc(LENGTH)), None, "cut short"),
    ],
)
def test_damage_names_file_and_offset_when_scanned_and_when_read(shard, number, offset, data, read, scanned):
    found = RecordSet([shard])
    os.remove(shard + ".index")
    damage(shard, begin_of(number) + offset, data)
    for fault, action in ((read, lambda: found.read(number)), (scanned, lambda: load_offsets(shard))):
        if fault:
            with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(number)}: .*{fault}"):
                action()
    assert found.read(1) == PAYLOADS[1]


def test_record_longer_than_any_example_is_not_read(tmp_path):
    path, length = str(tmp_path / "x"), records.LONGEST_RECORD + 1
    header = struct.pack("<Q", length)
    with open(path, "wb") as file:
        file.write(header + struct.pack("<I", records.masked_crc(header)))
        file.truncate(length + 16)
    with pytest.raises(DataError, match=rf"x: byte 0: the record has {length} bytes; expected an example of at most"):
        load_offsets(path)


@pytest.mark.parametrize("kept", [begin_of(4) + 1, begin_of(4) + 14, begin_of(5) - 1])
def test_file_cut_short_names_the_offset_of_the_last_record(shard, kept):
    os.truncate(shard, kept)
    with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(4)}: .*cut short"):
        load_offsets(shard)


PACKED = re.escape("byte 0: this is gzip, not plain TFRecord; uncompress it first (gunzip)")


def test_what_is_no_file_of_records_is_named(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_bytes(b"")
    with tf.io.TFRecordWriter(str(tmp_path / "packed"), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        writer.write(b"x" * 100)
    faults = {"gone": "No such file", "empty": "byte 0: the file is empty", "packed": PACKED}
    for name in (tmp_path, tmp_path / "pipe", "/dev/zero", *faults):
        path = tmp_path / name
        fault = faults.get(name, "(not a regular file|byte 0: the file is empty)")
        with pytest.raises(DataError, match=f"{path}: {fault}"):
            RecordSet([str(path)])


def test_glob_leaves_indices_out(shard):
    load_offsets(shard)
    assert match_files(shard + "*", "train_files") == [shard]


def test_more_files_than_are_held_open_are_read_by_several_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_OPEN_FILES", 2)
    paths = [write_tfrecords(tmp_path / str(number), [str(number).encode()]) for number in range(9)]
    found = RecordSet(paths)
    numbers = list(range(9)) * 40
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(found.read, numbers)) == [str(number).encode() for number in numbers]


def test_decodes_what_tensorflow_writes():
    payload, features = standard_example(np.random.default_rng(0))
    assert decode(payload, "here") == features


def test_tensorflow_decodes_what_we_write():
    _, features = standard_example(np.random.default_rng(1))
    example = tf.train.Example.FromString(encode(features))
    found = example.features.feature.items()
    assert {name: list(kind.int64_list.value) or list(kind.float_list.value) for name, kind in found} == features


def test_large_integers_survive_and_the_order_of_the_features_changes_nothing():
    values = {"x": [-1, 0, 2**62, -(2**63)], "b": [2]}
    assert decode(encode(values), "here") == values
    assert encode(values) == encode(dict(reversed(values.items())))


def test_canonical_bytes_are_the_same_example_without_unknown_fields():
    payload, features = standard_example(np.random.default_rng(2))
    unknown = b"\x92\x01\x03abc"
    assert decode(canonical(payload + unknown, "here"), "here") == features
    assert len(canonical(payload + unknown, "here")) == len(canonical(payload, "here"))
    for read in (decode, canonical):
        with pytest.raises(DataError, match=r"shard: byte 7: the record is not a tf.train.Example"):
            read(payload[:-1], "shard: byte 7")
