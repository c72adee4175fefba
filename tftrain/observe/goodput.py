"""Goodput: the share of a run's hours that went into steps which count, over all starts of the run.

OUTPUT_DIR/goodput.json has an entry for each start, as of at most `SECONDS` before it ended. A rollback is a start,
too. If a start was killed, the next one repeats the steps after the last checkpoint: their seconds are "repeated". The
time from the end of a start to the beginning of the next is "down". So all kinds add up to the time since the run was
first started.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tftrain.files import durable
from tftrain.host.text import reason
from tftrain.observe.ledger import Ledger
from tftrain.observe.rows import duration

logger = logging.getLogger(__name__)

NAME = "goodput.json"
SECONDS = 10.0
KINDS = {
    "steps": "whose updates the run still has",
    "repeated": "steps that were taken again, because no checkpoint had them or a rollback left them",
    "start": "imports, connecting the ranks, building the model, reading a checkpoint",
    "compile": "the first step with each size of a batch",
    "data": "waiting for batches",
    "evaluation": "of the held-out split",
    "checkpoints": "as far as training waits for them",
    "down": "no process ran, or its last seconds are not known",
    "other": "reports, pictures and hooks",
}


class Start(msgspec.Struct):
    """One start of a run."""

    began: float  # when its process was started, in seconds since the epoch
    first: int  # updates before it
    step: int  # updates after it
    seconds: dict[str, float]  # by kind, of `KINDS` without repeated and down


def read(output_dir: str | Path) -> list[Start]:
    """Returns the starts of a run, oldest first; none if there is no file.

    Raises an OSError if the file can't be read, and a ValueError that names the file if it is damaged.
    """
    path = Path(output_dir) / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Start])
    except FileNotFoundError:
        return []
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from error


def totals(starts: Sequence[Start]) -> dict[str, float]:
    """Returns the seconds of each kind over all starts, in the order of `KINDS`, without kinds that have none."""
    seconds, kept = Counter(), None
    for index in reversed(range(len(starts))):
        start, steps = starts[index], starts[index].step - starts[index].first
        seconds.update(start.seconds)
        if index + 1 < len(starts):
            end = start.began + sum(start.seconds.values())
            seconds["down"] += max(0.0, starts[index + 1].began - end)
            kept = min(starts[index + 1].first, kept)
            lost = start.seconds.get("steps", 0.0) * min(max(start.step - kept, 0), steps) / max(steps, 1)
            seconds["steps"] -= lost
            seconds["repeated"] += lost
        else:
            kept = start.step
    return {kind: seconds[kind] for kind in KINDS if seconds[kind] > 0}


def words(starts: Sequence[Start]) -> str:
    """Returns one line: the share of the steps, and that of every other kind, the largest first."""
    seconds = totals(starts)
    whole, steps = sum(seconds.values()), seconds.pop("steps", 0.0)
    others = sorted(seconds.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{kind} {value / whole:.1%}" for kind, value in others)
    begun = "since the start" if len(starts) == 1 else f"since the first of {len(starts)} starts"
    return f"goodput {steps / whole:.1%} of {duration(whole)} {begun}; {shares}"


class Goodput:
    """The record of the start that is under way."""

    def __init__(self, output_dir: str | Path, ledger: Ledger, first: int):
        """Reads the earlier starts and writes down this one, with `first` updates done before it."""
        self.starts, self._ledger, self._last, self._failed = [], ledger, time.monotonic(), False
        self._path, self._first = Path(output_dir) / NAME, first
        try:
            self.starts = read(output_dir)
        except (OSError, ValueError) as error:
            logger.warning(f"the goodput of earlier starts is lost: {error}")
        self.starts.append(Start(ledger.began, first, first, {}))
        self.note(first, at_once=True)

    def go_back(self, step: int, first: int) -> None:
        """Ends this entry at `step` and begins one at `first`."""
        self.note(step, at_once=True)
        self._ledger.restart()
        self._first = first
        self.starts.append(Start(self._ledger.began, first, first, {}))

    def note(self, step: int, at_once: bool = False) -> None:
        """Writes the seconds until now, after so many updates, if it is time or must be at once."""
        if not at_once and time.monotonic() - self._last < SECONDS:
            return
        self._last = time.monotonic()
        self.starts[-1] = Start(self._ledger.began, self._first, step, self._ledger.seconds())
        try:
            durable.write(self._path, msgspec.json.format(msgspec.json.encode(self.starts), indent=1))
        except OSError as error:
            if not self._failed:
                logger.warning(f"{self._path}: goodput can't be written: {reason(error)}")
            self._failed = True
