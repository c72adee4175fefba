"""Copy bandwidth: how fast this machine's memory takes what is read once and written once."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Copy:
    """A copy from one large array to another, shared by threads; numpy lets go of the interpreter while it copies.

    Both arrays have been written before, so that no page is met for the first time while it counts. The C library's
    copy of large blocks writes past the cache and so moves nothing but these bytes.
    """

    def __init__(self, size: float, threads: int):
        """Makes the arrays.

        Args:
            size: bytes read and written together.
            threads: each copies its part.
        """
        half = max(int(size) // 2, threads)
        self._source, self._target = np.ones(half, np.uint8), np.ones(half, np.uint8)
        bounds = [half * index // threads for index in range(threads + 1)]
        self._parts = list(itertools.pairwise(bounds))
        self._pool = ThreadPoolExecutor(threads)
        self.bytes = 2 * half

    def __call__(self) -> float:
        """Copies once and returns bytes read and written in a second."""
        start = time.perf_counter()
        list(self._pool.map(self._copy, self._parts))
        return self.bytes / (time.perf_counter() - start)

    def _copy(self, part):
        first, last = part
        np.copyto(self._target[first:last], self._source[first:last])
