"""The saves of a run: all ranks start a save together, write it in the background, and agree on its result.

No rank acts on the result of its own disk alone. At the next save, or at the end, a collective tells all ranks whether
the save has succeeded. So all ranks count the same failures and stop at the same step.
"""

import functools
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from tftrain.checkpoint import folder, memory, save
from tftrain.checkpoint.errors import FailedSavesError
from tftrain.checkpoint.save import Attempt, BackgroundSave
from tftrain.checkpoint.tensor_slice import TensorData, TensorSlice
from tftrain.config.run import CheckpointConfig, RunConfig
from tftrain.host import devices
from tftrain.host.exit_codes import NotFiniteError
from tftrain.parallel import collectives
from tftrain.parallel.horovod_settings import stall_shutdown_seconds
from tftrain.parallel.mesh import Mesh

# Shares of `save_timeout_seconds` for the shards of all ranks, and for the rest of the save.
WRITE_SHARE, COMPLETE_SHARE = 0.6, 0.3
# A rank that has finished waits for the others in a collective, and Horovod ends a run whose collective takes too long.
# So the ranks wait in rounds of this share of Horovod's limit, with a collective after each.
ROUND_SHARE = 0.1
DONE, WAITING, FAILED, NOT_FINITE = range(4)
# A run that ends in an error lets a save under way finish, unless it takes longer: launchers kill after 5 seconds.
EXIT_SECONDS = 4
# Numbers are sent as float64, which represents these exactly.
ATTEMPT_BITS = 48


class Saves:
    """Saves of one run, one at a time; an error that leaves its `with` statement lets the one under way finish."""

    def __init__(
        self, config: CheckpointConfig, run: RunConfig, seconds: float, mesh: Mesh, on_completed: Callable[[], None]
    ):
        """A save may take `seconds`; `on_completed` is called on the chief after each checkpoint, in a thread."""
        self._on_completed = on_completed
        self._config, self._output_dir, self._mesh = config, run.folder, mesh
        self._keeps_copy, self._timeout = config.keeps_copy(run.max_steps), seconds
        self.failed = self._in_a_row = 0  # The same on all ranks.
        self.keep_step: int | None = None  # A step whose checkpoint is not removed: the one with the best score.
        self._save: BackgroundSave | None = None
        self._newest: Path | None = None
        self._staging: dict[TensorSlice, np.ndarray] = {}
        self._preparing: threading.Thread | None = None

    def __enter__(self) -> "Saves":
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error and self._save:
            if collectives.is_peer_failure(error):
                self._save.abandon()  # A rank that has ended will announce nothing more.
            self._save.completed(EXIT_SECONDS)

    def prepare(self, pieces: Iterable[TensorSlice]) -> threading.Thread:
        """Maps memory for copies of these pieces, if there are any, in a thread; returns the thread.

        The first save is then as fast as later ones.
        """
        if self._keeps_copy:
            self._staging = memory.arrays(pieces)
        staging = list(self._staging.values())
        self._preparing = threading.Thread(target=memory.map_pages, args=(staging,), name="staging", daemon=True)
        self._preparing.start()
        return self._preparing

    @property
    def newest(self) -> Path | None:
        """The newest checkpoint that this run has completed, on the chief; None on other ranks."""
        completed = self._save and self._save.path
        return completed if completed and folder.order(completed) else self._newest  # Other names are of no checkpoint.

    @property
    def copy_bytes(self) -> int:
        """Bytes of the memory for copies."""
        return sum(values.nbytes for values in self._staging.values())

    def start(
        self,
        step: int,
        described: Mapping[str, Any],
        owned: Callable[[], Iterable[TensorData]],
        last: bool = False,
        is_good: bool = True,
    ) -> None:
        """Starts to write this rank's pieces, or a copy of them; every rank must call it.

        If another save is under way, this waits for it first.

        Args:
            step, described: updates done, and the description of the run for the manifest.
            owned: makes this rank's pieces and their elements, flat, which stay as they are as long as they are held.
            last: whether to write the elements themselves. Otherwise a thread copies them first, and holds none longer.
            is_good: whether a run may go on from the checkpoint without being told to.

        Raises:
            FailedSavesError, NotFiniteError: see `settle`, of the save before, or of this one if training waits for it.
        """
        self.settle()
        # State on a GPU is copied to the host for any save, so training need not wait.
        copies = not last and self._config.checkpoint_async and (self._keeps_copy or devices.has_gpu())
        mine = list(owned())
        number = secrets.randbits(ATTEMPT_BITS) if self._mesh.is_chief else 0
        number = int(collectives.gather_numbers(self._mesh.world, number, "save.attempt")[0])
        attempt = Attempt(Path(self._output_dir), step, number, self._mesh.rank, self._mesh.size, is_good)
        kept, seconds = (self._config.keep_last, self._config.keep_every, self.keep_step), WRITE_SHARE * self._timeout

        def complete(given_up: Callable[[], bool]) -> Path:
            path = save.complete(attempt, described, lambda all_: folder.superseded(all_, *kept), seconds, given_up)
            self._on_completed()
            return path

        tensors = functools.partial(self._copies, mine) if copies else lambda: mine
        self._save = BackgroundSave(attempt, tensors, complete if self._mesh.is_chief else None)
        if not (copies or last):
            self.settle()

    def superseded(self, checkpoints: Sequence[PurePath]) -> list[PurePath]:
        """Returns those of checkpoints, which are oldest first, that the run's flags do not keep."""
        return folder.superseded(checkpoints, self._config.keep_last, self._config.keep_every, self.keep_step)

    def _copies(self, owned: list[TensorData]) -> list[TensorData]:
        """Returns copies of tensors, and empties the list."""
        if self._preparing:
            self._preparing.join()
        pieces = [piece for piece, _ in owned]
        # Memory that was touched before is filled many times as fast as new memory, so it is kept.
        self._staging = self._staging | memory.arrays(piece for piece in pieces if piece not in self._staging)
        memory.move(owned, self._staging)
        return [TensorData(piece, self._staging[piece]) for piece in pieces]

    def settle(self) -> str | None:
        """Waits for the save that is under way, if any, and counts it if it has failed; every rank must call it.

        Returns:
            The reason as far as this rank knows it, if the save has failed; else None.

        Raises:
            FailedSavesError: too many saves in a row have failed, on all ranks alike.
            NotFiniteError: an element was not finite; on all ranks alike. There is no checkpoint of that step.
        """
        if self._save is None:
            return None
        written, problem = self._await("save.written", self._save.written, WRITE_SHARE)
        if problem:
            self._staging = {}  # A thread that hangs may still read what is there.
        if (written >= FAILED).any():
            self._save.abandon()
        completed, late = self._await("save.completed", self._save.completed, COMPLETE_SHARE)
        self._newest = self.newest
        ended, problem, self._save = self._save, problem or late, None
        if (written == NOT_FINITE).any():
            ranks = ", ".join(map(str, np.flatnonzero(written == NOT_FINITE)))
            name = f" ({ended.not_finite})" if ended.not_finite else ""
            kept = "it is not saved, and older checkpoints stay as they are"
            raise NotFiniteError(f"after step {ended.step} the state on rank {ranks} is not finite{name}; {kept}")
        # A rank that has written its shards knows no more; the chief knows whether there is a checkpoint.
        if completed[0] != FAILED:
            self._in_a_row = 0
            return None
        self.failed, self._in_a_row = self.failed + 1, self._in_a_row + 1
        if self._in_a_row >= self._config.max_failed_saves:
            state = f"{self._output_dir}: {self._in_a_row} saves in a row have failed"
            raise FailedSavesError(f"{state}, as many as --max_failed_saves permits{_reason(problem)}")
        return problem

    def _await(self, name: str, wait: Callable[[float], bool], share: float) -> tuple[np.ndarray, str | None]:
        """Waits until a phase of the save has ended on every rank; every rank must call it.

        Returns DONE, FAILED or NOT_FINITE for each rank, and the reason if this one has failed, also if `wait`, which
        returns whether this rank's part has ended within so many seconds, takes longer than this share of
        `save_timeout_seconds`.
        """
        limit = share * self._timeout
        end, round_seconds = time.monotonic() + limit, ROUND_SHARE * stall_shutdown_seconds()
        while True:
            has_ended = wait(min(round_seconds, max(0.0, end - time.monotonic())))
            problem = self._save.problem
            if not has_ended and time.monotonic() >= end:
                problem = f"rank {self._mesh.rank}: the disk has not answered within {limit:.0f} s"
            state = FAILED if problem else DONE if has_ended else WAITING
            state = NOT_FINITE if self._save.not_finite else state
            states = collectives.gather_numbers(self._mesh.world, state, name)
            if not (states == WAITING).any():
                return states, problem

    def finish(self) -> None:
        """Waits for the last save; raises a FailedSavesError if it has failed. Every rank must call it."""
        before = self.failed
        problem = self.settle()
        if self.failed > before:
            raise FailedSavesError(f"{self._output_dir}: the last save has failed{_reason(problem)}")


def _reason(problem: str | None) -> str:
    return f": {problem}" if problem else "; rank 0 says why"
