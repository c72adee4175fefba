"""The batch ramp against a simulation update by update, lengths of batches, and what is refused."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tftrain.config import length_choice
from tftrain.config.fields import ConfigError
from tftrain.config.parallel import BatchConfig
from tftrain.config.ramp import Ramp
from tftrain.config.train import TrainConfig

STEPS = 40


@st.composite
def ramps(draw):
    start, increment, increments = draw(st.integers(1, 6)), draw(st.integers(1, 5)), draw(st.integers(0, 6))
    return Ramp(start, increment, draw(st.integers(1, 200)), start + increment * increments)


def simulated(ramp, consumed, steps):
    """Returns the sizes of so many updates and the samples consumed after them, one update after the other."""
    count, sizes = (ramp.full - ramp.start) // ramp.increment, []
    points = [Fraction(number * ramp.samples, count) for number in range(1, count + 1)]
    for _ in range(steps):
        sizes.append(ramp.start + ramp.increment * sum(point <= consumed for point in points))
        consumed += sizes[-1]
    return sizes, consumed


@given(ramps(), st.integers(0, 250))
def test_stages_are_those_of_the_simulation_from_any_sample_on(ramp, consumed):
    found, stages = [], ramp.stages(consumed)
    ends = [*(stage.first_step for stage in stages[1:]), max(STEPS, stages[-1].first_step + 1)]
    for stage, end in zip(stages, ends, strict=True):
        assert stage.first_sample == consumed + sum(found)
        found += [stage.batch_size] * (end - stage.first_step)
    assert found == simulated(ramp, consumed, len(found))[0]
    assert found[-1] == ramp.full


@given(ramps(), st.integers(0, STEPS), st.integers(0, 250))
def test_samples_after_are_those_of_the_simulation(ramp, steps, consumed):
    batch = BatchConfig(global_batch_size=ramp.full, batch_rampup=f"{ramp.start}:{ramp.increment}:{ramp.samples}")
    found = TrainConfig(batch=batch).timeline.samples_after(steps, consumed)
    assert found == simulated(ramp, consumed, steps)[1]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("16:16:1e6", ["none, or start:increment:samples"]),
        ("16:20:100", ["an increment that divides --global_batch_size=64 minus the start, 48", "which 36 is not"]),
        ("20:4:100", ["multiples of --micro_batch_size=4 x 2 data parallel ranks, which 20 is not"]),
        ("16:16:100", []),
        ("64:16:100", []),
    ],
)
def test_ramps_that_cannot_be_are_named_with_what_is_expected(text, expected):
    batch = BatchConfig(micro_batch_size=4, global_batch_size=64, batch_rampup=text)
    found = []
    try:
        resolved = batch.resolve(2)
        assert (resolved.grad_accum_steps, resolved.ramp.full) == (8, 64)
    except ConfigError as error:
        found = list(map(str, error.problems))
    assert len(found) == len(expected)
    for problem, words in zip(found, expected, strict=True):
        assert problem.startswith(f"--batch_rampup={text}: expected ")
        assert words in problem


def test_a_wrong_ramp_and_sizes_that_contradict_are_named_together():
    with pytest.raises(ConfigError) as caught:
        BatchConfig(micro_batch_size=5, global_batch_size=64, batch_rampup="16:16").resolve(2)
    assert [problem.flag for problem in caught.value.problems] == ["global_batch_size", "batch_rampup"]


@pytest.mark.parametrize(
    ("text", "lengths"), [("none", (512,)), ("128,256", (128, 256, 512)), ("128,512", (128, 512)), ("64", (64, 512))]
)
def test_the_longest_length_is_always_one_of_them(text, lengths):
    assert length_choice.problems(text, 512, 1) == []
    assert length_choice.read(text, 512) == lengths


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected none, or lengths"),
        ("128,", "expected none, or lengths"),
        ("0,128", "expected none, or lengths"),
        ("128,128", "ascending order"),
        ("128,250", "multiples of --tensor_parallel_size=4"),
    ],
)
def test_other_lengths_are_refused(text, words):
    (problem,) = length_choice.problems(text, 512, 4)
    assert words in problem.expected
