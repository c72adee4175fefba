"""One save: what a rank does for it, and what the chief does, so that a crash at any moment leaves a whole checkpoint.

Every rank writes its shards into a folder beside the checkpoints and then announces them in a small file there. The
chief waits for all announcements, writes the manifest from them, and renames the folder: that makes it a checkpoint.
Ranks need nothing but the folder to understand each other, so all of it may happen in background threads, while
training sends what it likes between the same ranks.

Each phase is a function of this module, looked up when it is called: what wraps `write_shard`, `announce`,
`write_manifest`, `commit` or `clean_up` can stop a save before, in or after it.
"""

import contextlib
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tftrain import strict_json
from tftrain.checkpoint import durable, folder, manifest, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.manifest import Manifest
from tftrain.checkpoint.piece import TensorData
from tftrain.checkpoint.shard import Written

logger = logging.getLogger(__name__)

MAX_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Attempt:
    """A save that all ranks have agreed to make.

    Attributes:
        output_dir: the run's folder, the same one for all ranks.
        step: updates done.
        number: unlike that of any other attempt, so that nobody takes files of an earlier one for this one's.
        rank, ranks: which of how many this process is; rank 0 is the chief.
    """

    output_dir: Path
    step: int
    number: int
    rank: int = 0
    ranks: int = 1

    @property
    def folder(self) -> Path:
        """Where the ranks write."""
        return folder.partial(self.output_dir, self.step, self.number)

    def announcement(self, rank: int) -> Path:
        """Returns the file in which a rank says that it is done, or why it can't be."""
        return self.folder / f"rank_{rank:05d}.json"


def write(attempt: Attempt, owned: Sequence[TensorData]) -> None:
    """Writes this rank's shards and announces them; a failure is announced, too, if that is possible.

    Args:
        attempt: the save.
        owned: this rank's pieces; together, the ranks' hold every element of every tensor once.

    Raises:
        CheckpointError: they can't be written.
    """
    try:
        if attempt.rank == 0:
            folder.sweep(attempt.output_dir, but=attempt.folder)
        # Not with its parents: a mount that has vanished must not be replaced by a folder on another disk.
        attempt.folder.mkdir(exist_ok=True)
        files = {}
        for number, group in enumerate(shard.groups(owned)):
            name = f"shard_{attempt.rank:05d}_{number:03d}.safetensors"
            files[name] = write_shard(attempt.folder / name, group)
        announce(attempt, files)
    except OSError as error:
        message = f"rank {attempt.rank}: {error}"
        with contextlib.suppress(OSError):  # What kept the shards from being written may well keep this from it, too.
            durable.write(attempt.announcement(attempt.rank), json.dumps({"error": message}).encode())
        raise CheckpointError(message) from error


def write_shard(path: Path, owned: Sequence[TensorData]) -> Written:
    """Writes and flushes one file."""
    return shard.write(path, owned)


def announce(attempt: Attempt, files: Mapping[str, Written]) -> None:
    """Tells the chief what this rank has written."""
    pieces = [piece for file in files.values() for piece in file.pieces]
    tensors = {piece.name: {"dtype": piece.dtype, "shape": piece.whole} for piece in pieces}
    content = {"tensors": tensors, "files": {name: manifest.encode_file(file) for name, file in files.items()}}
    durable.write(attempt.announcement(attempt.rank), json.dumps(content).encode())


def complete(
    attempt: Attempt,
    run: Mapping[str, Any],
    keep_last: int,
    keep_every: int,
    seconds: float,
    given_up: Callable[[], bool],
) -> Path:
    """Makes a checkpoint of what the ranks have written: the chief's part, after its own `write`.

    Args:
        attempt: the save.
        run: what the manifest says of the run.
        keep_last, keep_every: which checkpoints are kept, see `folder.keep`.
        seconds: how long to wait for the other ranks.
        given_up: whether it has become known that another rank will never be done.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: there is none; older checkpoints are as they were.
    """
    try:
        files = gather(attempt, seconds, given_up)
        write_manifest(attempt, Manifest(attempt.step, files, run))
        path = commit(attempt)
    except OSError as error:
        raise CheckpointError(f"{attempt.folder}: {error}") from error
    try:
        clean_up(attempt, keep_last, keep_every)
    except OSError as error:
        logger.warning(f"older checkpoints can't be removed: {error}")
    return path


def gather(attempt: Attempt, seconds: float, given_up: Callable[[], bool]) -> dict[str, Written]:
    """Waits for the announcements of all ranks and returns all files.

    Raises:
        CheckpointError: a rank has failed, or is not done in time.
    """
    files, end, pause = {}, time.monotonic() + seconds, 0.005
    for rank in range(attempt.ranks):
        path = attempt.announcement(rank)
        while not path.exists():
            if given_up():
                raise CheckpointError("another rank can't write its shards, and says why in its own output")
            if time.monotonic() > end:
                raise CheckpointError(f"rank {rank} has not written its shards within {seconds:.0f} s")
            time.sleep(pause)
            pause = min(2 * pause, MAX_POLL_SECONDS)
        files |= _read(path)
    return files


def _read(path: Path) -> dict[str, Written]:
    try:
        content = strict_json.parse(path.read_bytes())
        if "error" in content:
            raise CheckpointError(content["error"])
        return manifest.decode_files(content["files"], manifest.decode_tensors(content["tensors"]))
    except ValueError as error:
        raise CheckpointError(f"{path}: not the announcement of a rank: {error}") from error


def write_manifest(attempt: Attempt, content: Manifest) -> None:
    """Writes and flushes the manifest; the announcements are no part of the checkpoint."""
    durable.write(attempt.folder / manifest.NAME, manifest.encode(content))
    for rank in range(attempt.ranks):
        attempt.announcement(rank).unlink()
    durable.flush(attempt.folder)


def commit(attempt: Attempt) -> Path:
    """Gives the folder its name, and returns that."""
    path = folder.free_name(attempt.output_dir, attempt.step)
    durable.rename(attempt.folder, path)
    return path


def clean_up(attempt: Attempt, keep_last: int, keep_every: int) -> None:
    """Removes checkpoints that are not to be kept."""
    folder.keep(attempt.output_dir, keep_last, keep_every)


def discard(attempt: Attempt) -> None:
    """Removes what a failed save has left, as far as possible: on a full disk, the next one needs the room."""
    shutil.rmtree(attempt.folder, ignore_errors=True)
