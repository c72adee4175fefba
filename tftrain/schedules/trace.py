"""A schedule, planned or measured, in the Trace Event Format, which chrome://tracing and Perfetto show."""

import json
from collections.abc import Sequence
from pathlib import Path

from tftrain.schedules.simulation import TimedAction
from tftrain.schedules.table import TRANSFERS

# Rows of computations and of transfers are two groups, 0 and 1: a transfer runs while its stage computes.
GROUPS = ("computations", "transfers")


def write(events: Sequence[TimedAction], path: Path, unit_us: float) -> None:
    """Writes a trace with a row for each stage, and one for the transfers that each stage receives.

    `unit_us` is the number of microseconds in a unit of the events' time, 1e6 if they are in seconds. Raises an OSError
    if the file can't be written.
    """
    path.write_text(json.dumps({"traceEvents": trace_events(events, unit_us), "displayTimeUnit": "ms"}) + "\n")


def trace_events(events: Sequence[TimedAction], unit_us: float) -> list[dict]:
    """Returns the events of a trace; for the arguments, see `write`."""
    trace = []
    for group, stage in sorted({(int(event.action.kind in TRANSFERS), event.stage) for event in events}):
        for name, text in (("process_name", GROUPS[group]), ("thread_name", f"stage {stage}")):
            trace.append({"name": name, "ph": "M", "pid": group, "tid": stage, "args": {"name": text}})
    begin = min(event.start for event in events)
    for stage, action, start, end in events:
        is_transfer = action.kind in TRANSFERS
        trace.append(
            {
                "name": action.name if is_transfer else f"{action.kind.value}{action.micro_batch}",
                "cat": action.kind.name.lower(),
                "ph": "X",
                "pid": int(is_transfer),
                "tid": stage,
                "ts": (start - begin) * unit_us,
                "dur": (end - start) * unit_us,
                "args": {"micro_batch": action.micro_batch, "chunk": action.chunk},
            }
        )
    return trace
