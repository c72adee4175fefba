"""Ranks that are threads of one process: a group whose collectives need neither Horovod nor other processes.

Each rank runs the same function eagerly. A collective waits until all ranks have called it, and then gives each rank
its result as Horovod defines it, so that arithmetic over any number of ranks can be compared bit for bit.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tftrain.parallel.mesh import Group


class SimulatedRanks:
    """The ranks of one group.

    Attributes:
        order: the ranks in the order in which an all-reduce adds their tensors.
        received: by rank, the number of elements of each tensor that it received from an all-to-all.
    """

    def __init__(self, size: int, order: Sequence[int] | None = None):
        """Makes `size` ranks; by default an all-reduce adds in the order of the ranks."""
        self.size, self.order = size, order or range(size)
        self.received: list[list[int]] = [[] for _ in range(size)]
        self._barrier, self._given = threading.Barrier(size), [None] * size
        self._rank = threading.local()

    def run(self, function: Callable[[Group], Any]) -> list:
        """Calls a function with the group of each rank, at the same time, and returns the results."""
        results, errors = [None] * self.size, []

        def work(rank):
            self._rank.value = rank
            try:
                results[rank] = function(Group("simulated", tuple(range(self.size)), rank))
            except BaseException as error:
                errors.append(error)
                self._barrier.abort()

        threads = [threading.Thread(target=work, args=[rank]) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results

    def together(self, group, kind, name, tensors, operation):
        """Takes the place of `collectives._together`."""
        return operation(self, tensors)

    def all_to_all(self, tensor, splits):
        """Returns what the ranks send to this one."""
        rank = self._rank.value
        parts = [np.split(np.asarray(given), np.cumsum(split)[:-1])[rank] for given, split in self._all(tensor, splits)]
        received = np.concatenate(parts)
        self.received[rank].append(received.size)
        return tf.constant(received)

    def all_reduce(self, tensor, operation):
        """Returns the sum or the maximum."""
        every = [np.asarray(given) for (given,) in self._all(tensor)]
        total = every[self.order[0]]
        for rank in self.order[1:]:
            total = total + every[rank] if operation == "sum" else np.maximum(total, every[rank])
        return tf.constant(total)

    def broadcast(self, tensor):
        """Returns the tensor of the first rank."""
        return self._all(tensor)[0][0]

    def _all(self, *given):
        """Returns what every rank has given."""
        self._given[self._rank.value] = given
        self._barrier.wait()
        every = list(self._given)
        self._barrier.wait()
        return every
