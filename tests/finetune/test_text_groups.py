"""Samples of embeddings: the columns, lists and numbers that tables have, and what is refused."""

import json

import numpy as np
import pytest

from tftrain.config.fine_tuning import FineTuningConfig
from tftrain.files.errors import DataError
from tftrain.finetune import examples, text_groups
from tftrain.finetune.tables import FileNotes, TextExample


def read(folder, rows, loss="in_batch", split="train", notes=None, **flags):
    path = folder / "x.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = FineTuningConfig(train_file=str(path), eval_file=str(path), embedding_loss=loss, **flags)
    found = examples.read_examples(settings, "embedding", split, notes)
    return [(each.texts, each.label) for each in found]


ASKED, PAIR = {"query": "a", "passage": "b"}, {"text": "a", "text_pair": "b"}
QUESTION = {"question": "a", "answer": "b", "negative_1": "c", "negative_2": "d", "hard_negatives": None}


@pytest.mark.parametrize(
    ("row", "loss", "flags", "texts", "label"),
    [
        ({"anchor": "a", "positive": "b"}, "in_batch", {}, "ab", None),
        (QUESTION, "triplet", {}, "abcd", None),
        ({"query": "a", "document": "b", "x": ["c", "", "d"]}, "in_batch", {"negative_columns": ("x",)}, "abcd", None),
        ({**PAIR, "n": "c", "m": "d"}, "in_batch", {"negative_columns": ("m,n",)}, "abdc", None),
        ({**PAIR, "negatives": ["c", "d"]}, "in_batch", {"negatives": 1}, "abc", None),
        ({**PAIR, "negatives": ["c", "d"]}, "in_batch", {"negatives": 0}, "ab", None),
        ({**ASKED, "negatives": ["c", "", "d"], "score": [0.5, 1, 2, 3]}, "kl", {}, "abcd", (0.5, 1, 3)),
        ({**ASKED, "negatives": ["c", "d"], "label": "[0.5, 1, 2]"}, "kl", {"negatives": 1}, "abc", (0.5, 1)),
        ({**ASKED, "negative": "c", "label": 0.5}, "margin_mse", {}, "abc", (0, -0.5)),
    ],
)
def test_a_row_has_texts_and_labels(tmp_path, row, loss, flags, texts, label):
    assert read(tmp_path, [row], loss, **flags) == [(tuple(texts), label)]


def test_each_partner_is_a_sample(tmp_path):
    row = {"query": "a", "pos": ["b", "c"], "neg": ["d"]}
    assert read(tmp_path, [row], "symmetric") == [(("a", "b", "d"), None), (("a", "c", "d"), None)]


TRIPLE = {**PAIR, "negative": "c"}


@pytest.mark.parametrize(
    ("rows", "loss", "message"),
    [
        ([{"text": " ", "text_pair": "b"}], "in_batch", "text is ' ' and text_pair is 'b'; expected a text in each"),
        ([PAIR, {"text": "a", "text_pair": ""}], "in_batch", "line 2: text is 'a' and text_pair is ''; expected a"),
        ([{"text": "a", "text_pair": []}], "in_batch", "line 1: text is 'a' and text_pair is []; expected"),
        ([{"text": "a", "text_pair": None}], "in_batch", "line 1: text is 'a' and text_pair is None; expected"),
        ([{"text": ["a", "c"], "text_pair": "b"}], "in_batch", "line 1: text is ['a', 'c'] and text_pair is 'b'"),
        ([{**PAIR, "negative": [7]}], "in_batch", "line 1: negative is 7; expected a text"),
        ([{**PAIR, "negative": ["c", "b "]}], "in_batch", "line 1: 'b' is both a partner and a hard negative"),
        ([PAIR], "triplet", "--negative_columns is not given; expected one of its columns text, text_pair"),
        ([TRIPLE, {**PAIR, "negative": ""}], "triplet", "line 2: no hard negative; expected one with --embedding_loss"),
        ([PAIR], "cosent", "--label_column is not given; expected one of its columns text, text_pair"),
        ([TRIPLE], "kl", "--label_column is not given; expected one of its columns text, text_pair, negative"),
        ([{**PAIR, "score": 1}] * 2, "cosent", "each label is 1.0; expected numbers that say how alike the texts are"),
        ([{**PAIR, "score": 5}], "cosine", "line 1: score is 5.0; expected -1 to 1 with --embedding_loss=cosine"),
        ([{**PAIR, "score": "high"}], "cosent", "line 1: score is 'high'; expected a number"),
        ([{**TRIPLE, "score": [1, 2, 3]}], "kl", "1 partners and 3 scores; expected one partner and 2 scores"),
        ([{**TRIPLE, "score": 1}], "kl", "1 partners and 1 scores; expected one partner and 2 scores"),
        ([{**TRIPLE, "score": "[1, x]"}], "kl", "expected a number"),
        ([{**TRIPLE, "text_pair": ["b", "d"], "score": [1, 2]}], "margin_mse", "2 partners and 2 scores; expected one"),
    ],
)
def test_rows_that_a_loss_can_not_use_are_refused(tmp_path, rows, loss, message):
    with pytest.raises(DataError) as error:
        read(tmp_path, rows, loss)
    assert message in str(error.value)
    if "line 2" in message:
        assert len(read(tmp_path, rows, loss, skip_bad_rows=True)) == 1


def test_samples_with_fewer_hard_negatives_are_filled(tmp_path):
    rows = [{**PAIR, "negatives": list("cde"[:count]), "score": [4, 3, 2, 1][: count + 1]} for count in (1, 3, 2)]
    notes = FileNotes()
    expected = [("abc", (4, 3)), ("abcde", (4, 3, 2, 1)), ("abcd", (4, 3, 2))]
    found = read(tmp_path, rows, "margin_mse", notes=notes)
    assert found == [((*texts, *[""] * (5 - len(texts))), label) for texts, label in expected]
    features = text_groups.features([TextExample("", *each) for each in found])
    np.testing.assert_array_equal(features["labels"], [(4, 3, 0, 0), (4, 3, 2, 1), (4, 3, 2, 0)])
    np.testing.assert_array_equal(features["text_ids"] == 0, [[0, 0, 0, 1, 1], [0] * 5, [0, 0, 0, 0, 1]])
    assert "2 of 3 samples have fewer than 3 hard negatives" in notes[-1][1]
    assert len(read(tmp_path, rows, "margin_mse", negatives=1)[0][0]) == 3
    assert len(read(tmp_path, rows, "margin_mse", "eval", negatives=1)[0][0]) == 5  # The flag is of training samples.


def test_numbers_of_pairs_stay_with_losses_that_take_them(tmp_path):
    rows = [{**PAIR, "negative": "c", "score": number} for number in (0, 1, 0.5)]
    for loss in ("cosent", "cosine"):
        assert read(tmp_path, rows, loss) == [(("a", "b"), number) for number in (0, 1, 0.5)]
    assert read(tmp_path, rows) == [(("a", "b", "c"), None)] * 2


def test_equal_texts_have_equal_ids():
    found = [TextExample("", ("a", "b", ""), 1.0), TextExample("", (" b", "c", "a"), 2.0)]
    features = text_groups.features(found)
    ids = features["text_ids"]
    assert ids.dtype == np.int64
    assert ids[0, 2] == 0
    assert (ids[0, 1], ids[0, 0]) == (ids[1, 0], ids[1, 2])
    assert len(set(ids.reshape(-1))) == 4
    np.testing.assert_array_equal(features["labels"], [1, 2])
    assert "labels" not in text_groups.features([each._replace(label=None) for each in found])
