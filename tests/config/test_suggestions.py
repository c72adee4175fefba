"""What is suggested for a flag that does not exist: habits of other trainers, slips of the keyboard, nothing else.

The table of tests/bad_inputs has the habits as a user meets them.
"""

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
MEANT = {"precison": ["precision"], "ouput_dir": ["output_dir"], "nosplit_opt_states": ["nosplit_opt_state"]}
MEANT["no_checkpoint_async"] = ["nocheckpoint_async"]
UNCERTAIN = ("noise", "foo", "", "gpu", "steps_per_print", "rate", "dir", "size", "model", "max", "nocolor", "type")


@pytest.mark.parametrize(("typed", "meant"), [*MEANT.items(), *((typed, []) for typed in UNCERTAIN)])
def test_slips_lead_to_the_flag_and_what_is_not_certain_has_no_suggestion(typed, meant):
    assert suggestions.suggest(typed, RUN) == meant


def test_a_habit_suggests_only_flags_of_the_program():
    assert suggestions.suggest("data", RUN) == ["data_dir"]
    assert suggestions.suggest("lr", PREPARE) == []


def test_every_habit_leads_to_flags_that_exist():
    known = {name for config in (TrainConfig(), PrepareConfig(), PlanConfig(), BenchConfig()) for name in names(config)}
    meant = {flag.partition("=")[0] for flags in suggestions.HABITS.values() for flag in flags}
    assert meant <= known
    assert all(name == name.casefold().replace("_", "") for name in suggestions.HABITS)
    assert not {name.replace("_", "") for name in RUN} & suggestions.HABITS.keys() - {"microbatchsize"}
