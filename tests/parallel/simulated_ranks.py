"""Ranks that are threads of one process: a group whose collectives need neither Horovod nor other processes.

Each rank runs the same function eagerly. A collective waits until all ranks have called it, and then gives each rank
its result as Horovod defines it, so that arithmetic over any number of ranks can be compared bit for bit.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tftrain.parallel import collectives
from tftrain.parallel.mesh import Group


class SimulatedRanks:
    """The ranks of one group.

    Attributes:
        names: by rank, the names of its collectives in their order.
        received: by rank, the number of elements of each tensor that it received from an all-to-all.
    """

    def __init__(self, size: int, monkeypatch: pytest.MonkeyPatch, order: Sequence[int] | None = None):
        """Makes `size` ranks; an all-reduce adds the ranks' tensors in `order`, by default that of the ranks."""
        self.size, self._order = size, order or range(size)
        self.names, self.received = [[] for _ in range(size)], [[] for _ in range(size)]
        self._barrier, self._given = threading.Barrier(size, timeout=60), [None] * size
        self._rank = threading.local()
        monkeypatch.setattr(collectives, "_together", self._together)

    @property
    def rank(self) -> int:
        """The rank that calls it."""
        return self._rank.value

    def run(self, function: Callable[[Group], Any]) -> list:
        """Calls a function with the group of each rank, at the same time, and returns the results."""

        def work(rank):
            self._rank.value = rank
            try:
                return function(Group("simulated", tuple(range(self.size)), rank))
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(work, range(self.size)))

    def all_to_all(self, tensor, splits):
        """Returns what the ranks send to this one."""
        rank = self.rank
        parts = [np.split(np.asarray(given), np.cumsum(split)[:-1])[rank] for given, split in self._all(tensor, splits)]
        received = np.concatenate(parts)
        self.received[rank].append(received.size)
        return tf.constant(received)

    def all_gather(self, tensor):
        """Concatenates the rows of the ranks."""
        return tf.concat([given for (given,) in self._all(tensor)], axis=0)

    def all_reduce(self, tensor, operation):
        """Returns the sum or the maximum."""
        every, combine = self._all(tensor), {"sum": np.add, "max": np.maximum}[operation]
        total, *others = (np.asarray(every[rank][0]) for rank in self._order)
        for other in others:
            total = combine(total, other)
        return tf.constant(total)

    def _together(self, group, kind, name, tensors, operation):
        if group.size == 1:  # that of a thread alone
            return tensors
        self.names[group.rank].append(name)
        return operation(self, tensors)

    def _all(self, *given):
        """Returns what every rank has given."""
        self._given[self.rank] = given
        self._barrier.wait()
        every = list(self._given)
        self._barrier.wait()
        return every
