"""Draws when each pipeline stage computed what, and the same by the plan of the schedule (`--trace_pipeline`)."""

import logging
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tftrain.schedules import picture, simulation, trace
from tftrain.schedules.simulation import Durations, TimedAction
from tftrain.schedules.table import ActionKind, Schedule
from tftrain.state.run_state import Run
from tftrain.train.observers import Decision, Observer, TakenStep
from tftrain.train.phases import Phases
from tftrain.train.pipeline import schedule_of
from tftrain.train.stage_clock import StageClock

logger = logging.getLogger(__name__)

STEP = 3  # The first step of a start compiles, and the second one may still allocate memory
SECONDS_US = 1e6
MEASURED, PLANNED = "pipeline", "pipeline_planned"


@dataclass
class PipelineTrace(Observer):
    """Draws the step with a number."""

    run: Run
    phases: Phases
    number: int

    def after_step(self, step: TakenStep, decision: Decision) -> None:
        """Draws the step, if it is the one."""
        if step.number == self.number:
            write(self.run, self.phases.clock)


def write(run: Run, clock: StageClock) -> None:
    """Writes pipeline.png with both schedules of the last step, pipeline.json and pipeline_planned.json on the chief.

    Every rank must call it, with the clock of its stage.
    """
    events = clock.events(run.mesh.pipeline)
    if not run.mesh.is_chief:
        return
    table = schedule_of(run.config.parallel, 1 + max(event.action.micro_batch for event in events))
    planned = simulation.simulate(table, durations(events, table))
    folder, words = Path(run.config.run.folder), []
    schedules = {"as measured": events, "as planned": planned}
    panels = {f"{table.schedule}, {title}": found for title, found in schedules.items()}
    try:
        picture.draw(panels, folder / f"{MEASURED}.png", "s")
        trace.write(events, folder / f"{MEASURED}.json", SECONDS_US)
        trace.write(planned, folder / f"{PLANNED}.json", SECONDS_US)
    except OSError as error:
        logger.warning(f"can't write {folder / MEASURED}: {error.strerror or error}")
    for title, schedule in schedules.items():
        seconds, bubble = simulation.step_time(schedule), simulation.bubble_share(schedule)
        words.append(f"{1e3 * seconds:.1f} ms with a bubble of {100 * bubble:.1f}% {title}")
    logger.info(f"pipeline: {', '.join(words)}; see {folder / MEASURED}.png")


def durations(events: list[TimedAction], table: Schedule) -> Durations:
    """Returns the median durations, in seconds, of the computations of a step as measured; transfers take none."""
    durations = defaultdict(list)
    for stage, action, begin, end in events:
        kind = ActionKind.BACKWARD_INPUTS if action.kind is ActionKind.BACKWARD else action.kind
        durations[kind, stage, action.chunk].append(end - begin)

    def of(kind: ActionKind) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(statistics.median(durations.get((kind, stage, chunk), [0.0])) for chunk in range(table.chunks))
            for stage in range(len(table.stages))
        )

    return Durations(of(ActionKind.FORWARD), of(ActionKind.BACKWARD_INPUTS), of(ActionKind.BACKWARD_WEIGHTS))
