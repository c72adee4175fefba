"""Copy bandwidth: bytes that this machine reads and writes in a second while it copies."""

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Copy:
    """A copy from one large array to another by several threads; numpy releases the interpreter lock while it copies.

    The constructor writes both arrays, so that a timed copy causes no page fault. The C library copies large blocks
    with stores that bypass the cache, and so moves these bytes only.
    """

    def __init__(self, size: float, threads: int):
        """Makes arrays, of `size` bytes read and written together, of which each thread copies its part."""
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
