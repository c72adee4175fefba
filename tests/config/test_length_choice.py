"""The lengths of --seq_length_buckets."""

import pytest

from tftrain.config import length_choice


@pytest.mark.parametrize(
    ("text", "lengths"), [("none", (512,)), ("128,256", (128, 256, 512)), ("128,512", (128, 512)), ("64", (64, 512))]
)
def test_the_longest_length_is_always_one_of_them(text, lengths):
    assert length_choice.problems(text, 512, 1) == []
    assert length_choice.read(text, 512) == lengths


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected none, or lengths"),
        ("128,", "expected none, or lengths"),
        ("0,128", "expected none, or lengths"),
        ("128,128", "ascending order"),
        ("128,250", "multiples of --tensor_parallel_size=4"),
    ],
)
def test_other_lengths_are_refused(text, words):
    (problem,) = length_choice.problems(text, 512, 4)
    assert words in problem.expected
