"""Draws when the gradients of a step travel, from logs of runs: python tools/overlap_picture.py OUTPUT.png TITLE=LOG...

A LOG is the output of a run with HOROVOD_LOG_LEVEL=trace, see docs/results/parallelism.md. Of rank 0's last whole step,
each bucket of gradients is a row: it waits from the moment when its gradients exist, and then travels. Backward ends
when the last gradients exist; what travels later is exposed. It prints the seconds, as medians over the steps but the
first one.
"""

import itertools
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

FIRST_OF_A_STEP, GRADIENTS = "data.loss_weights", ("data.gradients.", "data.rows")
WAITS, HIDDEN, EXPOSED = "#d9d9d9", "#6f9fd8", "#e3a857"
# Ranks write to one file: a line may begin with digits of another.
LINE = re.compile(r"\[\d*?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\. *(\d+): T [^\]]*\] \[(\d+)\]: (.*)")
KINDS = {
    "enqueued": "Enqueued (?:tensors for \\w+: )?",
    "performing": "Performing ",
    "finished": "Finished performing ",
}


class LogLine(NamedTuple):
    """When Horovod's thread of a rank was given tensors, began to sum them, or had summed them."""

    seconds: float  # since the epoch
    rank: int
    kind: str  # one of KINDS
    names: Sequence[str]


class Sum(NamedTuple):
    """When the gradients of a bucket exist, begin to travel and have been summed: seconds from the step's begin."""

    name: str
    exists: float
    begins: float
    ends: float


class Step(NamedTuple):
    """A step of a rank: its sums in the order of their gradients, and its seconds."""

    sums: Sequence[Sum]
    seconds: float

    @property
    def backward(self) -> float:
        """Seconds until the last gradients exist."""
        return max(each.exists for each in self.sums)

    def travelling(self, since: float = 0.0) -> float:
        """Returns the seconds, later than `since`, in which gradients travel."""
        return covered((max(each.begins, since), min(each.ends, self.seconds)) for each in self.sums)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns the seconds that are in at least one of the intervals."""
    seconds, last = 0.0, 0.0
    for begin, end in sorted(intervals):
        seconds += max(0.0, end - max(begin, last))
        last = max(last, end)
    return seconds


def parse(line: str) -> LogLine | None:
    """Returns what a line of a log says; None if it is about something else."""
    if match := LINE.search(line):
        seconds = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(match[2]) / 1e6
        for kind, beginning in KINDS.items():
            if begun := re.match(beginning, match[4]):
                return LogLine(seconds, int(match[3]), kind, re.findall(r"[^\s;,]+", match[4][begun.end() :]))
    return None


def steps_of(lines: Iterator[str], rank: int = 0) -> list[Step]:
    """Returns the whole steps of a rank in the lines of a log."""
    events = [event for event in map(parse, lines) if event and event.rank == rank]
    begins = [e.seconds for e in events if e.kind == "enqueued" and FIRST_OF_A_STEP in e.names]
    return [_step([e for e in events if a <= e.seconds < b], a, b) for a, b in itertools.pairwise(begins)]


def _step(events, begin, end) -> Step:
    times: dict[str, dict[str, float]] = {}
    for event in events:
        for name in event.names:
            if name.startswith(GRADIENTS):
                # The tensors of a bucket: data.gradients.0_3of9
                times.setdefault(name.partition("_")[0], {})[event.kind] = event.seconds - begin
    sums = [Sum(name, of["enqueued"], of["performing"], of["finished"]) for name, of in times.items() if len(of) == 3]
    return Step(sorted(sums, key=lambda each: each.exists), end - begin)


def draw(steps: Mapping[str, Step], path: Path) -> None:
    """Draws steps one below the other, on one time axis."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    rows = [len(step.sums) for step in steps.values()]
    figure = Figure(figsize=(11, sum(1.0 + 0.16 * row for row in rows)), layout="constrained", facecolor="white")
    every = figure.subplots(len(steps), sharex=True, squeeze=False, height_ratios=[4 + row for row in rows])[:, 0]
    for axes, (title, step) in zip(every, steps.items(), strict=True):
        for row, each in enumerate(step.sums):
            hidden = max(0.0, min(each.ends, step.backward) - each.begins)
            axes.barh(row, each.begins - each.exists, left=each.exists, color=WAITS)
            axes.barh(row, hidden, left=each.begins, color=HIDDEN)
            axes.barh(row, each.ends - each.begins - hidden, left=each.begins + hidden, color=EXPOSED)
        axes.axvline(step.backward, color="#1a1a1a", linewidth=1)
        axes.axvline(step.seconds, color="#1a1a1a", linewidth=1, linestyle=":")
        axes.set_ylim(len(step.sums) - 0.4, -0.6)
        axes.set_yticks([])
        axes.spines[:].set_visible(False)
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    words = {WAITS: "wait for the sums before", HIDDEN: "travel during backward", EXPOSED: "travel after it"}
    handles = [Patch(color=colour, label=label) for colour, label in words.items()]
    every[0].legend(handles=handles, frameon=False, fontsize=9, loc="lower right", bbox_to_anchor=(1, 1), ncols=3)
    every[-1].set_xlim(0, 1.02 * max(step.seconds for step in steps.values()))
    every[-1].set_xlabel(
        "seconds of the step; a row is a bucket; the line is the end of backward, the dots that of the step"
    )
    figure.savefig(path, dpi=150, metadata={"Software": None})


def main(output: str, *logs: str) -> None:
    """Draws and prints what the module says."""
    drawn = {}
    print("| run | step, s | backward ends, s | first sum begins, s | gradients travel, s | exposed, s | exposed, % |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for title, _, path in (given.rpartition("=") for given in logs):
        with open(path, errors="replace") as lines:
            steps = steps_of(lines)[1:]
        if not steps:
            raise SystemExit(
                f"{path}: fewer than three steps; expected the output of a run with HOROVOD_LOG_LEVEL=trace"
            )
        drawn[title] = steps[-1]
        rows = [
            (s.seconds, s.backward, min(each.begins for each in s.sums), s.travelling(), s.travelling(s.backward))
            for s in steps
        ]
        medians = [statistics.median(column) for column in zip(*rows, strict=True)]
        share = 100 * medians[4] / medians[3]
        print(f"| {title} | {' | '.join(f'{each:.2f}' for each in medians)} | {share:.0f} |")
    draw(drawn, Path(output))


if __name__ == "__main__":
    main(*sys.argv[1:])
