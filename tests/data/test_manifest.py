"""The manifest fits the files beside it, or says which does not."""

import json
import os
import re
import shutil

import msgspec
import pytest

from tftrain.data import manifest
from tftrain.data.manifest import Manifest, Shard, read_manifest, write_manifest
from tftrain.files.errors import DataError


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train-0").write_bytes(b"12345")
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    write_manifest(
        Manifest(
            folder=str(tmp_path),
            masking="dynamic",
            tokenizer_type="wordpiece",
            vocab_file="vocab.txt",
            vocab_size=6,
            vocab_sha256=manifest.file_sha256(str(tmp_path / "vocab.txt")),
            tokenizer_file=None,
            lower_case=True,
            strip_accents=True,
            normalization="bert",
            max_seq_length=16,
            max_predictions_per_seq=None,
            documents=2,
            tokens_read=30,
            tokens_in_examples=25,
            tokens_dropped={"duplicate_paragraph": 5},
            unk_share=0.5,
            seed=1,
            splits={"train": [Shard("train-0", 3, 5)], "eval": []},
        )
    )
    return tmp_path


def edit(folder, changes):
    path = folder / manifest.NAME
    path.write_text(changes if isinstance(changes, str) else json.dumps(json.loads(path.read_text()) | changes))


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
    assert found == read_manifest(str(folder))


ACCOUNTING = dict.fromkeys(("tokens_in_examples", "tokens_dropped", "unk_share"))


@pytest.mark.parametrize(
    ("added", "read"),
    [
        ({"format": 1, "tokens": 30}, {"tokens_read": 30, **ACCOUNTING}),
        ({}, {"normalization": "nfkc"}),
        ({}, {"strip_accents": None}),
    ],
)
def test_a_manifest_of_an_earlier_version_lacks_fields(folder, added, read):
    found = read_manifest(str(folder))
    content = json.loads((folder / manifest.NAME).read_text()) | added
    edit(folder, json.dumps({name: value for name, value in content.items() if name not in read}))
    assert read_manifest(str(folder)) == msgspec.structs.replace(found, **read)


def listing(name, size=5):
    """Returns the change of a manifest that lists a file."""
    return {"splits": {"train": [{"file": name, "examples": 3, "bytes": size}], "eval": []}}


OUTSIDE, UNPRINTABLE = "expected a name inside", "expected a name of printable characters"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ("{", r"manifest\.json: not JSON"),
        ('{"a": 1}', r"manifest\.json: not a manifest"),
        ('{"format": 99}', r"manifest\.json: its format is 99"),
        ('{"format": "' + "x" * 100_000 + '"}', r"manifest\.json: its format is 'xxx.*xxx', this version"),
        ('{"format": 1}', r"manifest\.json: Object missing required field `masking`"),
        ({"masking": "other"}, "masking is 'other': Invalid enum value"),
        ({"vocab_size": "many"}, "vocab_size is 'many'"),
        ({"vocab_size": 10**18}, "vocab_size is 1000000000000000000: Expected `int` <= 1048576"),
        ({"vocab_size": 7}, r"vocab_size is 7, but .*vocab\.txt has 6 tokens"),
        ({"max_seq_length": 16.0}, "max_seq_length is 16.0"),
        ({"max_seq_length": float("nan")}, "not JSON .NaN is not a number"),
        ({"objective": "causal"}, "masking is 'dynamic' with objective causal; prepare the data again"),
        ({"seed": -1}, "seed is -1"),
        ({"unk_share": 1.5}, "unk_share is 1.5: Expected `float` <= 1"),
        ({"tokens_dropped": {"duplicate_paragraph": -5}}, "Expected `int` >= 0"),
        ({"lower_case": 1}, "lower_case is 1: Expected `bool`"),
        ({"max_predictions_per_seq": 5}, "max_predictions_per_seq is 5 with masking dynamic"),
        ({"masking": "static", "max_predictions_per_seq": 17}, "17 with masking static and max_seq_length 16"),
        ({"unknown": 5}, "unknown field `unknown`"),
        ({"a\nb" + "c" * 10_000: 5}, r"unknown field `a\\nbc+\.\.\.c+`"),
        ({"splits": {"train": []}}, "splits: Object missing required field `eval`"),
        ({"splits": {"train": ["train-0"], "eval": []}}, r"splits\.train\[0\] is 'train-0': Expected `object`"),
        (listing("train-0", None), r"splits\.train\[0\]\.bytes is None: Expected `int`"),
        *((listing(name), OUTSIDE) for name in ("../train-0", "/etc/passwd", "a/../../b", "", "./train-0", "..")),
        *((listing(name), UNPRINTABLE) for name in ("train\n0", "train-0\0", "\ud800", "\x1b[2J")),
        (listing("x" * 5000), "File name too long"),
    ],
)
def test_a_damaged_manifest_is_refused(folder, changes, match):
    edit(folder, changes)
    refused(folder, match)


@pytest.mark.parametrize("name", ["vocab.txt", "train-0", "part/train-0"])
def test_symbolic_link_that_leads_out_of_the_folder_is_refused(folder, tmp_path_factory, name):
    outside = tmp_path_factory.mktemp("outside")
    for path in ("train-0", "vocab.txt"):
        shutil.copy(folder / path, outside / path)
    if name.startswith("part"):
        (folder / "part").symlink_to(outside)
        edit(folder, listing(name))
    else:
        (folder / name).unlink()
        (folder / name).symlink_to(outside / name)
    refused(folder, rf"{name}: a symbolic link leads out of ")


@pytest.mark.parametrize("name", [manifest.NAME, "vocab.txt"])
def test_pipe_folder_and_huge_file_are_refused(folder, name):
    path = folder / name
    path.unlink()
    os.mkfifo(path)
    refused(folder, rf"{name}: (Not a regular file|no such file)")
    path.unlink()
    path.mkdir()
    refused(folder, rf"{name}: (Is a directory|no such file)")
    path.rmdir()
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    refused(folder, rf"{name}: Larger than ")


def test_links_within_the_folder_are_followed_and_nothing_is_written_through_one(folder, tmp_path_factory):
    (folder / "train-0").rename(folder / "elsewhere")
    (folder / "train-0").symlink_to("elsewhere")
    outside = tmp_path_factory.mktemp("outside") / "precious"
    outside.write_text("as it was")
    found = read_manifest(str(folder))
    (folder / f".{manifest.NAME}.new").symlink_to(outside)
    write_manifest(found)
    assert outside.read_text() == "as it was"
    assert read_manifest(str(folder)) == found


@pytest.mark.parametrize("name", ["out/precious", "../precious"])
def test_files_to_replace_are_never_outside_the_folder(folder, tmp_path_factory, name):
    (folder / "out").symlink_to(tmp_path_factory.mktemp("outside"))
    edit(folder, listing(name))
    with pytest.raises(DataError, match=r"leads out of|expected a name inside"):
        manifest.listed_files(str(folder))


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (manifest.NAME, None, r"no such file; expected .*tftrain.prepare --output_dir="),
        ("train-0", None, "No such file or directory: this shard is missing"),
        ("train-0", "123", r"byte 3: the shard has 3 bytes, .*manifest.json says 5"),
        ("vocab.txt", "[PAD]\nother\n", "this is not the vocabulary that the records were made with: its SHA-256"),
        ("vocab.txt", None, "no such file"),
    ],
)
def test_a_file_that_is_missing_or_another_one_is_named(folder, name, content, match):
    (folder / name).unlink()
    if content:
        (folder / name).write_text(content)
    refused(folder, f"{re.escape(name)}: {match}")
