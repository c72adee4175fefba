"""Prints the time of a pipeline schedule, its bubble and its activations; draws it with --output.

Example, four stages:
    python -m tftrain.schedules --pipeline_schedule=zero_bubble --pipeline_parallel_size=4 --output=schedule
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from tftrain.cli.program import Program
from tftrain.config.fields import ConfigError, Problem
from tftrain.host.exit_codes import ExitCode
from tftrain.schedules import orders, picture, simulation, trace
from tftrain.schedules.config import ScheduleConfig
from tftrain.schedules.table import Schedule, peak_activations

UNIT_US = 1000.0  # a unit of time in the trace


def main(argv: Sequence[str]) -> int:
    """Prints what the command line says; returns the exit code."""
    program = Program("schedules", ScheduleConfig, lambda config: f"--output={config.output}", piped=ExitCode.DONE)
    return program.main(show, argv)


def show(config: ScheduleConfig) -> None:
    """Prints a schedule, and draws it if `--output` is given; raises a ConfigError if a file can't be written."""
    make = orders.forward_only if config.forward_only else orders.table
    sizes = config.pipeline_parallel_size, config.micro_batches, config.virtual_pipeline_size
    table = make(config.pipeline_schedule, *sizes)
    events = simulation.simulate(table, config.durations())
    print(text(table, events), end="", flush=True)
    if config.output:
        write(table, events, config.output)


def title(table: Schedule) -> str:
    """Returns the schedule and its sizes."""
    chunks = f" of {table.chunks} chunks" if table.chunks > 1 else ""
    what = f"{table.schedule}, forward only" if table.forward_only else table.schedule
    return f"{what}: {len(table.stages)} stages{chunks}, {table.micro_batches} micro-batches"


def text(table: Schedule, events: Sequence[simulation.TimedAction]) -> str:
    """Returns time and bubble of the step, and idle time and activations of each stage."""
    held = f"activations held (micro-batches x {table.chunks} chunks)" if table.chunks > 1 else "micro-batches held"
    lines = [
        title(table),
        f"{'time of a step':20}{simulation.step_time(events):>10.6g}",
        f"{'bubble':20}{100 * simulation.bubble_share(events):>9.1f}%",
        "",
        f"{'stage':>5}{'idle':>10}" + ("" if table.forward_only else f"  {held}"),
    ]
    for stage, idle in enumerate(simulation.idle_times(events)):
        line = f"{stage:>5}{idle:>10.6g}"
        if not table.forward_only:
            line += f"  {peak_activations(table.stages[stage], table.chunks).total:>{len(held)}}"
        lines.append(line)
    return "\n".join(lines) + "\n"


def write(table: Schedule, events: Sequence[simulation.TimedAction], output: str) -> None:
    """Writes the picture and the trace; raises a ConfigError if it can't."""
    try:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        picture.draw({title(table): events}, Path(f"{output}.png"))
        trace.write(events, Path(f"{output}.json"), UNIT_US)
    except OSError as error:
        expected = f"expected a path to write to: {error.strerror or error}"
        raise ConfigError([Problem("output", output, expected)]) from error


if __name__ == "__main__":
    sys.exit(main(sys.argv))
