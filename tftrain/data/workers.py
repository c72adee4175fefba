"""Worker processes, one stage of work at a time, with results in the order of the tasks.

Because results come back in that order, whatever is made of them is the same for any number of workers. With one worker
the tasks run in this process.
"""

import logging
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tqdm import tqdm

from tftrain.data.errors import DataError

logger = logging.getLogger(__name__)

Task = TypeVar("Task")
Result = TypeVar("Result")

# Finished results that may wait for an earlier, slower task, for each worker.
_AHEAD = 4


class Workers:
    """A pool of spawned processes; leaving its context ends them, at once if it is left by an exception."""

    def __init__(self, count: int):
        """Starts nothing yet; the processes begin with the first stage."""
        self.count = count
        self._pool = None
        if count > 1:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin, initargs=(os.getpid(),))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind, *_) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, stage: str, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        """Yields function(task) of each task, in order, under a progress bar.

        Args:
            stage: its name, for the bar and for messages.
            function: importable, as it is called in another process.
            tasks: what it is called with.

        Raises:
            DataError: a worker died; or whatever the function raised.
        """
        with Stage(stage, len(tasks)) as progress:
            results = map(function, tasks) if self._pool is None else self._in_order(stage, function, tasks)
            for result in results:
                progress.advance()
                yield result

    def _in_order(self, stage: str, function: Callable[[Task], Result], tasks: Sequence[Task]) -> Iterator[Result]:
        waiting: deque = deque()
        try:
            for task in tasks:
                waiting.append(self._pool.submit(function, task))
                if len(waiting) >= _AHEAD * self.count:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                f"a worker process died in the stage {stage!r}, killed for its memory as a rule; give the "
                f"machine more, or use a smaller --num_workers than {self.count} or a smaller --shard_mb"
            ) from error


class Stage:
    """A progress bar where the terminal is one; a line with the time at the end of the stage in any case."""

    def __init__(self, name: str, total: int | None):
        """Begins a stage of `total` steps, None if their number is not known."""
        self._name, self._begin = name, time.monotonic()
        self._bar = tqdm(total=total, desc=name, disable=None, leave=False, dynamic_ncols=True)

    def advance(self) -> None:
        """Counts one step."""
        self._bar.update()

    def __enter__(self) -> "Stage":
        return self

    def __exit__(self, kind, *_) -> None:
        self._bar.close()
        if kind is None:
            logger.info(f"{self._name}: {time.monotonic() - self._begin:.1f} s")


def _begin(parent: int) -> None:
    """Sets up a worker: Ctrl-C is the parent's business; TensorFlow has one thread, as there are many workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(
        TF_USE_LEGACY_KERAS="1",
        CUDA_VISIBLE_DEVICES="-1",
        TF_CPP_MIN_LOG_LEVEL="3",
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="1",
        OMP_NUM_THREADS="1",
    )
    if os.getppid() != parent:
        raise SystemExit(1)
