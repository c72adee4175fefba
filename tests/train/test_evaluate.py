"""Evaluation: the same examples and the same numbers in every layout; the unigram entropy."""

import numpy as np
import pytest

from tests.finetune import files
from tests.kit.ranks import run_ranks
from tests.train.evaluations import LAYOUTS
from tftrain.state.run_state import Evaluation
from tftrain.tasks.bert_pretraining import BertPretraining
from tftrain.train import evaluate
from tftrain.train.held_out import entropy


def test_entropy_in_nats():
    assert entropy(np.array([5, 5, 0, 5, 5])) == np.log(4)
    assert entropy(np.array([0, 7, 0])) == 0


def test_sources_keep_their_names_and_long_ones_their_distance_to_the_value():
    means = {"mlm_loss": 3.0, "mlm_accuracy": 0.5, "nsp_accuracy": 0.5}
    result = Evaluation(means, None, 9, 9, {"mlm_loss/common_crawl_2024": 3.5, "mlm_loss/a": 2.5})
    lines = evaluate.evaluation_lines(BertPretraining, "step 3", result).splitlines()
    assert "mlm loss/common_crawl_2024 3.5000" in lines
    assert "mlm loss/a              2.5000" in lines


INPUTS = ("synthetic", "buckets", "packed", "classes", "corpus", "candidates")


@pytest.mark.multirank
@pytest.mark.parametrize(
    ("layout", "inputs"),
    [
        ("shards", ("synthetic", "buckets", "corpus")),
        *(pytest.param(name, INPUTS, marks=pytest.mark.nightly) for name in LAYOUTS),
    ],
)
def test_held_out_losses_do_not_depend_on_the_layout_and_batch_sizes(
    prepared, prepared_packed, tmp_path, layout, inputs
):
    vocabulary = files.write_vocabulary(tmp_path / "vocabulary")
    files.write_classes(tmp_path / "classes.tsv", 19, seed=3)
    labelled = [f"--{split}_file={tmp_path}/classes.tsv" for split in ("train", "eval")]
    (tmp_path / "pairs.tsv").write_text("text\ttext_pair\nkey\tlist\n")
    corpus = files.write_corpus(tmp_path, documents=700, queries=9)
    given = {
        "synthetic": ["--synthetic_data", "--vocab_size=101", "--eval_examples=23"],
        "buckets": [f"--data_dir={prepared}", "--seq_length_buckets=8,16"],
        "packed": [f"--data_dir={prepared_packed}", "--eval_examples=9"],
        "classes": ["--task=classification", *labelled, f"--tokenizer_dir={vocabulary}"],
        # Vectors of more than one part.
        "corpus": ["--task=embedding", f"--train_file={tmp_path}/pairs.tsv", *corpus, f"--tokenizer_dir={vocabulary}"],
        "candidates": ["--task=classification", *labelled[:1], *corpus, f"--tokenizer_dir={vocabulary}"],
    }
    for name in inputs:
        (tmp_path / name).write_text("\n".join(given[name]))
    output = run_ranks(2, ["-m", "tests.train.evaluations", layout, *(str(tmp_path / name) for name in inputs)])
    assert output.count(" agree") == len(inputs)
    assert "synthetic: 23 of 1024" in output
    assert ("classes: 19 of 19" in output) == ("classes" in inputs)
