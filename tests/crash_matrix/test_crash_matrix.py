"""The crash matrix in short; the long form is `python -m tests.crash_matrix`."""

import random

import pytest

from tests.crash_matrix import matrix, scenarios

pytestmark = [pytest.mark.slow, pytest.mark.multirank, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    ("layout", "kills"),
    [
        ("1 rank", 1),
        pytest.param("dp2 zero2 greedy", 5, marks=pytest.mark.nightly),
    ],
)
def test_a_killed_run_ends_as_the_undisturbed_one(tmp_path, layout, kills):
    found = {}
    matrix.run(layout, kills, random.Random(0), tmp_path, print, found)
    assert sum(tally.kills for tally in found.values()) == kills
    assert [fault for tally in found.values() for fault in tally.faults] == []


# What `supervise/`, `test_full_disk` and `test_health` have in parts: all but a reader that fails.
SHORT = "an exception in the data reader of one rank"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name != SHORT)) for name in scenarios.SCENARIOS]
)
def test_scenario(tmp_path, name):
    try:
        scenarios.SCENARIOS[name](scenarios.Stage(tmp_path / "scene"))
    except scenarios.Skipped as reason:
        pytest.skip(str(reason))
