"""`python -m tftrain.prepare`: the same bytes for any number of workers, whole or nothing, one line for an error."""

import json
import os
import signal
import subprocess
import sys
import time

import msgspec
import numpy as np
import pytest
import tensorflow as tf

from tests.kit import corpora
from tests.kit.waiting import wait_until
from tftrain.data.example import decode
from tftrain.data.manifest import read_manifest
from tftrain.data.records import scan
from tftrain.files.errors import DataError
from tftrain.prepare import builtin_corpus, corpus_chunks, preparation, workers
from tftrain.prepare.preparation import prepare
from tftrain.prepare.spool import Spool
from tftrain.tokenizer.vocabulary import read_vocabulary


def contents(folder):
    return {name: open(os.path.join(folder, name), "rb").read() for name in sorted(os.listdir(folder))}


def examples(folder, split="train"):
    manifest = read_manifest(str(folder))
    return [
        decode(payload, "")
        for shard in manifest.splits[split]
        for payload in tf.data.TFRecordDataset(manifest.path(shard.file)).as_numpy_iterator()
    ]


# Without static masks, workers load no TensorFlow.
PAIRS = {"tokenizer_type": "bpe", "vocab_size": 400}
WORDS = {"vocab_size": 100, "deduplicate": "near", "masking": "static", "whole_word_masking": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [PAIRS, *(pytest.param(each, marks=pytest.mark.nightly) for each in (WORDS, PAIRS | {"objective": "causal"}))],
    ids=str,
)
def test_output_is_the_same_for_any_number_of_workers(prepare_config, corpus, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(corpus_chunks, "_TASK_BYTES", 4000)
    # Two files and a part of a third one repeat what others have.
    for number, seed in enumerate((0, 1, 0, 2)):
        (tmp_path / f"text{number}").write_text(corpora.text(40 if number < 3 else 60, seed=seed))
    if "objective" not in changes:
        changes = {"dupe_factor": 2, **changes}
    inputs = (str(tmp_path / "text*"), str(corpus / "*.txt"))
    for count in (1, 2):
        folder = tmp_path / str(count)
        given = {"input_files": inputs, "vocab_file": None, "heldout_window": 5, "num_workers": count, **changes}
        prepare(prepare_config(folder, **given))
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    dropped = read_manifest(str(tmp_path / "1")).tokens_dropped
    is_near = changes.get("deduplicate") == "near"
    assert dropped["near_duplicate_document" if is_near else "duplicate_paragraph"] > 10_000
    assert dropped["shared_with_training"] > (0 if is_near else 100)


def test_manifest_says_what_is_there(prepared):
    manifest = read_manifest(prepared)
    with open(os.path.join(prepared, "manifest.json"), encoding="utf-8") as file:
        assert json.load(file)["format"] == 2
    assert manifest.documents == 120
    assert len(manifest.splits["train"]) > 1
    vocabulary = read_vocabulary(manifest.path(manifest.vocab_file), "wordpiece")
    assert len(vocabulary) == manifest.vocab_size
    for split, shards in manifest.splits.items():
        assert manifest.examples(split) == len(examples(prepared, split))
        for shard in shards:
            path = manifest.path(shard.file)
            np.testing.assert_array_equal(np.load(path + ".index"), scan(path))
    listed = {shard.file for shards in manifest.splits.values() for shard in shards}
    assert set(os.listdir(prepared)) == {"manifest.json", "vocab.txt", *listed, *(name + ".index" for name in listed)}
    # A word a token, but for four words in two or three pieces and the full stops.
    assert 120 * 12 * 9 < manifest.tokens_read < 120 * 12 * 14


def test_static_records_have_the_standard_features(prepared_static):
    vocabulary = read_vocabulary(os.path.join(prepared_static, "vocab.txt"), "wordpiece")
    for record in examples(prepared_static, "eval"):
        sizes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), 32) | {"next_sentence_labels": 1}
        sizes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), 5)
        assert {name: len(values) for name, values in record.items()} == sizes
        size = sum(record["input_mask"])
        assert record["input_ids"][0] == vocabulary.id("[CLS]")
        assert record["input_ids"][size - 1] == vocabulary.id("[SEP]")
        assert not any(record["input_ids"][size:])
        separator = record["input_ids"].index(vocabulary.id("[SEP]"))
        assert record["segment_ids"] == [0] * (separator + 1) + [1] * (size - separator - 1) + [0] * (32 - size)


def test_seed_changes_split_and_pairs(prepare_config, prepared, tmp_path):
    prepare(prepare_config(tmp_path / "out", seed=2))
    assert read_manifest(str(tmp_path / "out")).documents == read_manifest(prepared).documents
    assert examples(tmp_path / "out", "eval") != examples(prepared, "eval")


def test_sentencepiece_end_to_end(prepare_config, tmp_path):
    made = prepare(prepare_config(tmp_path / "a", tokenizer_type="sentencepiece", vocab_file=None, vocab_size=64))
    assert (made.vocab_size, made.tokenizer_file, made.normalization) == (64, "sentencepiece.model", "nfkc")
    vocabulary = read_vocabulary(made.path("vocab.txt"), "sentencepiece")
    ids = examples(tmp_path / "a", "eval")[0]["input_ids"]
    text = "".join(vocabulary.tokens[number] for number in ids)
    words = text.replace("[CLS]", "").replace("[SEP]", "").replace(".", "").strip("\u2581").split("\u2581")
    assert np.mean([word in corpora.WORDS for word in words]) > 0.8
    changes = {"tokenizer_type": "sentencepiece", "vocab_file": made.path("sentencepiece.model")}
    again = prepare(prepare_config(tmp_path / "b", **changes))
    assert msgspec.structs.replace(again, folder=made.folder) == made


def test_builtin_corpus(prepare_config, tmp_path, monkeypatch):
    files = builtin_corpus.list_files()[:400]
    monkeypatch.setattr(builtin_corpus, "list_files", lambda: files)
    made = prepare(prepare_config(tmp_path / "out", input_files=(), builtin_corpus=True, builtin_corpus_mb=0.1))
    assert made.documents > 10
    assert made.tokens_read > 10_000


def test_documents_are_spread_evenly_over_chunks(tmp_path):
    spool = Spool(str(tmp_path), 1, 0.1, 4, 2)
    counts = spool.add((number, ["text"], None) for number in range(4000))
    sizes = [len(spool.read(chunk)) for chunk in spool.chunks()]
    assert sum(sizes) == 4000 == sum(counts.values())
    # Five standard deviations of a binomial count.
    for size, expected in zip(sizes, [900] * 4 + [200] * 2, strict=True):
        assert abs(size - expected) < 5 * np.sqrt(expected)


def refused(config, match):
    with pytest.raises(DataError, match=match) as caught:
        prepare(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("documents", [2, 3, 7, 50])
def test_a_small_corpus_has_a_document_in_each_split(prepare_config, tmp_path, documents):
    manifest = prepare(prepare_config(tmp_path / "out", corpora.text(documents), eval_fraction=0.001))
    assert manifest.examples("train") > 0
    assert manifest.examples("eval") > 0
    assert manifest.documents == documents


def test_error_in_a_worker_is_the_same_line(prepare_config, tmp_path):
    for number in range(4):
        (tmp_path / f"text{number}").write_bytes(b"good\n" if number != 2 else b"text \xff\n")
    refused(prepare_config(tmp_path / "out", input_files=f"{tmp_path}/text*", num_workers=2), "text2: byte 5: not UTF")


def test_a_preparation_is_replaced_only_when_told_and_as_a_whole(prepare_config, tmp_path):
    folder, stray = tmp_path / "out", "train-00000-of-00001.tfrecord"
    made = prepare(prepare_config(folder))
    before = contents(folder)
    refused(prepare_config(folder), "expected --overwrite")
    (tmp_path / "text").write_bytes(b"good\n\n" * 50 + b"\xff")
    refused(prepare_config(folder, overwrite=True, input_files=str(tmp_path / "text")), "not UTF-8")
    assert contents(folder) == before
    (folder / stray).write_bytes(b"mine")
    refused(prepare_config(folder, overwrite=True, shard_mb=1.0), f"{stray} is in the way")
    assert contents(folder) == before | {stray: b"mine"}
    # Files beside it survive, and a damaged preparation can be replaced too.
    (folder / stray).rename(folder / "mine.tfrecord")
    os.remove(folder / made.splits["train"][0].file)
    made = prepare(prepare_config(folder, overwrite=True, shard_mb=1.0))
    listed = [shard.file for shards in made.splits.values() for shard in shards]
    kept = contents(folder)
    assert set(kept) == {"manifest.json", "vocab.txt", "mine.tfrecord", *listed, *(name + ".index" for name in listed)}
    assert kept["mine.tfrecord"] == b"mine"


def test_a_folder_with_other_files_is_never_touched(prepare_config, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    refused(prepare_config(tmp_path, overwrite=True), r"holds other files \(thesis.txt\)")
    assert contents(tmp_path) == {"thesis.txt": b"mine"}


@pytest.mark.parametrize(
    "content",
    [
        "{",
        '{"format_version": 1, "sha256": {"state.safetensors": "00"}, "step": 5}',
        '{"format": 1, "splits": {"train": [{"file": "../x"}], "eval": []}, "vocab_file": "v"}',
    ],
)
def test_a_manifest_of_something_else_is_refused(prepare_config, tmp_path, content):
    (tmp_path / "manifest.json").write_text(content)
    (tmp_path / "state.tfrecord").write_text("mine")
    before = contents(tmp_path)
    refused(prepare_config(tmp_path, overwrite=True), "its manifest.json is not one of tftrain.prepare's")
    assert contents(tmp_path) == before


def test_interrupt_while_files_are_moved_comes_too_late(prepare_config, tmp_path, monkeypatch):
    write = preparation.manifest.write_manifest

    def interrupted(made):
        os.kill(os.getpid(), signal.SIGINT)
        write(made)

    monkeypatch.setattr(preparation.manifest, "write_manifest", interrupted)
    before = signal.getsignal(signal.SIGINT)
    prepare(prepare_config(tmp_path / "out"))
    assert signal.getsignal(signal.SIGINT) is before
    assert read_manifest(str(tmp_path / "out")).examples("train")


def test_chunks_of_one_document_are_said(prepare_config, tmp_path, capsys):
    prepare(prepare_config(tmp_path / "out", corpora.text(1), eval_fraction=0.0, shard_mb=1.0))
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "chunks" in line]
    assert ": 1 of 1 chunks hold a single document: their pairs are all consecutive; use more documents" in line
    assert {label for record in examples(tmp_path / "out") for label in record["next_sentence_labels"]} == {0}


def test_a_worker_that_is_killed_is_one_clear_error():
    with pytest.raises(DataError, match="a worker process died in the stage 'count words'"), workers.Workers(2) as pool:
        list(pool.run("count words", os._exit, [(1,), (2,), (3,)]))


def has_processes(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_an_interrupt_ends_the_workers_and_leaves_nothing(tmp_path):
    (tmp_path / "text").write_text(corpora.text(3000))
    flags = (f"--input_files={tmp_path}/text", f"--output_dir={tmp_path}/out", "--num_workers=2", "--vocab_size=100")
    command = [sys.executable, "-m", "tftrain.prepare", *flags, "--shard_mb=0.01"]
    # A shell's background job, such as this test perhaps, hands on that it does not listen to interrupts.
    settings = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL), "start_new_session": True}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **settings)
    try:
        for line in process.stdout:
            if "read documents" in line:
                break
        time.sleep(1)
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, error
    assert error.strip().splitlines()[-1].startswith("prepare: interrupted")
    assert not (tmp_path / "out").exists()
    wait_until(lambda: not has_processes(process.pid), 20)
