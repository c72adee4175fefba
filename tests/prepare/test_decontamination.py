"""Held-out text has no window of N tokens that training has, and loses nothing else."""

import logging
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import corpora
from tests.prepare.test_prepare import examples, refused
from tftrain.data.manifest import read_manifest
from tftrain.prepare.decontamination import among, cut, window_hashes
from tftrain.prepare.objective import TokenizedText
from tftrain.prepare.preparation import prepare

VOCABULARY = 4
TEXTS = st.lists(st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=9), max_size=4), max_size=5)


def joined(documents):
    return TokenizedText.join([[np.array(passage, np.int32) for passage in document] for document in documents])


def documents_of(text):
    """Returns each document as a list of passages."""
    edges = text.passages.tolist()
    return [
        [text.tokens[first:last].tolist() for first, last in pairwise(edges) if begin <= first < end]
        for begin, end in pairwise(text.documents.tolist())
    ]


def expected(documents, size, windows):
    """Returns the documents that are left, by brute force."""
    left = []
    for document in documents:
        tokens = [(token, place == 0) for passage in document for place, token in enumerate(passage)]
        covered = [False] * len(tokens)
        for place in range(len(tokens) - size + 1):
            if tuple(token for token, _ in tokens[place : place + size]) in windows:
                covered[place : place + size] = [True] * size
        runs, run = [], []
        for token, is_covered in [*zip(tokens, covered, strict=True), (None, True)]:
            if not is_covered:
                run.append(token)
            elif run:
                runs.append(run)
                run = []
        for run in runs:
            if any(covered) and len(run) < size:
                continue
            passages = []
            for token, is_first in run:
                if is_first or not passages:
                    passages.append([])
                passages[-1].append(token)
            left.append(passages)
    return left


def windows_of(documents, size):
    """Returns the windows of all documents."""
    flat = [[token for passage in document for token in passage] for document in documents]
    return [tuple(tokens[place : place + size]) for tokens in flat for place in range(len(tokens) - size + 1)]


@given(held_out=TEXTS, training=TEXTS, size=st.integers(1, 5))
def test_what_is_left_is_what_brute_force_leaves(held_out, training, size):
    windows = windows_of(held_out, size)
    shared = {*windows} & {*windows_of(training, size)}
    _, hashes = window_hashes(joined(training), size, VOCABULARY)
    found, counts = cut(joined(held_out), size, VOCABULARY, np.unique(hashes))
    assert documents_of(found) == expected(documents_of(joined(held_out)), size, shared)
    share = sum(window in shared for window in windows)
    assert counts == {"windows": len(windows), "shared_windows": share, "shared_windows_left": 0}


def test_different_windows_have_different_hashes():
    text = joined([[np.random.default_rng(0).integers(0, 30000, 20_000)]])
    for size in (2, 13):
        _, hashes = window_hashes(text, size, 30000)
        assert len(np.unique(hashes)) == len({*windows_of([[text.tokens.tolist()]], size)})
    assert not among(hashes, np.zeros(0, np.uint64)).any()


REPEATED = "the model reads text and learns which word is missing from its data while batches pass through every layer"


@pytest.fixture(scope="module")
def repetitive(tmp_path_factory):
    """Documents with one sentence in common, inside paragraphs that differ."""
    folder = tmp_path_factory.mktemp("repetitive")
    for number in range(60):
        parts = corpora.text(1, seed=number, sentences=6).split("\n")
        parts[2] += f" {REPEATED} {parts[3]}"
        (folder / f"{number}.txt").write_text("\n".join(parts))
    return str(folder / "*.txt")


@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_no_held_out_window_is_in_training(prepare_config, tmp_path, caplog, repetitive, objective):
    caplog.set_level(logging.INFO)
    changes = {"input_files": repetitive, "eval_fraction": 0.3, "min_tokens_used": 0, "objective": objective}
    manifests = [prepare(prepare_config(tmp_path / str(size), heldout_window=size, **changes)) for size in (13, 0)]
    new, old = manifests
    assert new.splits["train"] == old.splits["train"]
    dropped = new.tokens_dropped["shared_with_training"]
    assert dropped > 15 * 10
    assert "shared_with_training" not in old.tokens_dropped
    assert new.tokens_read == old.tokens_read == new.tokens_in_examples + sum(new.tokens_dropped.values())
    heads = ("held-out windows", "  that training", "  of them")
    rows = [line.split() for line in caplog.messages if line.startswith(heads)]
    assert len(rows) == 3
    assert int(rows[0][-1].replace(",", "")) > int(rows[1][-2].replace(",", "")) > 50
    assert rows[2][-2:] == ["0", "0.00%"]
    held_out, training = windows_in(new)
    assert held_out
    assert not held_out & training


def windows_in(manifest):
    """Returns the windows of 13 tokens of the held-out and the training records, without special tokens inside."""
    windows = []
    for split in ("eval", "train"):
        ids = [record["input_ids"] for record in examples(manifest.folder, split)]
        found = (window for row in ids for window in zip(*(row[place:] for place in range(13)), strict=False))
        windows.append({window for window in found if min(window) > 4})
    return windows


def test_held_out_text_that_is_all_in_training_is_named(prepare_config, tmp_path):
    changes = {"text": "\n\n".join([REPEATED + "."] * 40), "deduplicate": "none"}
    words = "the held-out split has no example.* of its tokens are cut out, as training has them: --heldout_window=0"
    refused(prepare_config(tmp_path / "out", **changes), words)
    prepare(prepare_config(tmp_path / "out", heldout_window=0, **changes))
    assert read_manifest(str(tmp_path / "out")).examples("eval")
