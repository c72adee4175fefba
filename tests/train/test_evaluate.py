"""Evaluation: the same examples and the same numbers in every layout; the unigram entropy."""

import numpy as np
import pytest

from tests.distributed import run_ranks
from tests.labelled import files
from tests.train.evaluations import LAYOUTS
from tftrain.train.held_out import entropy


def test_entropy_in_nats():
    assert entropy(np.array([5, 5, 0, 5, 5])) == np.log(4)
    assert entropy(np.array([0, 7, 0])) == 0


@pytest.mark.multirank
@pytest.mark.parametrize(
    "layout", [name if name == "data" else pytest.param(name, marks=pytest.mark.nightly) for name in LAYOUTS]
)
def test_held_out_losses_do_not_depend_on_the_layout_and_batch_sizes(prepared, prepared_packed, tmp_path, layout):
    vocabulary = files.write_vocabulary(tmp_path / "vocabulary")
    files.write_classes(tmp_path / "classes.tsv", 19, seed=3)
    labelled = [f"--{split}_file={tmp_path}/classes.tsv" for split in ("train", "eval")]
    given = {
        "synthetic": ["--synthetic_data", "--vocab_size=101", "--eval_examples=23"],
        "buckets": [f"--data_dir={prepared}", "--seq_length_buckets=8,16"],
        "packed": [f"--data_dir={prepared_packed}", "--eval_examples=9"],
        "classes": ["--task=classification", *labelled, f"--tokenizer_dir={vocabulary}"],
    }
    for name, lines in given.items():
        (tmp_path / name).write_text("\n".join(lines))
    output = run_ranks(2, ["-m", "tests.train.evaluations", layout, *(str(tmp_path / name) for name in given)])
    assert output.count(" agree") == len(given)
    for part in ("synthetic: 23 of 1024", "classes: 19 of 19"):
        assert part in output
