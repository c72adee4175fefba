"""A save in a background thread: training goes on while the disk is busy."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tftrain.checkpoint import save
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import TensorData
from tftrain.checkpoint.save import Attempt

logger = logging.getLogger(__name__)


class Plan(NamedTuple):
    """What the chief needs to know of a save beyond its own shards; see `save.complete`."""

    run: Mapping[str, Any]
    keep_last: int
    keep_every: int
    seconds: float


class Save:
    """One rank's part of one save, under way from the start."""

    def __init__(self, attempt: Attempt, owned: Sequence[TensorData], plan: Plan | None):
        """Starts the thread.

        Args:
            attempt: the save.
            owned: this rank's pieces and their elements, which must not change before `written`.
            plan: on the chief, else None.
        """
        self._attempt, self._plan = attempt, plan
        self._written, self._abandoned = threading.Event(), threading.Event()
        self._problem: str | None = None
        # A daemon: where a disk does not answer, a process must be able to end all the same.
        self._thread = threading.Thread(target=self._run, args=(owned,), name="checkpoint", daemon=True)
        self._thread.start()

    def written(self, seconds: float) -> str | None:
        """Waits until this rank's shards are on the disk, and returns None, or why they are not."""
        return self._problem if self._written.wait(seconds) else self._late(seconds)

    def abandon(self) -> None:
        """Lets the chief wait no longer for ranks that have failed."""
        self._abandoned.set()

    def completed(self, seconds: float) -> str | None:
        """Waits for the end, and returns None, or why there is no checkpoint, as far as this rank knows."""
        self._thread.join(seconds)
        return self._late(seconds) if self._thread.is_alive() else self._problem

    def _late(self, seconds: float) -> str:
        return f"rank {self._attempt.rank}: the disk has not answered within {seconds:.0f} s"

    def _run(self, owned: Sequence[TensorData]) -> None:
        try:
            save.write(self._attempt, owned)
            self._written.set()
            if self._plan:
                logger.info(f"checkpoint {self._complete()}")
        except CheckpointError as error:
            self._fail(str(error))
        except Exception as error:
            # Whatever it is, training must not wait for ever for a thread that is gone.
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._written.set()

    def _complete(self) -> Path:
        plan = self._plan
        return save.complete(
            self._attempt, plan.run, plan.keep_last, plan.keep_every, plan.seconds, self._abandoned.is_set
        )

    def _fail(self, problem: str) -> None:
        self._problem = problem
        if self._plan:
            logger.warning(f"the checkpoint of step {self._attempt.step} has failed: {problem}")
            save.discard(self._attempt)
        else:
            logger.warning(f"no shards of step {self._attempt.step}: {problem}")
