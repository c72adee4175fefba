"""The manifest fits the files beside it, or says which does not."""

import dataclasses
import json
import shutil

import pytest

from tftrain.data import manifest
from tftrain.data.errors import DataError
from tftrain.data.manifest import Manifest, Shard, read_manifest, write_manifest


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-0").write_bytes(b"12345")
    (tmp_path / "vocab.txt").write_text("[PAD]\n")
    write_manifest(
        Manifest(
            folder=str(tmp_path),
            masking="dynamic",
            tokenizer_type="wordpiece",
            vocab_file="vocab.txt",
            vocab_size=1,
            vocab_sha256=manifest.file_sha256(str(tmp_path / "vocab.txt")),
            tokenizer_file=None,
            lower_case=True,
            max_seq_length=16,
            max_predictions_per_seq=None,
            documents=2,
            tokens=30,
            seed=1,
            splits={"train": [Shard("train-0", 3, 5)], "eval": []},
        )
    )
    return tmp_path


def edit(folder, **changes):
    path = folder / manifest.NAME
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def refused(folder, match):
    with pytest.raises(DataError, match=match) as caught:
        read_manifest(str(folder))
    assert "\n" not in str(caught.value)


def test_what_was_written_is_read(folder):
    found = read_manifest(str(folder))
    before = (folder / manifest.NAME).read_bytes()
    write_manifest(found)
    assert (folder / manifest.NAME).read_bytes() == before
    assert found.examples("train") == 3
    assert found.examples("eval") == 0
    assert dataclasses.replace(found) == read_manifest(str(folder))


def test_folder_without_a_manifest_says_how_to_make_one(tmp_path):
    refused(tmp_path, r"manifest.json: no such file; expected .*tftrain.prepare --output_dir=")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("{", "not JSON"),
        ("[]", "not a manifest"),
        ('{"a": 1}', "not a manifest"),
        ('{"format": 99}', "its format is 99"),
        ('{"format": 1}', "a field is missing"),
    ],
)
def test_what_is_no_manifest_is_refused(folder, content, match):
    (folder / manifest.NAME).write_text(content)
    refused(folder, rf"manifest\.json: {match}")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"masking": "other"}, "masking is 'other'"),
        ({"vocab_size": "many"}, "wrong type of vocab_size"),
        ({"max_predictions_per_seq": 5}, "max_predictions_per_seq is 5 with masking dynamic"),
        ({"unknown": 5}, "a field is missing or has the wrong type"),
        ({"splits": {"train": []}}, "a field is missing or has the wrong type"),
        (
            {"splits": {"train": [{"file": "train-0", "examples": 3, "bytes": None}], "eval": []}},
            "wrong type of splits",
        ),
    ],
)
def test_field_of_the_wrong_kind_is_refused(folder, changes, match):
    edit(folder, **changes)
    refused(folder, match)


@pytest.mark.parametrize("name", ["../train-0", "/etc/passwd", "a/../../b", "", "./train-0"])
def test_name_that_leads_out_of_the_folder_is_refused(folder, name):
    edit(folder, splits={"train": [{"file": name, "examples": 3, "bytes": 5}], "eval": []})
    refused(folder, "expected a name inside")


def test_missing_shard_is_named(folder):
    (folder / "train-0").unlink()
    refused(folder, r"train-0: No such file or directory: this shard is missing")


def test_shard_of_another_size_is_named_with_the_byte(folder):
    (folder / "train-0").write_bytes(b"123")
    refused(folder, r"train-0: byte 3: the shard has 3 bytes, .*manifest.json says 5")


def test_vocabulary_that_does_not_match_is_named(folder):
    (folder / "vocab.txt").write_text("[PAD]\nother\n")
    refused(folder, r"vocab\.txt: this is not the vocabulary that the records were made with: its SHA-256")


def test_missing_vocabulary_is_named(folder):
    (folder / "vocab.txt").unlink()
    refused(folder, r"vocab\.txt: no such file")


def test_a_moved_folder_is_read_where_it_is(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("moved") / "data"
    shutil.copytree(folder, other)
    assert read_manifest(str(other)).path("train-0") == str(other / "train-0")
