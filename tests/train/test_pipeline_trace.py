"""The plan beside a trace takes the durations that were measured."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from tftrain.config.parallel import ParallelConfig
from tftrain.config.run import RunConfig
from tftrain.config.train import TrainConfig
from tftrain.schedules import orders, picture, simulation
from tftrain.schedules.simulation import even_durations
from tftrain.train import pipeline_trace
from tftrain.train.pipeline_trace import durations


@pytest.mark.parametrize(("schedule", "chunks"), [("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1)])
def test_durations_are_those_of_the_events(schedule, chunks):
    table = orders.table(schedule, 2, 4, chunks)
    given = even_durations([(1.0, 2.0, 0.5), (3.0, 4.0, 1.5)], chunks)
    events = simulation.computations(simulation.simulate(table, given))
    found = durations(events, table)
    assert simulation.step_time(simulation.simulate(table, found)) == pytest.approx(simulation.step_time(events))
    assert found.forward == given.forward


def test_the_picture_has_the_plan_below_what_was_measured(tmp_path, monkeypatch):
    table = orders.table("1f1b", 2, 4)
    events = simulation.computations(simulation.simulate(table, even_durations([(1.0, 2.0, 0.5), (3.0, 4.0, 1.5)], 1)))
    # As if the last stage had waited.
    measured = [event._replace(end=event.end + 5) if event.stage else event for event in events]
    run = SimpleNamespace(mesh=SimpleNamespace(pipeline=None, is_chief=True))
    parallel = ParallelConfig(pipeline_parallel_size=2, pipeline_schedule="1f1b")
    run.config = TrainConfig(parallel=parallel, run=RunConfig(output_dir=str(tmp_path)))
    drawn = {}
    monkeypatch.setattr(picture, "draw", lambda panels, path, unit: drawn.update({path.name: (panels, unit)}))
    pipeline_trace.write(run, SimpleNamespace(events=lambda ranks: measured))
    ((name, (panels, unit)),) = drawn.items()
    assert (name, list(panels), unit) == ("pipeline.png", ["1f1b, as measured", "1f1b, as planned"], "s")
    assert panels["1f1b, as measured"] == measured
    assert {path.name for path in tmp_path.iterdir()} == {"pipeline.json", "pipeline_planned.json"}


def test_panels_stand_below_each_other_on_one_time_axis(tmp_path):
    events = simulation.computations(
        simulation.simulate(orders.table("1f1b", 2, 4), even_durations([(1, 1, 1)] * 2, 1))
    )
    slower = [event._replace(start=2 * event.start, end=2 * event.end) for event in events]
    picture.draw({"one": events}, tmp_path / "one.png")
    picture.draw({"one": slower, "other": events}, tmp_path / "two.png")
    one, two = (np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB")) for name in ("one", "two"))
    assert two.shape[0] == 2 * one.shape[0]
    forward = np.all(two == (0x6F, 0x9F, 0xD8), axis=-1)
    ends = [np.flatnonzero(half.any(0)).max() for half in np.split(forward, 2)]
    begin = np.flatnonzero(forward.any(0)).min()
    assert (ends[0] - begin) / (ends[1] - begin) == pytest.approx(2, rel=0.1)
