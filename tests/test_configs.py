"""Every flagfile parses, and the named sizes are what they are named after."""

import dataclasses

import pytest

from tests.kit.ranks import ROOT
from tftrain.architecture.describe import describe
from tftrain.cli import flags
from tftrain.config.fields import field_problems, sections
from tftrain.config.prepare import PrepareConfig
from tftrain.config.train import TrainConfig

FLAGFILES = sorted((ROOT / "configs").glob("**/*.flags"))
PHASES = {  # what the files are for, and the updates of their phases
    "bert": (("--global_batch_size=256", "--max_steps=1000000"), [900_000, 100_000]),
    "modernbert": (("--max_steps=446300", "--schedule=wsd", "--decay_steps=10600"), [382_700, 53_000, 10_600]),
}
SIZES = {  # with the published vocabularies; those of the last five are transformers' own, of their MaskedLM
    "base": (30522, 110_106_428),
    "large": (30522, 336_226_108),
    "llama_1b": (128256, 1_235_814_400),
    "llama_8b": (128256, 8_030_261_248),
    "llama_70b": (128256, 70_553_706_496),
    "modernbert_base": (50368, 149_655_232),
    "modernbert_large": (50368, 395_881_664),
    "qwen3_0p6b": (151936, 596_049_920),
    "roberta_base": (50265, 124_697_433),
    "roberta_large": (250002, 560_142_482),  # XLM-R large
    "distilbert_base": (30522, 66_985_530),
}


@pytest.mark.parametrize("path", FLAGFILES, ids=lambda path: path.name)
def test_flagfile_parses_and_is_within_bounds(path):
    config_class = PrepareConfig if "data" in path.stem else TrainConfig
    config = flags.parse(config_class, ["program", f"--flagfile={path}"])
    assert [problem for section in sections(config) for problem in field_problems(section)] == []
    assert config != config_class() or path.stem == "base"


@pytest.mark.parametrize("name", SIZES)
def test_named_sizes_have_their_known_number_of_weights(name):
    words, weights = SIZES[name]
    config = flags.parse(TrainConfig, ["program", f"--flagfile={ROOT / 'configs' / name}.flags"])
    assert describe(dataclasses.replace(config.model, vocab_size=words)).parameters == weights


@pytest.mark.parametrize("name", PHASES)
def test_phases_are_as_long_as_published(name):
    args, steps = PHASES[name]
    text = f"--phases={ROOT / 'configs' / name}.phases"
    sizes = f"--flagfile={ROOT / 'configs' / ('base' if name == 'bert' else 'modernbert_base')}.flags"
    config = flags.parse(TrainConfig, ["program", sizes, text, "--output_dir=x", *args]).resolve(8)
    found = [len(own) for own in config.timeline.steps(config.run.max_steps)]
    assert found == pytest.approx(steps, rel=0.02)
