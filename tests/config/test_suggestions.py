"""What is suggested for a flag that does not exist: habits of other trainers, slips of the keyboard, nothing else."""

import pytest

from tftrain.bench.config import BenchConfig
from tftrain.config import suggestions
from tftrain.config.fields import sections
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig
from tftrain.plan.config import PlanConfig


def names(config):
    return [name for section in sections(config) for name in vars(section)]


RUN, PREPARE = names(TrainConfig()), names(PrepareConfig())


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lr", ["learning_rate"]),
        ("LR", ["learning_rate"]),
        ("bs", ["global_batch_size", "micro_batch_size"]),
        ("batch_size", ["global_batch_size", "micro_batch_size"]),
        ("epochs", ["max_steps"]),
        ("fp16", ["precision=fp16"]),
        ("bf16", ["precision=bf16"]),
        ("zero_stage", ["split_opt_state", "split_grad_accum"]),
        ("wd", ["weight_decay"]),
        ("layers", ["num_hidden_layers"]),
        ("dropout", ["hidden_dropout_prob", "attention_probs_dropout_prob"]),
        ("save_every", ["checkpoint_every"]),
        ("train_steps", ["max_steps"]),
        ("Learning_Rate", ["learning_rate"]),
        ("learning-rate", ["learning_rate"]),
        ("learnin_rate", ["learning_rate"]),
        ("max_step", ["max_steps"]),
        ("precison", ["precision"]),
        ("nosplit_opt_states", ["nosplit_opt_state"]),
        ("no_checkpoint_async", ["nocheckpoint_async"]),
        ("noise", []),
        ("hidden_sise", ["hidden_size"]),
        ("ouput_dir", ["output_dir"]),
    ],
)
def test_habits_and_slips_lead_to_the_flag(typed, meant):
    assert suggestions.suggest(typed, RUN) == meant


@pytest.mark.parametrize(
    "typed",
    [
        "foo",
        "x",
        "",
        "gpu",
        "steps_per_print",
        "rate",
        "dir",
        "size",
        "model",
        "max",
        "nocolor",
        "verbose",
        "num",
        "type",
    ],
)
def test_what_is_not_certain_has_no_suggestion(typed):
    assert suggestions.suggest(typed, RUN) == []


def test_a_habit_suggests_only_flags_of_the_program():
    assert suggestions.suggest("input", PREPARE) == ["input_files"]
    assert suggestions.suggest("data", RUN) == ["data_dir"]
    assert suggestions.suggest("lr", PREPARE) == []


def test_every_habit_leads_to_flags_that_exist():
    known = {name for config in (TrainConfig(), PrepareConfig(), PlanConfig(), BenchConfig()) for name in names(config)}
    meant = {flag.partition("=")[0] for flags in suggestions.HABITS.values() for flag in flags}
    assert meant <= known
    assert all(name == name.casefold().replace("_", "") for name in suggestions.HABITS)
    assert not {name.replace("_", "") for name in RUN} & suggestions.HABITS.keys() - {"microbatchsize"}
