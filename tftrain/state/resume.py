"""Chooses the checkpoint that a run continues from: all ranks see one folder, check it together, choose the same."""

import functools
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

import numpy as np

from tftrain.checkpoint import folder, manifest, remote
from tftrain.checkpoint.errors import AgreedCheckpointError, CheckpointError
from tftrain.checkpoint.reader import Reader
from tftrain.checkpoint.tensor_slice import TensorSlice
from tftrain.config.run import CheckpointConfig, RunConfig
from tftrain.files.addresses import is_address, listing
from tftrain.host.text import listed, reason
from tftrain.parallel import collectives
from tftrain.parallel.mesh import Mesh

logger = logging.getLogger(__name__)

# A network file system may show a new file to other hosts a little later.
VISIBLE_SECONDS = 10
NewestFirst = Callable[[Sequence[Path]], Iterable[Path]]


def require_shared(output_dir: str, mesh: Mesh) -> None:
    """Creates the folder of the checkpoints and checks that all ranks see it; every rank must call it.

    Raises:
        CheckpointError: the folder can't be created, or a rank sees another one; on all ranks alike.
    """
    checkpoints, problem = folder.checkpoint_folder(output_dir), ""
    number = secrets.randbits(48) if mesh.is_chief else 0
    number = int(collectives.gather_numbers(mesh.world, number, "shared.number")[0])
    token = checkpoints / f".seen_by_all_{number:012x}"
    if mesh.is_chief:
        try:
            checkpoints.mkdir(parents=True, exist_ok=True)
            token.touch()
        except OSError as error:
            problem = f"{checkpoints}: can't be written to: {error.strerror}"
    (problem, *_) = collectives.gather_values(mesh.world, problem, "shared.made")
    if problem:
        raise AgreedCheckpointError(problem)
    end = time.monotonic() + VISIBLE_SECONDS
    while not token.exists() and time.monotonic() < end:
        time.sleep(0.1)
    blind = np.flatnonzero(collectives.gather_numbers(mesh.world, float(not token.exists()), "shared.seen"))
    if mesh.is_chief:
        token.unlink(missing_ok=True)
    if blind.size:
        raise AgreedCheckpointError(
            f"--output_dir={output_dir}: rank 0 writes files there that these ranks do not see: {listed(blind, 8)}; "
            "every rank writes its shards of a checkpoint: name a folder on a file system that all hosts share; "
            "if --output_dir is an address, --local_dir is that folder"
        )


class Search(NamedTuple):
    """Finds the checkpoint that a run continues from; every rank must call every method."""

    settings: CheckpointConfig
    run: RunConfig
    mesh: Mesh
    restore_buffers: Callable[[], Mapping[TensorSlice, np.ndarray]]  # what this rank will read, and memory for it

    def choose(self, newest_first: NewestFirst = reversed) -> Reader | None:
        """Opens the checkpoint that `--resume` means and checks its files: each rank some, in the pass that reads them.

        `newest_first` returns the checkpoints in the order in which they are tried; it may have others.

        Returns:
            The checkpoint, the same one on all ranks; None: a fresh start.

        Raises:
            CheckpointError: `--resume` names a folder that is not a checkpoint or is damaged, or it is `auto` and all
                checkpoints are damaged; on all ranks alike.
        """
        resume = self.settings.resume
        if resume == "none":
            return None
        if resume != "auto":
            reader, problem = self._checked(Path(resume), self.restore_buffers())
            if problem:
                expected = "expected auto, none, or the folder of a good checkpoint"
                raise AgreedCheckpointError(f"--resume={resume}: {problem}; {expected}")
            return reader
        paths = self._found()
        if self.mesh.is_chief and (left_out := folder.links(self.run.folder)):
            logger.warning(left_out)
        if reader := self._first_good(newest_first(paths)):
            return reader
        if paths:
            advice = "--resume=none starts over and moves them aside"
            if self.run.mode == "evaluate":
                advice = "expected another --output_dir, or --resume with the folder of a good checkpoint"
            path = folder.checkpoint_folder(self.run.folder)
            raise AgreedCheckpointError(f"{path}: none of its {len(paths)} checkpoints can be used; {advice}")
        return None

    def before(self, step: int, margin: int) -> Reader:
        """Opens the newest checkpoint from more than `margin` steps before a step, else the oldest one from before it.

        If there is no good one, all ranks raise a CheckpointError.
        """
        paths = [path for path in self._found() if folder.order(path)[0] < step]
        early = [path for path in paths if folder.order(path)[0] < step - margin]
        reader = self._first_good([*early[::-1], *paths[len(early) :]])
        if reader is None:
            path = folder.checkpoint_folder(self.run.folder)
            raise AgreedCheckpointError(
                f"{path}: no good checkpoint from before step {step}, which is a spike; use --on_spike=skip or log"
            )
        return reader

    def _found(self) -> list[Path]:
        """Returns the checkpoints that the chief sees in the folder of a run, the oldest first.

        Before them come those at the address of the run that are older than all here: another host had them.
        """
        names: list[str] = []
        if self.mesh.is_chief:
            here = folder.find(self.run.folder)
            names = [path.name for path in (*_only_at_address(self.run.output_dir, here), *here)]
        names = collectives.gather_values(self.mesh.world, names, "resume.found")[0]
        return [folder.checkpoint_folder(self.run.folder) / name for name in names]

    def _first_good(self, paths: Iterable[Path]) -> Reader | None:
        """Opens the first checkpoint that all ranks find good, fetched from the run's address if it must be."""
        restore_buffers = functools.cache(self.restore_buffers)
        for path in paths:
            for is_damaged in (False, True):
                if (is_damaged or is_address(self.run.output_dir)) and not self._fetched(path, is_damaged):
                    break
                reader, problem = self._checked(path, restore_buffers())
                if reader:
                    return reader
                if self.mesh.is_chief:
                    logger.warning(f"this checkpoint can't be used: {problem}")
        return None

    def _fetched(self, path: Path, is_damaged: bool) -> bool:
        """Lets the chief copy a checkpoint from the address of the run if it must; returns whether it is there then."""
        is_chief, address = self.mesh.is_chief, self.run.output_dir
        is_there = is_chief and not is_damaged and path.is_dir()
        if is_chief and not is_there and is_address(address):
            try:
                is_there = remote.fetch_again(address, path)
            except OSError as error:
                logger.warning(f"--output_dir={address}: {reason(error)}")
        return bool(collectives.gather_numbers(self.mesh.world, float(is_there), "resume.fetched")[0])

    def _checked(self, path: Path, wanted: Mapping[TensorSlice, np.ndarray]) -> tuple[Reader | None, str]:
        """Returns the open checkpoint if all ranks find it good, else None and the problem."""
        problem, digest, reader = "", "", None
        try:
            reader = Reader(path)
            digest = reader.digest
            reader.verify(self.mesh.rank, self.mesh.size, wanted, self.settings.resume_check)
        except (CheckpointError, OSError) as error:
            problem = str(error)
        results = collectives.gather_values(self.mesh.world, [problem, digest], "resume.checked")
        for rank, (problem, digest) in enumerate(results):
            if problem:
                return None, problem
            if digest != results[0][1]:
                return None, f"{path}: rank {rank} sees another {manifest.NAME} than rank 0"
        return reader, ""


def _only_at_address(address: str, here: Sequence[Path]) -> list[PurePath]:
    if not (here and is_address(address)):
        return []
    try:
        return [path for path in remote.checkpoints(listing(address)) if folder.order(path) < folder.order(here[0])]
    except OSError as error:
        logger.warning(f"--output_dir={address}: older checkpoints there can't be used: {reason(error)}")
        return []
