"""Table `collectives`: how long the collectives of a step wait for other ranks, and how long they take.

The rows are steps of a small model on 2 to 16 ranks of this host, with several cycle times. Each row is two runs: one
without a log, for the time of a step, and one with Horovod's own log (HOROVOD_LOG_LEVEL=trace), for its division.

Horovod's thread in each rank writes when TensorFlow hands over a tensor ("Enqueued"), when all ranks have agreed to
begin ("Performing"), and when it is done ("Finished performing"). A tensor waits from the first to the second: for the
thread's next cycle, for ranks that are not as far, and for the negotiation. It is transferred from the second to the
third.

HOROVOD_TIMELINE does not show the wait for a cycle, and its writer keeps a core busy.
"""

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from tftrain.bench.config import BenchConfig
from tftrain.bench.table import Record, Row, Say, Table, columns, each_row, rows_of
from tftrain.bench.training.run import step_seconds, train
from tftrain.bench.worker import MeasureError
from tftrain.page.bars import Panel, Series

STEPS, WARM_UP = 10, 4
LAYOUTS = {
    "tp2": ("--tensor_parallel_size=2",),
    "tp2_zero1": ("--tensor_parallel_size=2", "--split_opt_state"),
    "zero1": ("--split_opt_state",),
    "zero3": ("--split_weights",),
    "tp4": ("--tensor_parallel_size=4",),
}
# Ranks and layout; each with each cycle time.
CASES = (
    *((2, "tp2"), (2, "zero1"), (2, "zero3")),
    *((4, "tp2"), (4, "tp4"), (4, "zero1"), (4, "tp2_zero1")),
    *((8, "tp2"), (8, "tp4"), (16, "tp2"), (16, "tp2_zero1")),
)
# Milliseconds; "auto" is what the ranks choose.
CYCLES = ("auto", "0.2", "1", "5", "20")
MODEL = (
    *("--synthetic_data", "--vocab_size=1000", "--max_seq_length=64", "--num_hidden_layers=4", "--hidden_size=256"),
    *("--num_attention_heads=4", "--micro_batch_size=4", "--check_memory=false", "--group_transport=horovod"),
)

# Ranks write to one file: a line may begin with digits of another.
LINE = re.compile(r"\[\d*?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\. *(\d+): T [^\]]*\] \[(\d+)\]: (.*)")
ENQUEUED = re.compile(r"Enqueued (?:tensors for \w+: )?(.*)")
SENT = re.compile(r"Sent (\d+) messages to coordinator")

Interval = tuple[float, float]


def records(row: Row, config: BenchConfig, _say: Say) -> list[Record]:
    """Runs a row twice and returns its line of the table."""
    ranks, layout, cycle = row.settings.values()
    steps, environ = config.steps or STEPS, {} if cycle == "auto" else {"HOROVOD_CYCLE_TIME": cycle}

    flags = [*MODEL, *LAYOUTS[layout], *config.run_flags()]
    metrics, _ = train(flags, ranks, WARM_UP + steps, environ=environ, forked_from=2)
    traced = {**environ, "HOROVOD_LOG_LEVEL": "trace"}
    _, output = train(flags, ranks, WARM_UP + steps, environ=traced, forked_from=2)
    shares = summary(output.splitlines(), WARM_UP + steps, WARM_UP)
    return [{**row.settings, "step_ms": 1e3 * statistics.median(step_seconds(metrics, WARM_UP)), **shares}]


class Event(NamedTuple):
    """A line of the log: seconds since the epoch, its rank, enqueued, performing, finished or negotiated, and tensors.

    Of `negotiated`, the rank is its number in the process set, and there is only the `count` of tensors whose response
    is not in Horovod's cache.
    """

    seconds: float
    rank: int
    kind: str
    names: tuple[str, ...] = ()
    count: int = 0


def parse(line: str) -> Event | None:
    """Returns the event of a line; None if it has none."""
    match = LINE.search(line)
    if match is None:
        return None
    seconds = datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(match[2]) / 1e6
    rank, words = int(match[3]), match[4]
    if enqueued := ENQUEUED.match(words):
        return Event(seconds, rank, "enqueued", tuple(re.findall(r"[^\s;]+", enqueued[1])))
    for kind, beginning in (("performing", "Performing "), ("finished", "Finished performing ")):
        if words.startswith(beginning):
            return Event(seconds, rank, kind, tuple(words.removeprefix(beginning).split(", ")))
    sent = SENT.match(words)
    return Event(seconds, rank, "negotiated", count=int(sent[1])) if sent else None


def divide(step: Interval, waits: Iterable[Interval], transfers: Iterable[Interval]) -> tuple[float, ...]:
    """Divides a step, from its begin to its end in seconds; intervals may overlap each other and the ends of the step.

    A wait lasts from the handing over of a tensor to the begin of its collective, a transfer from there to its end.

    Returns:
        Seconds that add up to the step: of computation, data and Python alone; of waiting, while a collective waits and
        none is under way; of transfer, while one is under way. Computation may go on meanwhile.
    """
    transferring = _union(step, transfers)
    busy = _union(step, [*waits, *transferring])
    transfer, both = (sum(end - begin for begin, end in intervals) for intervals in (transferring, busy))
    return step[1] - step[0] - both, both - transfer, transfer


def summary(lines: Iterable[str], steps: int, warm_up: int) -> Record:
    """Returns columns of the table from the lines of all ranks, medians over ranks and steps.

    collectives are those that a rank handed over in a step, and negotiated those of a step whose response was not in
    Horovod's cache. A step begins with its first collective. The first `warm_up` of the steps, at least 1, do not
    count, nor does the last one.

    Raises:
        MeasureError: the log does not have so many steps.
    """
    sent: list[Event] = []
    of_ranks: dict[int, list[Event]] = defaultdict(list)
    for event in filter(None, map(parse, lines)):
        (sent if event.kind == "negotiated" else of_ranks[event.rank]).append(event)
    divisions, seconds, counts, windows = [], [], [], []
    for rank, own in of_ranks.items():
        begins = _begins(own, steps, rank)[warm_up:]
        waits, transfers = _intervals(own)
        for step in itertools.pairwise(begins):
            divisions.append(divide(step, waits, transfers))
            seconds.append(step[1] - step[0])
            counts.append(sum(len(e.names) for e in own if e.kind == "enqueued" and step[0] <= e.seconds < step[1]))
        windows.append((begins[0], begins[-1]))
    if not divisions:
        raise MeasureError("the ranks logged no collective; expected some with HOROVOD_LOG_LEVEL=trace")
    first, last = min(begin for begin, _ in windows), max(end for _, end in windows)
    negotiated = sum(event.count for event in sent if first <= event.seconds < last)
    compute, waiting, transfer = (1e3 * statistics.median(each) for each in zip(*divisions, strict=True))
    return {
        "traced_ms": 1e3 * statistics.median(seconds),
        "compute_ms": compute,
        "waiting_ms": waiting,
        "transfer_ms": transfer,
        "collectives": statistics.median(counts),
        "negotiated": negotiated / len(divisions),
    }


def _begins(events: Sequence[Event], steps: int, rank: int) -> list[float]:
    """Returns when each step of a rank begins: when the first tensor is handed over that every step has once."""
    enqueued = [event for event in events if event.kind == "enqueued"]
    counts = Counter(name for event in enqueued for name in event.names)
    first = next((name for event in enqueued for name in event.names if counts[name] == steps), None)
    if first is None:
        raise MeasureError(f"rank {rank} logged no collective {steps} times; expected one in every step")
    return [event.seconds for event in enqueued if first in event.names]


def _intervals(events: Iterable[Event]) -> tuple[list[Interval], list[Interval]]:
    """Returns the waits and the transfers of a rank's tensors."""
    waits, transfers, since, begun = [], [], {}, {}
    for event in events:
        for name in event.names:
            if event.kind == "enqueued":
                since[name] = event.seconds
            elif event.kind == "performing" and name in since:
                waits.append((since.pop(name), event.seconds))
                begun[name] = event.seconds
            elif event.kind == "finished" and name in begun:
                transfers.append((begun.pop(name), event.seconds))
    return waits, transfers


def _union(step: Interval, intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the parts of a step that are in at least one of the intervals, without overlap."""
    union: list[Interval] = []
    for begin, end in sorted((max(begin, step[0]), min(end, step[1])) for begin, end in intervals):
        if end <= begin:
            continue
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


COLLECTIVES = Table(
    "collectives",
    "a step on 2 to 16 ranks of this host: computation, waiting for negotiation, transfer, by Horovod's cycle time",
    columns(
        "ranks:0 layout cycle_ms step_ms:1 traced_ms:1 compute_ms:1 waiting_ms:1 transfer_ms:1 collectives:0 "
        "negotiated:1"
    ),
    rows_of("ranks layout cycle_ms", [(*case, cycle) for case in CASES for cycle in CYCLES], 2),
    each_row(records),
    panels=(Panel("Time of a step, ms", (Series("step_ms"),), ".1f", " ms"),),
    chart_note="A bar is the median time of a step, and its label is the same number.",
    labels=("ranks", "layout", "cycle_ms"),
    row_by_row=True,
)
