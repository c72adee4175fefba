"""One save: the part of each rank and the part of the chief. A crash at any moment leaves complete checkpoints only.

Every rank writes its shards into a folder beside the checkpoints, then announces them in a small file there. The chief
waits for all announcements, writes the manifest from them, and renames the folder, which makes it a checkpoint. The
ranks communicate through the folder only, so a save can run in background threads while training uses collectives.

Each phase is a function of this module that is looked up when it is called. Tests replace `write_shard`, `announce`,
`write_manifest`, `commit` or `clean_up` to stop a save before, in or after a phase.
"""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import msgspec

from tftrain.checkpoint import folder, manifest, memory, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.manifest import CheckpointManifest
from tftrain.checkpoint.placement import Placement
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.tensor_slice import TensorData
from tftrain.files import durable

logger = logging.getLogger(__name__)

MAX_POLL_SECONDS = 0.5
# Returns those of a run's checkpoints, given the oldest first, that are to be removed, see `folder.superseded`.
Superseded = Callable[[Sequence[PurePath]], list[PurePath]]


class Announcement(msgspec.Struct):
    """The file that tells the chief which shards a rank has written, with their slices, or why it has failed."""

    files: dict[str, Written] = {}
    error: str = ""


@dataclass(frozen=True)
class Attempt:
    """One attempt of all ranks to save a step."""

    output_dir: Path  # the run's folder, the same one for all ranks
    step: int  # updates done
    number: int  # unique, so that files of an earlier attempt are never taken for files of this one
    rank: int = 0  # this process; rank 0 is the chief
    ranks: int = 1
    is_good: bool = True  # whether a run may go on from it without being told to, see `folder.free_name`

    @property
    def folder(self) -> Path:
        """The folder that the ranks write to."""
        return folder.partial(self.output_dir, self.step, self.number)

    def announcement(self, rank: int) -> Path:
        """Returns the file in which a rank announces its shards or its failure."""
        return self.folder / f"rank_{rank:05d}.json"


def write(attempt: Attempt, tensors: Sequence[TensorData]) -> None:
    """Writes this rank's shards and announces them; announces a failure as well, if possible.

    The slices of all ranks hold each element of each tensor once.

    Raises:
        CheckpointError: the shards can't be written.
    """
    try:
        if attempt.rank == 0:
            folder.sweep(attempt.output_dir, except_for=attempt.folder)
        # Without its parents: a folder on another disk must not replace a mount that has vanished.
        attempt.folder.mkdir(exist_ok=True)
        files, values = {}, dict(tensors)
        for number, pieces in enumerate(shard.pack(values)):
            name = file_name(attempt.rank, number)
            files[name] = write_shard(attempt.folder / name, [TensorData(piece, values[piece]) for piece in pieces])
        # On a file system of several hosts, the chief's flush says nothing of names that other hosts have made.
        durable.flush(attempt.folder)
        durable.flush(attempt.folder.parent)
        announce(attempt, files)
    except OSError as error:
        message = f"rank {attempt.rank}: {error}"
        with contextlib.suppress(OSError):  # The disk may refuse this file as well.
            durable.write(attempt.announcement(attempt.rank), msgspec.json.encode(Announcement(error=message)))
        raise CheckpointError(message) from error


def write_shard(path: Path, tensors: Sequence[TensorData]) -> Written:
    """Writes and flushes one file."""
    return shard.write(path, [piece for piece, _ in tensors], (values for _, values in tensors))


def file_name(rank: int, number: int) -> str:
    """Returns the name of a rank's shard."""
    return f"shard_{rank:05d}_{number:03d}.safetensors"


def announce(attempt: Attempt, files: dict[str, Written]) -> None:
    """Announces the shards that this rank has written to the chief."""
    durable.write(attempt.announcement(attempt.rank), msgspec.json.encode(Announcement(files)))


def complete(
    attempt: Attempt, run: Mapping[str, Any], superseded: Superseded, seconds: float, given_up: Callable[[], bool]
) -> Path:
    """Makes the shards of all ranks a checkpoint and returns it: the chief's part, after its own `write`.

    Args:
        attempt, run: the save, and the description of the run for the manifest.
        superseded: which checkpoints are removed then.
        seconds: time limit of the wait for the other ranks.
        given_up: returns whether another rank is known to have failed.

    Raises:
        CheckpointError: the save has failed; older checkpoints are unchanged.
    """
    try:
        files = gather(attempt, seconds, given_up)
        write_manifest(attempt, CheckpointManifest(attempt.step, files, run))
        path = commit(attempt)
    except OSError as error:
        raise CheckpointError(f"{attempt.folder}: {error}") from error
    try:
        clean_up(attempt, superseded)
    except OSError as error:
        logger.warning(f"older checkpoints can't be removed: {error}")
    return path


def gather(attempt: Attempt, seconds: float, given_up: Callable[[], bool]) -> Placement:
    """Returns all files, once all ranks have announced theirs; raises a CheckpointError if one fails or is too late."""
    files, end, pause = {}, time.monotonic() + seconds, 0.005
    for rank in range(attempt.ranks):
        path = attempt.announcement(rank)
        while not path.exists():
            if given_up():
                raise CheckpointError("another rank can't write its shards; its own output has the reason")
            if time.monotonic() > end:
                raise CheckpointError(f"rank {rank} has not written its shards within {seconds:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        try:
            announced = msgspec.json.decode(path.read_bytes(), type=Announcement)
        except ValueError as error:
            raise CheckpointError(f"{path}: not the announcement of a rank: {error}") from error
        if announced.error:
            raise CheckpointError(announced.error)
        files |= announced.files
    try:
        return Placement.of(files)
    except ValueError as error:
        raise CheckpointError(f"{attempt.folder}: the ranks' announcements contradict each other: {error}") from error


def write_manifest(attempt: Attempt, content: CheckpointManifest) -> None:
    """Writes and flushes the manifest, and removes the announcements, which are not part of the checkpoint."""
    durable.write(attempt.folder / manifest.NAME, manifest.encode(content))
    for rank in range(attempt.ranks):
        attempt.announcement(rank).unlink()
    durable.flush(attempt.folder)


def commit(attempt: Attempt) -> Path:
    """Renames the folder, which makes it a checkpoint, and returns the new path."""
    path = folder.free_name(attempt.output_dir, attempt.step, attempt.is_good)
    durable.rename(attempt.folder, path)
    return path


def clean_up(attempt: Attempt, superseded: Superseded) -> None:
    """Removes old checkpoints, the oldest first; raises an OSError if it can't."""
    for path in superseded(folder.find(attempt.output_dir)):
        durable.remove(path, path.with_name(f".trash_{path.name}"))


class BackgroundSave:
    """One rank's part of one save, in a thread: training continues while the disk is busy."""

    def __init__(
        self, attempt: Attempt, tensors: Callable[[], Sequence[TensorData]], complete: Callable[..., Path] | None
    ):
        """Starts the thread, in which `tensors` is called; the elements must not change before `written` returns True.

        The chief has `complete` above, given all but `given_up`; other ranks have None.
        """
        self.step = attempt.step
        self.problem: str | None = None  # Why the save has failed, as far as this rank knows it.
        self.not_finite = ""  # The name of a tensor of this rank that is not finite.
        self.path: Path | None = None  # The checkpoint, on the chief when it is complete.
        self._attempt, self._complete = attempt, complete
        self._written, self._abandoned = threading.Event(), threading.Event()
        # A daemon thread: a process must be able to end although a disk does not answer.
        self._thread = threading.Thread(target=self._run, args=(tensors,), name="checkpoint", daemon=True)
        self._thread.start()

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

    def _run(self, make: Callable[[], Sequence[TensorData]]) -> None:
        try:
            tensors = make()
            self.not_finite = memory.first_not_finite(tensors)
            if self.not_finite:
                raise CheckpointError(f"{self.not_finite} is not finite")
            write(self._attempt, tensors)
            self._written.set()
            if self._complete:
                self.path = self._complete(self._abandoned.is_set)
                logger.info(f"checkpoint {self.path}")
        except Exception as error:
            # After any error: training must not wait forever for a thread that has ended.
            self.problem = f"{'' if isinstance(error, CheckpointError) else f'{type(error).__name__}: '}{error}"
            if self._complete:
                logger.warning(f"the checkpoint of step {self.step} has failed: {self.problem}")
                # On a full disk, the next save needs the space.
                shutil.rmtree(self._attempt.folder, ignore_errors=True)
            else:
                logger.warning(f"this rank wrote no shards of step {self.step}: {self.problem}")
        finally:
            self._written.set()
