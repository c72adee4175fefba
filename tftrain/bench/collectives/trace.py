"""Where the time of a step goes, from Horovod's own log (HOROVOD_LOG_LEVEL=trace).

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

from tftrain.bench.worker import MeasureError

# Ranks write to one file: a line may begin with digits of another.
LINE = re.compile(r"\[\d*?(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\. *(\d+): T [^\]]*\] \[(\d+)\]: (.*)")
ENQUEUED = re.compile(r"Enqueued (?:tensors for \w+: )?(.*)")
SENT = re.compile(r"Sent (\d+) messages to coordinator")

Interval = tuple[float, float]


class Event(NamedTuple):
    """A line of the log.

    Attributes:
        seconds: since the epoch.
        rank: that wrote it; for `negotiated`, its number in the process set.
        kind: enqueued, performing, finished or negotiated.
        names, count: the tensors; of `negotiated`, only the number of those whose response is not in Horovod's cache.
    """

    seconds: float
    rank: int
    kind: str
    names: tuple[str, ...] = ()
    count: int = 0


class Division(NamedTuple):
    """Seconds of a step; they add up to it.

    Attributes:
        compute: no collective was waiting or under way: computation, data, Python.
        waiting: a collective was waiting, and none under way. Computation may go on meanwhile.
        transfer: a collective was under way. Computation may go on meanwhile.
    """

    compute: float
    waiting: float
    transfer: float


class Steps(NamedTuple):
    """The steps of a run.

    Attributes:
        division: medians over ranks and steps.
        seconds: of a step.
        collectives: handed over in a step, by a rank.
        negotiated: those of a step whose response was not in Horovod's cache.
    """

    division: Division
    seconds: float
    collectives: float
    negotiated: float


def parse(line: str) -> Event | None:
    """Returns the event of a line; None if it has none."""
    found = LINE.search(line)
    if found is None:
        return None
    seconds = datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").timestamp() + int(found[2]) / 1e6
    rank, words = int(found[3]), found[4]
    if enqueued := ENQUEUED.match(words):
        return Event(seconds, rank, "enqueued", tuple(re.findall(r"[^\s;]+", enqueued[1])))
    for kind, beginning in (("performing", "Performing "), ("finished", "Finished performing ")):
        if words.startswith(beginning):
            return Event(seconds, rank, kind, tuple(words.removeprefix(beginning).split(", ")))
    if sent := SENT.match(words):
        return Event(seconds, rank, "negotiated", count=int(sent[1]))
    return None


def divide(step: Interval, waits: Iterable[Interval], transfers: Iterable[Interval]) -> Division:
    """Divides a step, from its begin to its end in seconds; intervals may overlap each other and the ends of the step.

    A wait lasts from the handing over of a tensor to the begin of its collective, a transfer from there to its end.
    """
    transferring = _union(step, transfers)
    busy = _union(step, [*waits, *transferring])
    transfer, both = (sum(end - begin for begin, end in intervals) for intervals in (transferring, busy))
    return Division(step[1] - step[0] - both, both - transfer, transfer)


def summary(lines: Iterable[str], steps: int, warm_up: int) -> Steps:
    """Returns the figures of a run.

    Args:
        lines: of all ranks.
        steps: of the run; a step begins with its first collective.
        warm_up: steps at the beginning that do not count, at least 1. The last one does not count either.

    Raises:
        MeasureError: the log does not have so many steps.
    """
    events = [event for line in lines if (event := parse(line))]
    sent = [event for event in events if event.kind == "negotiated"]
    of_ranks: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.kind != "negotiated":
            of_ranks[event.rank].append(event)
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
    median = Division(*(statistics.median(each) for each in zip(*divisions, strict=True)))
    return Steps(median, statistics.median(seconds), statistics.median(counts), negotiated / len(divisions))


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
    found: list[Interval] = []
    for begin, end in sorted((max(begin, step[0]), min(end, step[1])) for begin, end in intervals):
        if end <= begin:
            continue
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found
