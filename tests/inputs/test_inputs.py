"""What a run reads is opened once, and is the same in any working folder."""

import pytest

from tests.finetune import files
from tests.kit.runs import SMALL
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.data import prepared as prepared_data
from tftrain.data.source import open_source
from tftrain.finetune import examples
from tftrain.inputs.inputs import Inputs


def config(*args):
    base = [flag for flag in SMALL if not flag.startswith(("--synthetic_data", "--vocab_size", "--max_seq_length"))]
    return flags.parse(TrainConfig, ["run", *base, "--output_dir=x", *args])


@pytest.fixture
def counted(monkeypatch):
    """Counts the calls of what reads manifests and labelled files."""
    calls = []

    def count(module, name):
        read = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **more: calls.append(name) or read(*args, **more))

    count(prepared_data, "read_manifest")
    count(examples, "read_table")
    return calls


def test_a_manifest_is_read_once_from_the_checks_to_the_batches(prepared, counted):
    given = config(f"--data_dir={prepared}")
    inputs = Inputs.open(given)
    assert inputs.problems() == []
    inputs, whole = inputs.resolved(given.resolve(1))
    assert (whole.model.vocab_size, whole.data.max_seq_length) == (len(inputs.tokenizer.vocabulary), 32)
    assert inputs.identity
    assert inputs.data[0].has_held_out
    for split in ("train", "eval"):
        open_source(inputs.data[0], split, 1)
    assert counted == ["read_manifest"]


@pytest.mark.parametrize(
    ("flags", "row"),
    [([], None), (["--model_family=roberta"], 1), (["--model_family=roberta", "--first_position=4"], 4)],
)
def test_positions_begin_after_the_row_of_the_padding_if_a_family_counts_so(prepared, flags, row):
    given = config(f"--data_dir={prepared}", "--next_sentence", *flags)
    inputs = Inputs.open(given)
    assert (inputs.problems(), inputs.tokenizer.vocabulary.roles.padding) == ([], 0)
    assert inputs.with_sizes(given).model.first_position == row


def test_a_labelled_file_is_read_once_and_holds_in_another_folder(tmp_path, counted, monkeypatch):
    files.write_vocabulary(tmp_path)
    files.write_classes(tmp_path / "train.tsv", 10, seed=1)
    args = ("--task=classification", "--check_memory=false", f"--tokenizer_dir={tmp_path}")
    given = config(*args, f"--train_file={tmp_path / 'train.tsv'}")
    inputs = Inputs.open(given)
    assert inputs.problems() == []
    inputs, whole = inputs.resolved(given.resolve(1))
    assert whole.model.labels == inputs.data[0].labels
    assert len(inputs.data[0].examples("train")) == 10
    assert counted == ["read_table"]
    monkeypatch.chdir(tmp_path)
    relative = config(*args, "--train_file=train.tsv")
    inputs, _ = Inputs.open(relative).resolved(relative.resolve(1))
    monkeypatch.chdir("/")
    assert len(inputs.data[0].examples("train")) == 10
