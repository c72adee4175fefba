"""TFRecords by random access: what TensorFlow writes is read, what is damaged is named."""

import os
import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from tests.data.corpora import write_tfrecords
from tftrain.data import records
from tftrain.data.errors import DataError
from tftrain.data.records import RecordSet, load_offsets, match_files, write_records

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
    assert write_records(path, PAYLOADS) == len(PAYLOADS)
    assert list(tf.data.TFRecordDataset(path).as_numpy_iterator()) == PAYLOADS


def test_we_read_what_tensorflow_writes_in_any_order(tmp_path, shard):
    other = write_tfrecords(tmp_path / "b.tfrecord", [b"of another file"])
    found = RecordSet([shard, other])
    assert len(found) == 6
    assert found.counts == [5, 1]
    assert [found.read(number) for number in (5, 2, 0, 4, 1, 3)] == [
        b"of another file",
        *(PAYLOADS[i] for i in (2, 0, 4, 1, 3)),
    ]


def test_place_names_file_and_offset(shard):
    assert RecordSet([shard]).place(2) == f"{shard}: byte {begin_of(2)}"


def test_index_is_written_beside_a_scanned_file_and_equals_the_scan(shard):
    scanned = load_offsets(shard)
    assert scanned.tolist() == [begin_of(number) for number in range(6)]
    np.testing.assert_array_equal(np.load(shard + ".index"), scanned)


def test_index_of_our_writer_equals_a_scan(tmp_path):
    path = str(tmp_path / "ours")
    write_records(path, PAYLOADS)
    np.testing.assert_array_equal(np.load(path + ".index"), records.scan(path))


@pytest.mark.parametrize(
    "stale",
    [
        np.array([0, 30], np.uint64),
        np.array([0, 500, 21, begin_of(5)], np.uint64),
        np.array([21, begin_of(5)], np.uint64),
        np.array([0, begin_of(5)], np.int32),
        np.array([[0, begin_of(5)]], np.uint64),
        np.array([], np.uint64),
    ],
    ids=["other file size", "not increasing", "not from 0", "other dtype", "other rank", "empty"],
)
def test_index_that_does_not_fit_is_made_anew(shard, stale):
    np.save(shard + ".index", stale)
    os.rename(shard + ".index.npy", shard + ".index")
    assert RecordSet([shard]).read(4) == b"last"


def test_index_that_is_no_array_is_made_anew(shard):
    with open(shard + ".index", "wb") as file:
        file.write(b"\x80\x04not an array")
    assert len(RecordSet([shard])) == 5


def test_index_in_a_folder_that_cannot_be_written_is_not_needed(shard, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(records.tempfile, "mkstemp", refuse)
    assert RecordSet([shard]).read(4) == b"last"
    assert not os.path.exists(shard + ".index")


def test_index_of_other_records_of_the_same_size_is_found_out(shard):
    np.save(shard + ".index", np.array([0, 40, begin_of(5)], np.uint64))
    os.rename(shard + ".index.npy", shard + ".index")
    with pytest.raises(DataError, match=r"a\.tfrecord: byte 0: .*index"):
        RecordSet([shard]).read(0)


def test_damaged_payload_names_file_and_offset(shard):
    found = RecordSet([shard])
    damage(shard, begin_of(2) + 12 + 7, b"X")
    with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(2)}: .*checksum"):
        found.read(2)
    assert found.read(3) == PAYLOADS[3]


def test_damaged_length_names_file_and_offset_when_scanned_and_when_read(shard):
    found = RecordSet([shard])
    os.remove(shard + ".index")
    damage(shard, begin_of(3), b"\xff")
    for action in (lambda: found.read(3), lambda: load_offsets(shard)):
        with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(3)}: .*length"):
            action()


def test_hostile_length_with_a_right_checksum_allocates_nothing(shard):
    length = struct.pack("<Q", 1 << 60)
    damage(shard, begin_of(4), length + struct.pack("<I", records.masked_crc(length)))
    with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(4)}: .*cut short"):
        load_offsets(shard)


@pytest.mark.parametrize("kept", [begin_of(4) + 1, begin_of(4) + 14, begin_of(5) - 1])
def test_file_cut_short_names_the_offset_of_the_last_record(shard, kept):
    os.truncate(shard, kept)
    with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(4)}: .*cut short"):
        load_offsets(shard)


def test_file_cut_short_after_it_was_opened_is_found_when_read(shard):
    found = RecordSet([shard])
    found.read(0)
    os.truncate(shard, begin_of(5) - 3)
    with pytest.raises(DataError, match=rf"a\.tfrecord: byte {begin_of(4)}: .*cut short"):
        found.read(4)


def test_missing_empty_and_compressed_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"gone: No such file"):
        RecordSet([str(tmp_path / "gone")])
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(DataError, match=r"empty: byte 0: the file is empty"):
        RecordSet([str(tmp_path / "empty")])
    with tf.io.TFRecordWriter(str(tmp_path / "packed"), tf.io.TFRecordOptions(compression_type="GZIP")) as writer:
        writer.write(b"x" * 100)
    with pytest.raises(DataError, match=r"packed: byte 0: this is gzip"):
        RecordSet([str(tmp_path / "packed")])


def test_glob_without_a_match_names_the_flag(tmp_path):
    with pytest.raises(DataError, match=r"--train_files=.*nothing.*no file matches"):
        match_files(str(tmp_path / "nothing*"), "train_files")


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
