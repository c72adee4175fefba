"""When checkpoints are due: every so many steps, every so many minutes, whichever comes first.

The clocks of hosts differ, and all ranks must save after the same step. So only the chief looks at its clock, and its
request travels with the next step, like the request of a signal.
"""

import time
from collections.abc import Callable

from tftrain.config.run import CheckpointConfig


class SaveSchedule:
    """Decides after each step whether a checkpoint is due; equal on all ranks."""

    def __init__(self, config: CheckpointConfig, is_chief: bool, now: Callable[[], float] = time.monotonic):
        """Starts the clock, which counts on the chief alone; `now` returns seconds."""
        self._every, self._seconds = config.checkpoint_every, 60 * config.checkpoint_minutes if is_chief else 0.0
        self._now, self._is_due = now, False
        self._since = now()

    def request(self) -> float:
        """Returns this rank's request for the next step: 1 if time is up, else 0."""
        return float(self._seconds > 0 and self._now() - self._since >= self._seconds)

    def is_due(self, step: int, request: float) -> bool:
        """Returns whether a checkpoint is due after this step, given all ranks' largest request, until `saved`."""
        self._is_due |= request > 0 or (self._every > 0 and step % self._every == 0)
        return self._is_due

    def saved(self) -> None:
        """Starts the time until the next checkpoint."""
        self._is_due, self._since = False, self._now()
