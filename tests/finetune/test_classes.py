"""Names of classes: those that look alike are one, and a model's classes keep their head."""

import pytest

from tftrain.files.errors import DataError
from tftrain.finetune import classes

LABELS = ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("name", ["Café", "Cafe\u0301", "Café ", "\u00a0Café", "\ufeffCafé", "Café\u200b"])
def test_names_that_look_the_same_are_one_class(name):
    assert classes.class_name(name, "x") == "Café"


@pytest.mark.parametrize("value", [None, "", " \u200b", [1], {"a": 1}])
def test_a_field_without_a_plain_value_is_no_class(value):
    with pytest.raises(DataError, match=r"x is .*; expected a label"):
        classes.class_name(value, "x")


@pytest.mark.parametrize(
    ("names", "labels", "meant"),
    [
        (("0", "2"), LABELS, {"0": "LABEL_0", "2": "LABEL_2"}),
        (("1.0", "LABEL_0"), LABELS, {"1.0": "LABEL_1", "LABEL_0": "LABEL_0"}),
        (("LABEL_1",), ("0", "1"), {"LABEL_1": "1"}),
        (("negative",), ("NEGATIVE", "POSITIVE"), {"negative": "NEGATIVE"}),
        (("pos",), ("pos", "POS"), {"pos": "pos"}),
        (("Pos",), ("pos", "POS"), {}),
        (("Café",), ("Cafe\u0301 ",), {"Café": "Cafe\u0301 "}),
        (("3", "bad", "-1"), LABELS, {}),
        (("1",), ("one", "two"), {}),
    ],
)
def test_a_name_means_the_class_of_the_model_that_it_spells(names, labels, meant):
    assert classes.meant(names, labels) == meant


@pytest.mark.parametrize(
    ("names", "labels", "rows"),
    [
        (("good", "fine", "bad"), ("bad", "fine", "good"), [2, 1, 0]),
        (("0", "1", "2"), LABELS, [0, 1, 2]),
        (("2", "1", "0"), LABELS, [2, 1, 0]),
        (("neutral", "bad", "good"), LABELS, [0, 1, 2]),
        (("bad", "good"), ("bad", "fine", "good"), None),
        (("bad", "fine", "best"), ("bad", "fine", "good"), None),
    ],
)
def test_a_trained_head_serves_the_same_classes_in_any_order(names, labels, rows):
    assert classes.head_rows(names, labels) == rows


@pytest.mark.parametrize(
    ("labels", "examples", "task", "message"),
    [
        (("0", "1", "1.0"), 90, "classification", "0, 1, 1.0 are the same number"),
        (("0.5", "0.87", "0.91"), 90, "classification", "such as 0.5; --task=regression"),
        (("a", "b", "c"), 3, "classification", "3 classes for 3 examples; --label_column"),
        (("x", "x,y"), 90, "multi_label", "'x,y' may be several; --label_separator"),
        (("0.0", "1.0"), 90, "classification", None),
        (("a", "b"), 2, "classification", None),
    ],
)
def test_odd_classes_are_said(labels, examples, task, message):
    found = list(classes.doubts(labels, examples, task))
    assert len(found) == (message is not None)
    assert (message or "") in "".join(found)
