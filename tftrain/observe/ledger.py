"""Where the seconds of a process go, by kind: each second counts once, for the innermost kind that is under way."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator

import psutil

START, OTHER = "start", "other"


class Ledger:
    """The seconds of this process since it was started; `began`: when that was, in seconds since the epoch."""

    def __init__(self):
        """Begins with what the process has done so far, which counts as its start."""
        # The time of the boot, which `create_time` adds, is rounded to a second.
        self.restart(time.clock_gettime(time.CLOCK_BOOTTIME) - psutil.Process().create_time() + psutil.boot_time())

    def restart(self, age: float = 0.0) -> None:
        """Begins again, now or so many seconds ago."""
        self.began = time.time() - age
        self._seconds: Counter[str] = Counter()
        self._kind, self._since = START, time.monotonic() - age

    @contextlib.contextmanager
    def spend(self, kind: str) -> Iterator[None]:
        """Counts the body of a `with` statement as a kind; after the first that is no start, other time is "other"."""
        outer = self._kind
        self._change(kind)
        try:
            yield
        finally:
            self._change(OTHER if outer == START != kind else outer)

    def seconds(self) -> dict[str, float]:
        """Returns the seconds of each kind until now; their sum is the time since `began`."""
        self._change(self._kind)
        return dict(self._seconds)

    def _change(self, kind: str) -> None:
        now = time.monotonic()
        self._seconds[self._kind] += now - self._since
        self._kind, self._since = kind, now
