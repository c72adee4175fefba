"""Copies of the state in the memory of the hosts, every few steps: `--memory_checkpoint_steps`.

Every rank copies its state into files in the memory of its host, and takes those of a rank on another host in the
background. So they survive the death of any rank, and of one host. A rank has two slots. It overwrites one only when
all ranks have said that the other one is complete. What is still under way at the next time makes all ranks leave that
time out: no step waits for the network.

A start makes the newest copy a checkpoint on disk, if the files of all ranks are on some host and it is newer than what
is there. From then on it is like any other: its digests are verified, and ranks of any layout read it. The session, a
number in the folder of the checkpoints, says which copies are those of the run as it is: a start and a rollback draw
another one, and older copies are worth nothing from that moment on.
"""

import contextlib
import logging
import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tftrain.checkpoint import folder, memory, memory_slot, save
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.memory_slot import RankCopy, Slot, newest_whole
from tftrain.checkpoint.save import Attempt
from tftrain.checkpoint.tensor_slice import TensorData, TensorSlice
from tftrain.files import durable
from tftrain.host.environment import host_name
from tftrain.parallel import collectives, neighbour, tensorflow_cluster
from tftrain.parallel.mesh import Mesh
from tftrain.state.saves import ATTEMPT_BITS, DONE, FAILED, WAITING

logger = logging.getLogger(__name__)

IMPOSSIBLE = 4
VISIBLE_SECONDS = 30  # A network file system may show the files of other hosts a little later.
END_SECONDS = 10
TAKE_SECONDS = 0.02


class MemoryCheckpoints:
    """The copies of one run in memory; every rank must call every method."""

    def __init__(self, every: int, output_dir: str, mesh: Mesh):
        """Copies are made after each `every` steps; 0: never."""
        self._every, self._mesh, self._output_dir = every, mesh, Path(output_dir)
        self._home = memory_slot.home_of(self._output_dir)
        self._session_file = folder.checkpoint_folder(self._output_dir) / memory_slot.SESSION
        self._session, self._key, self._count = "", "", 0
        self._slots: list[Slot] = []
        self._sources: dict[int, str] = {}  # Ranks of another host whose copies this rank takes, and their addresses.
        self._server = self._thread = None
        self._has_failed = self._has_warned = False

    @property
    def copy_bytes(self) -> int:
        """Bytes of this rank's copies on its own host."""
        return sum(slot.content.nbytes for slot in self._slots)

    @property
    def is_on(self) -> bool:
        """Whether there are copies."""
        return self._every > 0

    def is_due(self, step: int) -> bool:
        """Returns whether the state is copied after a step."""
        return self.is_on and step % self._every == 0

    def among(self, checkpoints: Sequence[Path]) -> Iterator[Path]:
        """Yields checkpoints, given the oldest first, the newest first, and each copy in memory where its step is.

        A copy becomes a checkpoint on disk when it is its turn.
        """
        session = ""
        if self._mesh.is_chief:
            with contextlib.suppress(OSError):
                session = self._session_file.read_text()
        mine = [msgspec.to_builtins(part) for part in memory_slot.parts(self._home, self._mesh.rank)]
        listed = self._gather((session, mine), "listed")
        parts = [msgspec.convert(part, RankCopy) for _, theirs in listed for part in theirs]
        parts = [part for part in parts if part.session == listed[0][0]]
        for path in (*reversed(checkpoints), None):
            after = folder.order(path)[0] if path else 0
            while chosen := newest_whole(part for part in parts if part.step > after):
                checkpoint, problems = self._write_to_disk(chosen)
                if self._mesh.is_chief and problems:
                    logger.warning(f"this copy in memory can't be used: {next(iter(problems.values()))}")
                elif self._mesh.is_chief:
                    gained = chosen[0].step - after
                    logger.info(f"{checkpoint} was in memory, {gained} steps after the next older checkpoint on disk")
                if not problems:
                    yield Path(checkpoint)
                parts = [part for part in parts if part.path not in (problems or {each.path for each in chosen})]
            if path:
                yield path

    def _write_to_disk(self, parts: Sequence[RankCopy]) -> tuple[str, dict[str, str]]:
        """Makes a copy a checkpoint and returns its path, and what is wrong by the paths of entries."""
        number, run, problems = self._gather(secrets.randbits(ATTEMPT_BITS), "attempt")[0], {}, {}
        for part in parts:
            if part.holder == self._mesh.rank:
                try:
                    run |= memory_slot.write_to_disk(part, self._output_dir, number)
                except (CheckpointError, OSError, ValueError) as error:
                    problems[part.path] = str(error)
        written, checkpoint = self._gather((run, problems), "written"), ""
        problems = {path: problem for _, theirs in written for path, problem in theirs.items()}
        if self._mesh.is_chief and not problems:
            attempt = Attempt(self._output_dir, parts[0].step, number, ranks=len(parts))
            run = written[parts[0].holder][0]
            try:
                checkpoint = str(save.complete(attempt, run, lambda checkpoints: [], VISIBLE_SECONDS, lambda: False))
            except CheckpointError as error:
                problems = {part.path: str(error) for part in parts}
        return self._gather((checkpoint, problems), "complete")[0]

    def begin(self, pieces: Iterable[TensorSlice]) -> None:
        """Begins a session, and makes memory for copies of these pieces in the background."""
        if not self.is_on:
            return
        self.forget()
        mine, pieces = self._home / self._session / host_name(), list(pieces)
        if self._mesh.local_size < self._mesh.size:
            self._connect(mine)

        def make() -> None:
            self._slots = [Slot(mine / f"slot_{number}", self._mesh.rank, pieces) for number in range(2)]

        self._start(make, f"--memory_checkpoint_steps={self._every} has no effect")

    def _connect(self, mine: Path) -> None:
        """Serves the copies of this rank, and finds the ranks on the host before whose copies this one takes."""
        self._key, server = self._gather(secrets.token_hex(), "key")[0], ""
        try:
            address = tensorflow_cluster.own_address()
            self._server = neighbour.serve(mine, address, self._key)
            server = f"{address}:{self._server.server_port}"
        except OSError as error:
            logger.warning(f"no other host takes the copies of this rank: {error}")
        servers, by_host = self._gather((host_name(), server), "servers"), defaultdict(list)
        for rank, (host, _) in enumerate(servers):
            by_host[host].append(rank)
        ranks = list(by_host.values())
        for theirs, here in zip(ranks, [*ranks[1:], ranks[0]], strict=True):
            for index, rank in enumerate(theirs):
                if here[index % len(here)] == self._mesh.rank and len(ranks) > 1 and servers[rank][1]:
                    self._sources[rank] = servers[rank][1]

    def forget(self) -> None:
        """Makes all copies so far worth nothing, because the run goes on from elsewhere."""
        self._session = self._gather(secrets.token_hex(8), "session")[0]
        if self._mesh.is_chief:
            durable.write(self._session_file, self._session.encode())

    def save(self, step: int, run: Callable[[], Mapping[str, Any]], owned: Callable[[], Iterable[TensorData]]) -> None:
        """Begins to copy this rank's pieces, unless the copy before is still under way on a rank.

        Args:
            step: updates done.
            run: makes the description of the run for the manifest.
            owned: makes this rank's pieces and their elements, flat, which stay as they are as long as they are held.
        """
        state = WAITING if self._thread.is_alive() else FAILED if self._has_failed else DONE
        state = state if self._slots or state == WAITING else IMPOSSIBLE
        states = collectives.gather_numbers(self._mesh.world, state, "memory.states")
        if (states == WAITING).any():
            if self._mesh.is_chief:
                self._warn(f"no copy of step {step} in memory: the one before is still under way; there may be more")
            return
        if (states == IMPOSSIBLE).any():
            self.end()
            self._every, self._slots = 0, []
            return
        if not (states == FAILED).any():
            self._slots.reverse()  # The last one is whole.
        slot, self._count = self._slots[0], self._count + 1
        part = RankCopy(self._session, step, self._count, self._mesh.size, self._mesh.rank)
        described = run() if self._mesh.is_chief else {}
        slot.entry.unlink(missing_ok=True)
        tensors = list(owned())
        what = f"the copy of step {step} in memory has failed"
        self._start(lambda: self._complete(slot, tensors, part, described), what)

    def _complete(self, slot: Slot, tensors: list[TensorData], part: RankCopy, run: Mapping[str, Any]) -> None:
        memory.move(tensors, slot.arrays)
        slot.complete(part, run)
        for rank, server in self._sources.items():
            try:
                self._take(rank, server, slot.folder, part)
            except (OSError, ValueError) as error:
                self._warn(f"this host has no copy of rank {rank} of step {part.step}: {error}; there may be more")

    def _take(self, rank: int, server: str, slot: Path, own: RankCopy) -> None:
        """Copies the files of another rank into a slot, when that rank's entry says that they are of the same save."""
        entry, end = slot / f"rank_{rank:05d}.json", time.monotonic() + neighbour.SECONDS
        entry.unlink(missing_ok=True)
        new, file, theirs = entry.with_suffix(".new"), entry.with_suffix(".state"), None
        while theirs is None or (theirs.session, theirs.count) != (own.session, own.count):
            if time.monotonic() > end:
                raise TimeoutError(f"{server} has none within {neighbour.SECONDS} s")
            time.sleep(TAKE_SECONDS)
            with contextlib.suppress(OSError):
                neighbour.fetch(server, self._key, f"{slot.name}/{entry.name}", new)
                theirs = msgspec.json.decode(new.read_bytes(), type=RankCopy)
        neighbour.fetch(server, self._key, f"{slot.name}/{file.name}", file)
        new.replace(entry)

    def wait(self, seconds: float | None = None) -> None:
        """Waits until what is under way on this rank has ended, at most `seconds`."""
        self._thread.join(seconds)

    def end(self) -> None:
        """Removes all copies: the last checkpoint is on disk."""
        if not self.is_on:
            return
        self.wait(END_SECONDS)
        self._gather("", "end")  # No rank takes another file.
        if self._server:
            self._server.shutdown()
            self._server.server_close()
        self.remove()

    def remove(self) -> None:
        """Removes the copies on this host, of this start and of earlier ones."""
        shutil.rmtree(self._home, ignore_errors=True)
        if self._mesh.is_chief:
            self._session_file.unlink(missing_ok=True)

    def _start(self, work: Callable[[], None], what: str) -> None:
        """Begins work in a thread; `what` says what it means if it fails."""

        def run() -> None:
            try:
                work()
            except Exception as error:
                self._has_failed = True
                logger.warning(f"{what}: {error}")

        self._has_failed, self._thread = False, threading.Thread(target=run, name="copy in memory", daemon=True)
        self._thread.start()

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            logger.warning(message)
        self._has_warned = True

    def _gather(self, value: Any, name: str) -> Sequence[Any]:
        return collectives.gather_values(self._mesh.world, value, f"memory.{name}")
