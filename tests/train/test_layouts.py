"""Losses, gradients and updates are the same however ranks divide the work; see `layouts` for what is compared."""

import collections

import pytest

from tests.kit.ranks import run_ranks
from tests.train.layouts import (
    EIGHT,
    FACTORS,
    NOISY,
    RANKS,
    TRANSPORT,
    configured,
    design,
    has_effect,
    mesh_of,
    name_of,
    named,
    names_of_cases,
    pairs_of,
    pairwise,
    row_of,
    sizes,
    transports,
)


def check(ranks, names, seconds, transport="auto"):
    """Every mesh has ranks of its own, because Gloo does not always connect so many again."""
    for mesh in sorted({mesh_of(named(name)) for name in names}):
        chosen = [name for name in names if mesh_of(named(name)) == mesh]
        environ = {TRANSPORT: transport}
        output = run_ranks(ranks, ["-m", "tests.train.layouts", *chosen], seconds=seconds, environ=environ)
        for name in chosen:
            assert f"{name} agrees" in output


@pytest.mark.multirank
@pytest.mark.timeout(1200)
def test_two_ranks_train_as_one_does():
    # The names are those of the design, whose ranks are four. One run of one rank is compared with all.
    states = ("zero1-even", "zero3", "zero2-greedy:1")
    check(2, [f"dp4+{state}+modernbert-packed+fused" for state in states], seconds=800)


MESHES = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]


@pytest.mark.multirank
@pytest.mark.nightly  # The one of the test above has many values of these.
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", ["horovod", "tensorflow"])
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: f"tp{mesh[0]}-pp{mesh[1]}")
def test_every_pair_of_levers_trains_as_one_rank_does(mesh, transport):
    names = [name for name, chosen in transports().items() if chosen == transport and name not in EIGHT]
    names = [name for name in names if sizes(named(name)) == mesh]
    if not names:
        pytest.skip("no case has both")
    check(RANKS, names, 3500, transport)


@pytest.mark.multirank
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", EIGHT)
def test_eight_ranks_with_stages_train_as_one_does(name):
    check(8, [name], seconds=3500)


@pytest.mark.nightly
@pytest.mark.multirank
def test_replicas_stay_equal_although_each_rank_rounds_in_its_own_way():
    states = ("", "+zero1-even", "+zero1-naive", "+zero1-even+fused", "+zero2-greedy:1+accumulate+fp16", "+sparse")
    names = [f"tp2{state}" for state in states]
    output = run_ranks(RANKS, ["-m", "tests.train.layouts", NOISY, *names], seconds=400)
    assert output.count(" agrees") == len(names)


@pytest.mark.nightly  # as most rows of the design
def test_the_design_has_every_pair_of_values_that_can_be():
    """A second, larger draw of allowed rows has no pair that the design lacks."""
    other = pairwise(FACTORS, has_effect, seed=1)
    assert set().union(*map(pairs_of, other)) <= set().union(*map(pairs_of, design()))
    assert {sizes(named(name)) for name in names_of_cases() if name not in EIGHT} == set(MESHES)
    assert all(row_of(name_of(row)) == row for row in design())
    assert all(not configured(row).problems(RANKS) for row in design())
    groups = [row for row in design() if row["ranks"] != "dp4"]
    counts = collections.Counter(item for row in groups for item in row.items())
    for transport in ("horovod", "tensorflow"):
        mine = {item for row in groups if transports()[name_of(row)] == transport for item in row.items()}
        assert {item for item, count in counts.items() if count > 1} <= mine
