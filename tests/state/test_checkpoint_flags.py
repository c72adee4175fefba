"""A resume or an evaluation needs only the output folder: the other flags come from the checkpoint."""

import dataclasses
import json

import pytest

from tftrain import run
from tftrain.checkpoint import folder, manifest
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.cli import flags
from tftrain.config.fields import flag_values
from tftrain.config.train import TrainConfig
from tftrain.inputs.inputs import Inputs
from tftrain.parallel.launcher import Launch
from tftrain.state.checkpoint_flags import with_flags_of_checkpoint

DATA = ("--synthetic_data", "--vocab_size=101", "--max_seq_length=16", "--global_batch_size=12", "--micro_batch_size=3")
FIRST = (
    *(*DATA, "--hidden_size=48", "--num_attention_heads=4", "--precision=bf16", "--learning_rate=0.003"),
    *("--max_steps=70", "--split_opt_state", "--cpu_threads=3", "--log_level=debug"),
)


def write_checkpoint(output_dir, config, step=5):
    """Writes a manifest without tensors; `config` in JSON's types."""
    path = folder.checkpoint_folder(output_dir) / f"step_{step:08d}"
    path.mkdir(parents=True)
    content = CheckpointManifest(step=step, files=Placement.of({}), run={"config": config})
    (path / manifest.NAME).write_bytes(manifest.encode(content))
    return path


def saved(output_dir, *args):
    """Returns the sections of a run of two ranks with the flags FIRST and others."""
    config = flags.parse(TrainConfig, ["run", *FIRST, f"--output_dir={output_dir}", *args]).resolve(2)
    return json.loads(json.dumps(dataclasses.asdict(config)))


@pytest.fixture
def output_dir(tmp_path):
    write_checkpoint(tmp_path, saved(tmp_path))
    return tmp_path


def continued(output_dir, *args):
    config, problems, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}", *args])
    assert problems == []
    return with_flags_of_checkpoint(config, given).config


def problems_of(config, ranks, misread=()):
    return run.all_problems(config, list(misread), Inputs.open(config), Launch(0, ranks, 0, ranks))


def test_a_resume_needs_no_other_flag(output_dir):
    config = continued(output_dir)
    assert problems_of(config, 2) == []
    assert config.resolve(2).batch.grad_accum_steps == 2
    assert config.resolve(1).batch.grad_accum_steps == 4, "the global batch belongs to the run, not to its ranks"


EVALUATE = "--mode=evaluate"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {"hidden_size": 48, "synthetic_data": True, "max_seq_length": 16, "precision": "bf16", "max_steps": 70}),
        ([], {"learning_rate": 0.003, "split_opt_state": True}),
        # Flags of the command and of the host stay as given.
        ([], {"log_level": "info", "cpu_threads": 0, "resume": "auto"}),
        (["--learning_rate=0.5", "--max_steps=90"], {"learning_rate": 0.5, "max_steps": 90, "hidden_size": 48}),
        (["--nosplit_opt_state"], {"split_opt_state": False}),
        # Other data brings its own sizes.
        (["--data_dir=x"], {"data_dir": "x", "synthetic_data": False, "max_seq_length": None, "hidden_size": 48}),
        (["--resume=none"], {"hidden_size": TrainConfig().model.hidden_size}),
        # An evaluation takes the model but not the ranks, and all held-out examples whatever the run took.
        ([EVALUATE], {"hidden_size": 48, "precision": "bf16", "split_opt_state": False, "global_batch_size": None}),
        ([EVALUATE], {"eval_examples": 0, "mode": "evaluate"}),
        ([EVALUATE, "--eval_examples=5"], {"eval_examples": 5}),
    ],
)
def test_flags_that_are_not_given_come_from_the_checkpoint(tmp_path, args, expected):
    write_checkpoint(tmp_path, saved(tmp_path, "--eval_examples=3"))
    found = flag_values(continued(tmp_path, *args))
    assert {name: found[name] for name in expected} == expected


def test_the_log_lists_the_flags_that_the_checkpoint_supplies(output_dir):
    config, _, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}", "--hidden_size=48"])
    line = with_flags_of_checkpoint(config, given).line
    assert line.startswith(f"flags from {folder.checkpoint_folder(output_dir) / 'step_00000005'}: --")
    assert "--synthetic_data=true" in line
    assert "--precision=bf16" in line
    assert "hidden_size" not in line
    assert "dropout" not in line, "defaults are not listed"


@pytest.mark.parametrize(("length", "warmup"), [(1400, 7), (70, 7), (20, 7), (5, 0)])
def test_a_longer_run_does_not_go_back_into_its_warm_up(output_dir, length, warmup):
    assert continued(output_dir).resolve(2).optimizer.warmup_steps == 7
    assert continued(output_dir, f"--max_steps={length}").resolve(2).optimizer.warmup_steps == warmup
    assert continued(output_dir, f"--max_steps={length}", "--warmup_steps=1").optimizer.warmup_steps == 1


def test_a_warm_up_that_was_given_stays(tmp_path):
    write_checkpoint(tmp_path, {"optimizer": {"warmup_steps": 13}, "run": {"max_steps": 70}})
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


def refusal(output_dir, ranks):
    config, problems, given = flags.read(TrainConfig, ["run", f"--output_dir={output_dir}"])
    completed = with_flags_of_checkpoint(config, given)
    (line,) = completed.explain(problems_of(completed.config, ranks, problems))
    return str(line)


def test_a_value_that_is_refused_names_the_checkpoint_that_it_comes_from(output_dir):
    line = refusal(output_dir, 5)
    assert line.startswith(
        "--global_batch_size=12: expected it to be divisible by 5 data parallel ranks; this value is"
    )
    assert line.endswith("checkpoints/step_00000005")


def test_a_run_that_ended_before_its_first_checkpoint_needs_its_flags_again(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    line = refusal(tmp_path, 1)
    assert line.endswith(f"{tmp_path} has no checkpoint that would supply the flags; give them again")


def test_an_evaluation_is_of_the_weights_that_the_run_has_evaluated(tmp_path):
    write_checkpoint(tmp_path, saved(tmp_path, "--ema_decay=0.9", "--weights=averaged"))
    assert problems_of(continued(tmp_path, EVALUATE), 1) == []
    assert continued(tmp_path, EVALUATE).evaluation.weights == "averaged"
    assert continued(tmp_path, EVALUATE, "--weights=trained").evaluation.weights == "trained"


def test_a_named_checkpoint_supplies_the_flags(output_dir, tmp_path_factory):
    path = folder.checkpoint_folder(output_dir) / "step_00000005"
    assert continued(tmp_path_factory.mktemp("other"), f"--resume={path}").model.hidden_size == 48


def test_flags_that_are_damaged_or_of_another_version_are_left_out(tmp_path):
    write_checkpoint(
        tmp_path, {"model": {"hidden_size": "wide", "num_hidden_layers": 3, "no_such": 1}, "run": [], "other": {}}
    )
    config = continued(tmp_path)
    assert (config.model.hidden_size, config.model.num_hidden_layers) == (768, 3)


def test_an_unreadable_newest_checkpoint_gives_way_to_an_older_one(output_dir):
    newer = folder.checkpoint_folder(output_dir) / "step_00000009"
    newer.mkdir()
    (newer / manifest.NAME).write_text("{")
    assert continued(output_dir).model.hidden_size == 48


def test_flags_are_found_in_whatever_section_an_older_run_saved_them(tmp_path):
    sections = saved(tmp_path, "--keep_last=7")
    for section in ("log", "evaluation", "checkpoint", "limits"):
        sections["run"] |= sections.pop(section)
    write_checkpoint(tmp_path, sections)
    assert continued(tmp_path).checkpoint.keep_last == 7


def test_the_eval_batches_of_an_older_run_become_as_many_examples(tmp_path):
    sections = saved(tmp_path)
    del sections["evaluation"]
    sections["run"]["eval_batches"] = 4
    write_checkpoint(tmp_path, sections)
    found = continued(tmp_path)
    assert found.evaluation.eval_examples == 4 * 12
    assert problems_of(found, 2) == []
