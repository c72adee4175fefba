"""Divisions of layers: as stated, even, or of the least cost, against all divisions of small models."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tftrain.config.fields import ConfigError
from tftrain.config.layer_split import split_layers


@pytest.mark.parametrize(
    ("layers", "stages", "more", "expected"),
    [
        # The first and the last stage get a remainder last.
        *((12, 4, {}, (3, 3, 3, 3)), (13, 4, {}, (3, 3, 4, 3)), (14, 4, {}, (3, 4, 4, 3)), (15, 4, {}, (4, 4, 4, 3))),
        *((3, 2, {}, (2, 1)), (5, 1, {}, (5,))),
        # A list is taken as it is.
        (12, 4, {"how": "3,4,4,1"}, (3, 4, 4, 1)),
        (12, 2, {"chunks": 2, "how": "3,4,4,1"}, (3, 4, 4, 1)),
        # A costly head takes layers from the last stage: at most a cost of 4 each, and as even as that allows.
        (12, 4, {"how": "flops", "head": 3.0}, (3, 4, 4, 1)),
    ],
)
def test_divisions_in_numbers(layers, stages, more, expected):
    assert split_layers(layers, stages, **more) == expected


@given(some.integers(1, 9), some.integers(1, 9), some.floats(0, 12))
def test_flops_give_the_least_cost_of_all_divisions(layers, parts, head):
    if parts > layers:
        return
    ends = ([0, *cuts, layers] for cuts in itertools.combinations(range(1, layers), parts - 1))
    divisions = [[end - begin for begin, end in itertools.pairwise(each)] for each in ends]

    def cost(division):
        return max([*division[:-1], division[-1] + head])

    found = split_layers(layers, parts, how="flops", head=head)
    assert sum(found) == layers
    assert min(found) >= 1
    assert cost(found) == min(map(cost, divisions))


@given(some.integers(1, 40), some.integers(1, 40))
def test_without_a_head_the_division_is_even(layers, parts):
    if parts <= layers:
        assert sorted(split_layers(layers, parts, how="flops")) == sorted(split_layers(layers, parts))


@pytest.mark.parametrize(
    ("layers", "stages", "chunks", "how", "expected"),
    [
        (12, 4, 1, "3,4,5", "--pipeline_split=3,4,5: expected 4 numbers for --pipeline_parallel_size=4 x"),
        (12, 4, 1, "3,4,4,2", "expected a sum of --num_hidden_layers=12, not 13; equal numbers are 3,3,3,3"),
        (12, 4, 1, "4,4,4,0", "expected at least one layer for each model chunk"),
        (12, 4, 1, "even", "--pipeline_split=even: expected layers, flops, or a list such as 3,4,4,1"),
        (12, 4, 1, "3,,4", "expected layers, flops, or a list"),
    ],
)
def test_wrong_divisions_are_refused(layers, stages, chunks, how, expected):
    with pytest.raises(ConfigError) as refused:
        split_layers(layers, stages, chunks, how)
    assert expected in str(refused.value)
