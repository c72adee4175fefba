"""A save in a background thread: training continues while the disk is busy."""

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
    """Arguments of `save.complete` for the chief."""

    run: Mapping[str, Any]
    keep_last: int
    keep_every: int
    seconds: float
    keep_step: int | None = None


class Save:
    """One rank's part of one save; the constructor starts it."""

    def __init__(self, attempt: Attempt, tensors: Sequence[TensorData], plan: Plan | None):
        """Starts the thread.

        Args:
            attempt: the save.
            tensors: this rank's pieces and their elements, which must not change before `written` returns True.
            plan: on the chief; None on other ranks.
        """
        self._attempt, self._plan = attempt, plan
        self._written, self._abandoned = threading.Event(), threading.Event()
        self._problem: str | None = None
        # A daemon thread: a process must be able to end although a disk does not answer.
        self._thread = threading.Thread(target=self._run, args=(tensors,), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why the save has failed, as far as this rank knows it; None while it has not."""
        return self._problem

    def written(self, seconds: float) -> bool:
        """Waits until this rank's shards are on the disk or have failed; returns False if that takes longer."""
        return self._written.wait(seconds)

    def abandon(self) -> None:
        """Makes the chief stop waiting for other ranks, of which one has failed."""
        self._abandoned.set()

    def completed(self, seconds: float) -> bool:
        """Waits for the end of the save, successful or not; returns False if that takes longer."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self, tensors: Sequence[TensorData]) -> None:
        try:
            save.write(self._attempt, tensors)
            self._written.set()
            if self._plan:
                logger.info(f"checkpoint {self._complete()}")
        except CheckpointError as error:
            self._fail(str(error))
        except Exception as error:
            # After any error: training must not wait forever for a thread that has ended.
            self._fail(f"{type(error).__name__}: {error}")
        finally:
            self._written.set()

    def _complete(self) -> Path:
        plan = self._plan
        kept = plan.keep_last, plan.keep_every
        return save.complete(
            self._attempt, plan.run, *kept, plan.seconds, self._abandoned.is_set, keep_step=plan.keep_step
        )

    def _fail(self, problem: str) -> None:
        self._problem = problem
        if self._plan:
            logger.warning(f"the checkpoint of step {self._attempt.step} has failed: {problem}")
            save.discard(self._attempt)
        else:
            logger.warning(f"no shards of step {self._attempt.step}: {problem}")
