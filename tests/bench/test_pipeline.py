"""Table `pipeline`: its plans by hand, what a stage holds, and the engine over two ranks with short waits."""

import json

import pytest

from tests.kit.ranks import run_ranks
from tftrain.bench.pipeline import table
from tftrain.bench.pipeline.waiting import most_held
from tftrain.schedules import activations, orders, simulation
from tftrain.schedules.simulation import even_durations


@pytest.mark.parametrize(
    ("schedule", "chunks", "milliseconds", "held"),
    [
        # 16 micro-batches and a bubble of 3 stages, each of 90 ms.
        ("gpipe", 1, (16 + 3) * 90, "16 16 16 16"),
        ("1f1b", 1, (16 + 3) * 90, "4 3 2 1"),
        ("interleaved", 2, (16 + 3 / 2) * 90, "11 9 7 5"),
        # Of the bubble, backward for weights fills all but 3 x (F + BI - BW).
        ("zero_bubble", 1, 16 * 90 + 3 * 30, "4 4 4 4"),
    ],
)
def test_plans_are_those_by_hand(schedule, chunks, milliseconds, held):
    planned = table.planned(schedule, 4, 16, chunks)
    assert planned["planned_ms"] == pytest.approx(milliseconds)
    assert planned["planned_held"] == held


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero_bubble"])
def test_what_stages_hold_follows_from_when_they_compute(schedule):
    found = orders.table(schedule, 3, 7)
    events = simulation.simulate(found, even_durations([(1, 1, 1)] * 3))
    planned = [activations.peak(actions, 1).total for actions in found.stages]
    assert list(most_held(simulation.computations(events), 3)) == planned


@pytest.mark.multirank
def test_the_engine_waits_as_planned_over_two_ranks():
    given = {"schedule": "1f1b", "stages": 2, "micro_batches": 3, "chunks": 1, "seconds": [0.02] * 3, "steps": 2}
    output = run_ranks(2, ["-m", "tftrain.bench.pipeline.waiting", json.dumps(given)])
    found = json.loads(next(line for line in output.splitlines() if line.startswith('{"step_ms"')))
    assert found["step_ms"] >= (3 + 1) * 60
    assert list(found["held"]) == [2, 1]
