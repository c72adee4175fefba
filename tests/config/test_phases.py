"""Phases against a simulation update by update; what their lines mean, and what is refused."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tftrain.config import phases, ramp
from tftrain.config.data import DataConfig
from tftrain.config.fields import ConfigError, changed
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig

PLAIN = TrainConfig(run=RunConfig(output_dir="x"), data=DataConfig(synthetic_data=True, masked_lm_prob=0.2))


def of(text, **values):
    return changed(PLAIN, {"phases": text, **values})


def timeline(text, **values):
    return of(text, **values).resolve(1).timeline


@st.composite
def lines(draw):
    """Phases of batches, some of which grow: the text, and for each the end, the length, and batch size by sample."""
    texts, expected, end = [], [], 0
    for number in range(count := draw(st.integers(1, 4))):
        size, length = draw(st.integers(1, 6)), draw(st.integers(8, 11))
        grows, end = draw(st.booleans()), end + draw(st.integers(1, 30))
        growth = f"{size}:1:{end}" if grows else "none"
        until = "" if number == count - 1 else f"until_samples={end}"
        texts.append(
            f"{until} max_seq_length={length} global_batch_size={size + grows} micro_batch_size=1 batch_rampup={growth}"
        )
        expected.append((end if until else math.inf, length, ramp.read(growth, size + grows).batch_size))
    return "; ".join(texts), expected


@settings(max_examples=30)
@given(lines(), st.integers(0, 60))
def test_stages_and_tokens_are_those_of_the_simulation(drawn, steps):
    text, expected = drawn
    line = timeline(text)
    sample, tokens, places = 0, 0, []
    for _ in range(steps):
        number = next(each for each, (end, _, _) in enumerate(expected) if sample < end)
        places.append((number, sample))
        _, length, size = expected[number]
        sample, tokens = sample + size(sample), tokens + size(sample) * length
    assert line.samples_after(steps) == sample
    assert line.tokens(sample) == tokens
    for step, (number, first) in enumerate(places):
        found, left = line.at(first)
        assert found == number
        assert left == sum(each == number for each, _ in places[step:]) or step + left >= steps


def test_a_phase_has_the_flags_of_the_run_but_for_its_own():
    first, second = of("until_samples=9 masked_lm_prob=0.3; max_seq_length=16 ", global_batch_size=4).phases
    assert (first.data.masked_lm_prob, first.data.max_seq_length) == (0.3, None)
    assert (second.data.masked_lm_prob, second.data.max_seq_length) == (0.2, 16)
    assert second.data.phases is None
    assert second.data.synthetic_data
    assert TrainConfig().phases == [TrainConfig()]


def test_other_data_of_a_phase_takes_the_place_of_that_of_the_run():
    config = of("until_samples=9; data_dir=/other masked_lm_prob=0.3", max_seq_length=64, max_predictions_per_seq=7)
    first, second = (each.data for each in config.phases)
    assert (first.sources, first.max_seq_length, first.max_predictions_per_seq) == (["synthetic_data"], 64, 7)
    assert (second.sources, second.max_seq_length, second.max_predictions_per_seq) == (["data_dir"], None, None)


def test_resolved_phases_mean_the_same_after_a_change_of_the_file(tmp_path):
    file = tmp_path / "phases"
    file.write_text("# short\nuntil_samples=9   max_seq_length=16 # 16\n\nmax_seq_length=32 batch_rampup=4:4:8\n")
    config = of(str(file), global_batch_size=8, micro_batch_size=2).resolve(2)
    file.unlink()
    first, second = config.phases
    assert (first.data.max_seq_length, first.batch.batch_rampup, first.batch.grad_accum_steps) == (16, "none", 2)
    assert (second.data.max_seq_length, second.batch.batch_rampup) == (32, "4:4:8")
    assert config.resolve(2) == config
    assert dataclasses.replace(config, data=second.data) == second
    assert config.longest_phase == second
    # Without its micro-batches, they are those of the run.
    fewer = changed(config, {"phases": phases.without(config.data.phases, "micro_batch_size"), "micro_batch_size": 1})
    assert [each.batch.micro_batch_size for each in fewer.phases] == [1, 1]


def test_an_end_in_tokens_is_that_of_the_first_update_that_reaches_it():
    text = "until_tokens=100 max_seq_length=8; until_tokens=164 max_seq_length=16; max_seq_length=16"
    line = timeline(text, global_batch_size=3)
    assert line.begins == (0, 15, 18)
    assert [line.tokens(samples) for samples in (15, 18, 20)] == [120, 168, 200]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("until_samples=5; until_tokens=90; max_seq_length=16", "expected until_samples or until_tokens in all phases"),
        ("until_samples=many; max_seq_length=16", "phase 1: until_samples=many: expected a whole number above 0"),
        ("until_samples=5 max_seq_length=x; batch_rampup=none", "phase 1: --max_seq_length=x: expected a whole number"),
        ("until_samples=5; max_seq_length=8 max_seq_length=9", "expected each flag once, as name=value"),
        ("until_samples=5; max_seq_length=7", "phase 2: --max_seq_length=7: expected a number of at least 8"),
    ],
)
def test_other_lines_are_refused(text, message):
    with pytest.raises(ConfigError) as error:
        of(text).resolve(1)
    assert message in str(error.value)


def test_what_is_wrong_in_all_phases_is_said_once_and_of_the_run():
    config = of("until_samples=5; max_seq_length=16", learning_rate=-1.0)
    (problem,) = (each for each in config.problems(1) if each.flag == "learning_rate")
    assert str(problem) == "--learning_rate=-1.0: expected a number above 0"
