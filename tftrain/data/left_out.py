"""Samples that a run leaves out: which position of the order of the examples each sample of the run is at.

Examples are a function of the position (`order`, `mixture`, `length_buckets`). A window is a range of positions that
the run leaves out. Sample n is at the n-th position, both from 0, that is in no window: at n, if there are none. What
else depends on the number of samples, such as the size of a batch, counts samples, not positions.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LeftOut:
    """The windows of a run, each [start, stop) of positions, the oldest first; a newer one may contain older ones."""

    windows: tuple[tuple[int, int], ...] = ()

    def positions(self, samples: np.ndarray | int) -> np.ndarray:
        """Maps sample numbers from 0, int64 [n] or one, to their positions, int64 of the same shape."""
        starts, stops = self._disjoint.T
        left_out = np.cumsum([0, *(stops - starts)])  # before each window, and before the end of all
        return samples + left_out[np.searchsorted(starts - left_out[:-1], samples, side="right")]

    def without(self, first: int, stop: int) -> "LeftOut":
        """Returns the windows with one more: the positions of the samples [first, stop)."""
        start, last = self.positions(np.array([first, stop - 1])).tolist()
        return LeftOut((*self.windows, (start, last + 1)))

    def total(self, samples: int, of_positions: Callable[[int], np.ndarray]) -> np.ndarray:
        """Returns a sum over the first samples of a run, given what the sum over so many first positions is."""
        end = int(self.positions(samples - 1)) + 1 if samples else 0
        inside = [window for window in self._disjoint.tolist() if window[1] <= end]
        return of_positions(end) - sum(of_positions(stop) - of_positions(start) for start, stop in inside)

    @functools.cached_property
    def _disjoint(self) -> np.ndarray:
        """The union of the windows, int64 [n, 2], ascending."""
        union: list[list[int]] = []
        for start, stop in sorted(self.windows):
            if union and start <= union[-1][1]:
                union[-1][1] = max(union[-1][1], stop)
            else:
                union.append([start, stop])
        return np.array(union, np.int64).reshape(-1, 2)


NOTHING = LeftOut()
