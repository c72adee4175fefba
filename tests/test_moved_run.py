"""A run carries its tokenizer: it may be moved, and serves from any folder, also without the data it was trained on."""

import shutil

import pytest

from tests.finetune import files
from tests.kit import runs
from tests.kit.programs import done
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.formats.run_folder import tokenizer_of
from tftrain.tokenizer import tokenizer_files

SMALL = ("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--eval_every=-1", "--max_steps=1")


@pytest.fixture(scope="module")
def trained(prepared, tmp_path_factory):
    """The folder of a run that was started with relative paths, and of its data."""
    folder = tmp_path_factory.mktemp("first")
    shutil.copytree(prepared, folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        argv = ["tftrain.run", *SMALL, "--micro_batch_size=2", "--data_dir=data", "--output_dir=run"]
        runs.train(runs.with_sizes(flags.parse(TrainConfig, argv).resolve(1)))
    return folder


@pytest.fixture
def moved(trained, tmp_path, monkeypatch):
    """A run that was started with relative paths, in another place; the working folder is a third one."""
    shutil.copytree(trained, tmp_path / "first")
    (tmp_path / "second").mkdir()
    shutil.move(tmp_path / "first/run", tmp_path / "second/run")
    monkeypatch.chdir(tmp_path / "second")
    return tmp_path


def test_it_is_resumed_with_an_evaluation_from_any_folder(moved):
    done("run", f"--output_dir={moved}/second/run --max_steps=2 --eval_every=2 --eval_examples=8")


@pytest.mark.nightly
def test_it_is_evaluated_and_then_predicted_exported_and_fine_tuned_without_its_data(moved):
    done("run", f"--output_dir={moved}/second/run --mode=evaluate")
    own = tokenizer_files.read(moved / "second/run/tokenizer")
    assert own == tokenizer_of(str(moved / "first/data"))
    shutil.rmtree(moved / "first")
    done("predict", "--output_dir=run [MASK]")
    done("export", "--output_dir=run --to=exported")
    files.write_classes(moved / "train.tsv", 30, seed=1)
    given = f"--init_checkpoint=tftrain:{moved}/second/run --train_file={moved}/train.tsv --output_dir={moved}/classes"
    done("run", f"--task=classification {given} --micro_batch_size=2 --max_steps=1")
    done("predict", f"--output_dir={moved}/classes text")


@pytest.mark.nightly
def test_a_run_that_is_started_over_has_the_tokenizer_of_its_new_data(moved, prepare_config):
    from tftrain.prepare.preparation import prepare

    prepare(prepare_config(moved / "other", vocab_file=None, vocab_size=60))
    given = " ".join((*SMALL, "--micro_batch_size=2", f"--data_dir={moved}/other", "--resume=none"))
    done("run", f"{given} --output_dir={moved}/second/run")
    assert tokenizer_files.read(moved / "second/run/tokenizer") == tokenizer_of(str(moved / "other"))
    assert tokenizer_files.read(moved / "second/run/tokenizer_1") == tokenizer_of(str(moved / "first/data"))
