"""Worker processes that run one stage of tasks at a time.

Results come in task order, so the output of a stage does not depend on the number of workers. With one worker, the
tasks run in the calling process.
"""

import contextlib
import importlib
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import starmap
from typing import TypeVar

from tqdm import tqdm

from tftrain.files.errors import DataError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_TASKS_IN_FLIGHT = 4  # submitted tasks of a worker at most
# What libraries find in a process that runs one task at a time: one thread, and no GPU.
ENVIRONMENT = {
    "TF_USE_LEGACY_KERAS": "1",
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Workers:
    """A pool of `count` spawned processes, which start with the first stage and end with the context.

    If an exception leaves the context, they are terminated at once.
    """

    def __init__(self, count: int):
        self.count = count
        self._pool = spawned(count, begin) if count > 1 else None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None:
            for process in multiprocessing.active_children():
                process.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, stage: str, function: Callable[..., Result], tasks: Sequence[tuple]) -> Iterator[Result]:
        """Yields function(*task) for each task, in task order, and shows a progress bar.

        Args:
            stage: its name for the progress bar and error messages.
            function: a function that another process can import; its exceptions are raised here.

        Raises:
            DataError: a worker process died.
        """
        with progress(stage, len(tasks)) as advance:
            for result in self._results(stage, function, tasks):
                advance()
                yield result

    def load(self, module: str) -> None:
        """Lets each process import a module that it will need, while this one goes on."""
        for _ in range(self.count if self._pool else 0):
            self._pool.submit(_load, module)

    def _results(self, stage: str, function: Callable[..., Result], tasks: Sequence[tuple]) -> Iterator[Result]:
        if self._pool is None:
            yield from starmap(function, tasks)
            return
        pending: deque = deque()
        try:
            for task in tasks:
                pending.append(self._pool.submit(function, *task))
                if len(pending) >= _TASKS_IN_FLIGHT * self.count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool as error:
            raise DataError(
                f"a worker process died in the stage {stage!r}, probably because memory was short; use a "
                f"smaller --num_workers than {self.count}, a smaller --shard_mb, or a machine with more memory"
            ) from error


@contextlib.contextmanager
def progress(stage: str, total: int | None = None) -> Iterator[Callable[[], object]]:
    """Shows a progress bar on a terminal, and logs the duration at the end. Gives what counts a step of `total`."""
    begin = time.monotonic()
    with tqdm(total=total, desc=stage, disable=None, leave=False, dynamic_ncols=True) as bar:
        yield bar.update
    logger.info(f"{stage}: {time.monotonic() - begin:.1f} s")


def _load(module: str) -> None:
    importlib.import_module(module)


def spawned(count: int, initializer: Callable[[], object]) -> ProcessPoolExecutor:
    """Returns a pool of processes that are set up by `initializer`."""
    return ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=initializer)


def begin(end: Callable[[], object] | None = None) -> None:
    """Sets up a worker process: the parent handles Ctrl-C, and libraries find ENVIRONMENT.

    A thread ends it, or calls `end`, when the process that started it has ended, however that was.
    """

    def wait() -> None:
        multiprocessing.parent_process().join()
        end() if end else os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.environ.update(ENVIRONMENT)
    threading.Thread(target=wait, daemon=True).start()
