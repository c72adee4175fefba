"""A resume or an evaluation needs only the output folder: the other flags come from the checkpoint."""

import dataclasses
import json

import pytest

from tftrain import run
from tftrain.checkpoint import folder, manifest
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.cli import flags
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch
from tftrain.state.checkpoint_flags import with_flags_of_checkpoint

FIRST = (
    "--synthetic_data",
    "--vocab_size=101",
    "--hidden_size=48",
    "--num_attention_heads=4",
    "--max_seq_length=16",
    "--global_batch_size=12",
    "--micro_batch_size=3",
    "--precision=bf16",
    "--learning_rate=0.003",
    "--max_steps=70",
    "--split_opt_state",
    "--cpu_threads=3",
    "--log_level=debug",
)


def write_checkpoint(path, config):
    """Writes a manifest without tensors; `config` in JSON's types."""
    path.mkdir(parents=True)
    (path / manifest.NAME).write_bytes(
        manifest.encode(CheckpointManifest(step=5, files=Placement.of({}), run={"config": config}))
    )


@pytest.fixture
def output_dir(tmp_path):
    config = flags.parse(TrainConfig, ["run", *FIRST, f"--output_dir={tmp_path}"]).resolve(2)
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    write_checkpoint(folder.checkpoint_folder(tmp_path) / "step_00000005", saved)
    return tmp_path


def continued(output_dir, *args):
    config, problems, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}", *args])
    assert problems == []
    return with_flags_of_checkpoint(config, given).config


def test_a_resume_needs_no_other_flag(output_dir):
    config = continued(output_dir)
    assert run.all_problems(config, [], Inputs.open(config), Launch(0, 2, 0, 2)) == []
    assert (config.model.hidden_size, config.data.synthetic_data, config.data.max_seq_length) == (48, True, 16)
    assert (config.compute.precision, config.optimizer.learning_rate, config.run.max_steps) == ("bf16", 0.003, 70)
    assert config.parallel.split_opt_state
    assert config.resolve(2).batch.grad_accum_steps == 2
    assert config.resolve(1).batch.grad_accum_steps == 4, "the global batch belongs to the run, not to its ranks"


def test_the_log_lists_the_flags_that_the_checkpoint_supplies(output_dir):
    config, _, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}", "--hidden_size=48"])
    line = with_flags_of_checkpoint(config, given).line
    assert line.startswith(f"flags from {folder.checkpoint_folder(output_dir) / 'step_00000005'}: --")
    assert "--synthetic_data=true" in line
    assert "--precision=bf16" in line
    assert "hidden_size" not in line
    assert "dropout" not in line, "defaults are not listed"


def test_flags_of_the_command_and_of_the_host_stay_as_given(output_dir):
    config = continued(output_dir)
    assert (config.log.log_level, config.compute.cpu_threads, config.checkpoint.resume) == ("info", 0, "auto")


def test_what_is_given_wins(output_dir):
    config = continued(output_dir, "--learning_rate=0.5", "--max_steps=90", "--nosplit_opt_state")
    assert (config.optimizer.learning_rate, config.run.max_steps) == (0.5, 90)
    assert not config.parallel.split_opt_state
    assert config.model.hidden_size == 48


@pytest.mark.parametrize(("length", "warmup"), [(1400, 7), (70, 7), (20, 7), (5, 0)])
def test_a_longer_run_does_not_go_back_into_its_warm_up(output_dir, length, warmup):
    assert continued(output_dir).resolve(2).optimizer.warmup_steps == 7
    assert continued(output_dir, f"--max_steps={length}").resolve(2).optimizer.warmup_steps == warmup
    assert continued(output_dir, f"--max_steps={length}", "--warmup_steps=1").optimizer.warmup_steps == 1


def test_a_warm_up_that_was_given_stays(tmp_path):
    saved = {"optimizer": {"warmup_steps": 13}, "run": {"max_steps": 70}}
    write_checkpoint(folder.checkpoint_folder(tmp_path) / "step_00000005", saved)
    assert continued(tmp_path, "--max_steps=20").optimizer.warmup_steps == 13


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        (["--micro_batch_size=6"], (6, 1, 12)),
        (["--grad_accum_steps=3"], (2, 3, 12)),
        (["--global_batch_size=20"], (2, 5, 20)),
        (["--micro_batch_size=4", "--grad_accum_steps=2"], (4, 2, 16)),
    ],
)
def test_batch_sizes_that_are_given_do_not_contradict_the_saved_ones(output_dir, given, sizes):
    batch = continued(output_dir, *given).resolve(2).batch
    assert (batch.micro_batch_size, batch.grad_accum_steps, batch.global_batch_size) == sizes


@pytest.mark.parametrize(("ranks", "micro"), [(1, 3), (2, 3), (3, 2), (4, 3), (6, 2), (12, 1)])
def test_any_number_of_ranks_that_divides_the_global_batch_can_go_on(output_dir, ranks, micro):
    batch = continued(output_dir).resolve(ranks).batch
    assert (batch.global_batch_size, batch.micro_batch_size) == (12, micro)


def refusal(output_dir, ranks, *args):
    config, problems, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}", *args])
    completed = with_flags_of_checkpoint(config, given)
    (line,) = completed.explain(
        run.all_problems(completed.config, problems, Inputs.open(completed.config), Launch(0, ranks, 0, ranks))
    )
    return str(line)


def test_a_value_that_is_refused_names_the_checkpoint_that_it_comes_from(output_dir):
    line = refusal(output_dir, 5)
    assert line.startswith("--global_batch_size=12: expected it to be divisible by data_parallel_size=5; this value is")
    assert line.endswith("checkpoints/step_00000005")


def test_a_run_that_ended_before_its_first_checkpoint_needs_its_flags_again(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    line = refusal(tmp_path, 1)
    assert line.endswith(f"{tmp_path} has no checkpoint that would supply the flags; give them again")


def test_other_data_brings_its_own_sizes(output_dir):
    config = continued(output_dir, "--data_dir=elsewhere")
    assert (config.data.data_dir, config.data.synthetic_data, config.data.max_seq_length) == ("elsewhere", False, None)
    assert config.model.hidden_size == 48


def test_an_evaluation_is_of_the_weights_that_the_run_has_evaluated(tmp_path):
    averaging = ("--ema_decay=0.9", "--weights=averaged", f"--output_dir={tmp_path}")
    config = flags.parse(TrainConfig, ["run", *FIRST, *averaging]).resolve(2)
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    write_checkpoint(folder.checkpoint_folder(tmp_path) / "step_00000005", saved)
    assert continued(tmp_path, "--mode=evaluate").evaluation.weights == "averaged"
    assert continued(tmp_path, "--mode=evaluate", "--weights=trained").evaluation.weights == "trained"


def test_an_evaluation_takes_the_model_but_not_the_ranks(output_dir):
    config = continued(output_dir, "--mode=evaluate")
    assert run.all_problems(config, [], Inputs.open(config), Launch(0, 1, 0, 1)) == []
    assert (config.model.hidden_size, config.compute.precision, config.run.mode) == (48, "bf16", "evaluate")
    assert not config.parallel.split_opt_state
    assert config.batch.global_batch_size is None


def test_a_named_checkpoint_supplies_the_flags(output_dir, tmp_path_factory):
    path = folder.checkpoint_folder(output_dir) / "step_00000005"
    config = continued(tmp_path_factory.mktemp("other"), f"--resume={path}")
    assert config.model.hidden_size == 48


def test_a_fresh_start_takes_nothing(output_dir):
    assert continued(output_dir, "--resume=none").model.hidden_size == TrainConfig().model.hidden_size


def test_flags_that_are_damaged_or_of_another_version_are_left_out(tmp_path):
    saved = {"model": {"hidden_size": "wide", "num_hidden_layers": 3, "no_such": 1}, "run": [], "other": {}}
    write_checkpoint(folder.checkpoint_folder(tmp_path) / "step_00000005", saved)
    config = continued(tmp_path)
    assert (config.model.hidden_size, config.model.num_hidden_layers) == (768, 3)


def test_an_unreadable_newest_checkpoint_gives_way_to_an_older_one(output_dir):
    newer = folder.checkpoint_folder(output_dir) / "step_00000009"
    newer.mkdir()
    (newer / manifest.NAME).write_text("{")
    assert continued(output_dir).model.hidden_size == 48


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--resume=non"], "--resume=non: no checkpoint is there; expected auto, none, or the folder of a"),
        (
            ["--change_on_resume=foo"],
            "--change_on_resume=foo: it permits no change of foo; expected some of hidden",
        ),
        (
            ["--change_on_resume=seed,weight_decay"],
            "--change_on_resume=seed,weight_decay: it permits no change of seed",
        ),
        (["--mode=evaluate"], "no checkpoint to evaluate; expected the folder of a run, or --resume"),
    ],
)
def test_what_cannot_be_resumed_is_refused_before_anything_starts(tmp_path, args, line):
    config, _, _ = flags.read(TrainConfig, ["run", "--synthetic_data", f"--output_dir={tmp_path}", *args])
    (problem,) = run.all_problems(config, [], Inputs.open(config), Launch(0, 1, 0, 1))
    assert line in str(problem)


def test_an_evaluation_takes_all_held_out_examples_whatever_the_run_took(output_dir):
    part = "--eval_examples=3"
    run_of_part = flags.parse(TrainConfig, ["run", *FIRST, part, f"--output_dir={output_dir}"]).resolve(2)
    write_checkpoint(folder.checkpoint_folder(output_dir) / "step_00000006", dataclasses.asdict(run_of_part))
    assert continued(output_dir).evaluation.eval_examples == 3
    assert continued(output_dir, "--mode=evaluate").evaluation.eval_examples == 0
    assert continued(output_dir, "--mode=evaluate", part).evaluation.eval_examples == 3


def test_flags_are_found_in_whatever_section_an_older_run_saved_them(output_dir):
    run_of_part = flags.parse(TrainConfig, ["run", *FIRST, "--keep_last=7", f"--output_dir={output_dir}"]).resolve(2)
    saved = dataclasses.asdict(run_of_part)
    for section in ("log", "evaluation", "checkpoint", "limits"):
        saved["run"] |= saved.pop(section)
    write_checkpoint(folder.checkpoint_folder(output_dir) / "step_00000006", saved)
    assert continued(output_dir).checkpoint.keep_last == 7


def test_the_eval_batches_of_an_older_run_become_as_many_examples(output_dir):
    config = flags.parse(TrainConfig, ["run", *FIRST, f"--output_dir={output_dir}"]).resolve(2)
    saved = json.loads(json.dumps(dataclasses.asdict(config)))
    del saved["evaluation"]
    saved["run"]["eval_batches"] = 4
    write_checkpoint(folder.checkpoint_folder(output_dir) / "step_00000006", saved)
    found = continued(output_dir)
    assert found.evaluation.eval_examples == 4 * 12
    assert run.all_problems(found, [], Inputs.open(found), Launch(0, 2, 0, 2)) == []
