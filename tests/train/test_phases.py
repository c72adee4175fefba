"""A run in phases is the runs that one would make by hand, each from the last one's checkpoint; it resumes in any."""

import dataclasses
import json
import logging
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests.checkpoint import states
from tests.kit import runs
from tests.kit.ranks import run_ranks
from tests.kit.runs import losses, read_rows, rows
from tftrain import run
from tftrain.checkpoint import folder as checkpoints
from tftrain.checkpoint.errors import CheckpointError
from tftrain.config.fields import ConfigError, changed
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch
from tftrain.parallel.mesh import Mesh
from tftrain.prepare.preparation import prepare
from tftrain.state import resume_compatibility
from tftrain.train import build, phases

MODEL = (
    *("--num_hidden_layers=1", "--hidden_size=32", "--num_attention_heads=2", "--learning_rate=0.01"),
    *("--max_steps=6", "--warmup_steps=2", "--log_every=1", "--eval_every=2", "--eval_examples=8"),
)
# Three updates of 8 samples, then updates of 4.
SIZES, LENGTHS = [8, 8, 8, 4, 4, 4], [32, 32, 32, 64, 64, 64]
FIRST = {"masked_lm_prob": 0.3, "global_batch_size": 8, "micro_batch_size": 4}
SECOND = {"masked_lm_prob": 0.15, "global_batch_size": 4, "micro_batch_size": 4}


@pytest.fixture(scope="module")
def folders(prepared, prepare_config, tmp_path_factory):
    """Data of 32 and of 64 tokens."""
    folder = tmp_path_factory.mktemp("prepared") / "longer"
    prepare(prepare_config(folder, max_seq_length=64))
    return prepared, str(folder)


def configured(*args):
    return runs.configured(*args, base=MODEL)


def train(*args):
    return runs.train_alone(*args, base=MODEL)


def words(values, form="{}={}"):
    return [form.format(name, value) for name, value in values.items()]


def by_hand(values):
    return words(values, "--{}={}")


@pytest.fixture(scope="module")
def lines(folders):
    first, second = ({"data_dir": folder} | own for folder, own in zip(folders, (FIRST, SECOND), strict=True))
    return "; ".join([" ".join(["until_samples=20", *words(first)]), " ".join(words(second))])


@pytest.fixture(scope="module")
def messages():
    """What the room of the loop says, from the first use on."""
    found, handler, logger = [], logging.Handler(), logging.getLogger("tftrain.train")
    handler.emit = lambda record: found.append(record.getMessage())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield found
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


@pytest.fixture(scope="module")
def phased(lines, messages, tmp_path_factory):
    """The folder of a run that saves after step 5, in the second phase; its batches are ahead, as on a GPU."""
    folder = tmp_path_factory.mktemp("phased")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(phases, "device_of_batches", lambda _: "CPU:0")
        train(f"--phases={lines}", f"--output_dir={folder}", "--checkpoint_every=5")
    return folder


def test_losses_are_those_of_two_runs_by_hand(phased, folders, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    settings = f"--data_dir={folders[0]}", *by_hand(FIRST), f"--output_dir={first}", "--checkpoint_every=3"
    train(*settings)
    changes = "--change_on_resume=masked_lm_prob,global_batch_size,max_seq_length,max_predictions_per_seq"
    begin = checkpoints.find(first)[0]
    settings = f"--data_dir={folders[1]}", *by_hand(SECOND), f"--output_dir={second}", f"--resume={begin}", changes
    train(*settings)
    assert losses(phased) == losses(first)[:3] + losses(second)
    held_out = [[row["eval_mlm_loss"] for row in rows(folder)[1]] for folder in (phased, first, second)]
    assert held_out[0] == held_out[1][:1] + held_out[2]


def test_rows_count_samples_and_tokens_and_the_first_step_of_a_phase_compiles(phased):
    train, _ = rows(phased)
    assert [row["global_batch_size"] for row in train] == SIZES
    assert [row["phase"] for row in train] == [1, 1, 1, 2, 2, 2]
    assert [row["max_seq_length"] for row in train] == LENGTHS
    assert [row["consumed_samples"] for row in train] == np.cumsum(SIZES).tolist()
    assert [row["consumed_tokens"] for row in train] == np.cumsum(np.multiply(SIZES, LENGTHS)).tolist()
    every = read_rows(phased)
    assert [row["step"] for row in every if "memory_peak_bytes" in row] == [2, 5]


def test_the_log_says_when_which_phase_begins(phased, messages, folders):
    first = f"phase 1 of 2: steps 1 to 3, from sample 0: data_dir={folders[0]}, max_seq_length=32, "
    second = f"phase 2 of 2: steps 4 to 6, from sample 24: data_dir={folders[1]}, max_seq_length=64, "
    assert any(first in text and second in text for text in messages)
    assert sum(text.startswith(second) for text in messages) == 1


def test_a_run_resumed_in_the_second_phase_is_bitwise_the_uninterrupted_one(phased, lines, tmp_path):
    inside = checkpoints.find(phased)[0]
    manifest = json.loads((inside / "manifest.json").read_text())
    assert manifest["step"] == 5
    whole = Inputs.open(configured(f"--phases={lines}", "--output_dir=x")).identity
    assert manifest["run"]["data"] == whole, "of both phases, as a resume compares it"
    assert any(name.endswith(" of phase 2") for name in whole)
    train(f"--phases={lines}", f"--output_dir={states.begun_from(inside, tmp_path)}")
    states.assert_same_end(tmp_path, phased)


def test_an_evaluation_that_a_phase_owes_is_not_made_by_the_next(phased):
    begin, held_out = 40, object()

    def owes(consumed, step):
        run = SimpleNamespace(
            config=changed(TrainConfig(), {"output_dir": str(phased), "eval_every": 1}),
            mesh=Mesh(),
            progress=SimpleNamespace(consumed_samples=consumed),
            timeline=SimpleNamespace(begins=(0, begin)),
        )
        return build.owes_evaluation(run, held_out, step)

    assert owes(begin - 1, 1000)
    assert not owes(begin, 1000)


@pytest.mark.nightly
@pytest.mark.multirank
def test_two_ranks_go_on_from_the_checkpoint_alone(phased, tmp_path):
    inside = checkpoints.find(phased)[0]
    shutil.copytree(inside, checkpoints.checkpoint_folder(tmp_path) / inside.name)
    run_ranks(2, ["-m", "tftrain.run", f"--output_dir={tmp_path}"])
    np.testing.assert_allclose(losses(tmp_path), losses(phased)[5:], rtol=1e-4)


def resumed(folder, *args):
    return run.checked(*run.read(["tftrain.run", f"--output_dir={folder}", *args]), Launch())[0]


def test_an_evaluation_of_the_checkpoint_is_of_the_last_phase(phased):
    config = resumed(phased, "--mode=evaluate", "--eval_examples=8")
    row = runs.evaluate(config)
    assert row.means["eval_mlm_loss"] == pytest.approx(rows(phased)[1][-1]["eval_mlm_loss"], rel=1e-6)


def test_the_micro_batch_of_all_phases_may_be_given_and_other_flags_of_theirs_only_with_the_file(phased, lines):
    config = resumed(phased, "--micro_batch_size=2", "--max_steps=7")
    assert [(each.batch.micro_batch_size, each.batch.grad_accum_steps) for each in config.phases] == [(2, 4), (2, 2)]
    with pytest.raises(ConfigError, match=r"--global_batch_size=16: remove this flag, as the phases of \S+ have it"):
        resumed(phased, "--global_batch_size=16")
    given, taken = resumed(phased, f"--phases={lines}", "--global_batch_size=16"), resumed(phased)
    assert [each.data for each in given.phases] == [each.data for each in taken.phases]


def changes(config, before, consumed=28):
    saved = json.loads(json.dumps({"config": dataclasses.asdict(before), "progress": {"consumed_samples": consumed}}))
    return resume_compatibility.changes(config, {}, saved, "checkpoint")


def test_what_lies_ahead_may_change_and_what_is_consumed_only_if_that_is_meant(lines, folders):
    def config(text, *args):
        return configured(f"--phases={text}", "--output_dir=x", *args)

    before = config(lines)
    assert changes(config(lines, "--micro_batch_size=1"), before) == []
    ahead = lines.replace("; ", "; until_samples=40 ") + f"; data_dir={folders[1]} global_batch_size=8"
    assert changes(config(ahead), before) == [
        "resuming with other --phases after its 28 samples than it was saved with"
    ]
    for other in (lines.replace("=0.3", "=0.25"), lines.replace("samples=20", "samples=10")):
        with pytest.raises(CheckpointError, match="add --change_on_resume=phases if that is meant"):
            changes(config(other), before)
        (line,) = changes(config(other, "--change_on_resume=phases"), before)
        assert line.startswith("resuming with --phases: ")


def test_a_run_without_phases_is_one_phase(lines, folders):
    plain = configured(f"--data_dir={folders[0]}", *by_hand(FIRST), "--output_dir=x")
    config = configured(f"--phases={lines}", "--output_dir=x")
    assert len(changes(config, plain, consumed=16)) == 1
    with pytest.raises(CheckpointError, match=r"--phases: .* until sample 24; .* until sample 28, saved with"):
        changes(config, plain)
