"""Copies of the state in the memory file system of a host, which outlive its processes.

A slot is a folder with a file of each rank, mapped into memory, so that one copy of the state fills it. An entry beside
it says what it holds, and is there only while it is complete.

    /dev/shm/tftrain_USER_DIGEST-OF-OUTPUT_DIR/SESSION/HOST/SLOT/{rank_00003.state,rank_00003.json}
"""

import contextlib
import hashlib
import mmap
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash

from tftrain.checkpoint import memory, save, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.save import Attempt
from tftrain.checkpoint.shard import Written
from tftrain.checkpoint.tensor_slice import TensorData, TensorSlice
from tftrain.files import durable

MEMORY = Path("/dev/shm")
SESSION = ".memory_session"  # in the folder of the checkpoints: which copies are of the run as it is
DIGEST = "xxh3_128"


def home_of(output_dir: str | Path) -> Path:
    """Returns the folder for the copies of a run, on each host."""
    digest = hashlib.sha256(os.fsencode(Path(output_dir).resolve())).hexdigest()[:16]
    return MEMORY / f"tftrain_{os.getuid()}_{digest}"


class RankCopy(msgspec.Struct, frozen=True):
    """One rank's part of an in-memory copy, as its entry says."""

    session: str
    step: int
    count: int  # the number of the copy in the session
    ranks: int
    rank: int
    path: str = ""  # where the entry is
    holder: int = 0  # a rank whose host has it


class Entry(RankCopy, frozen=True, kw_only=True):
    """The whole entry: also the description of the run, and the rank's file with its slices and its digest."""

    run: dict[str, Any]
    files: dict[str, Written]


def parts(home: Path, holder: int) -> Iterator[RankCopy]:
    """Yields what this host has in the folder of a run, if this user has made it; `holder` is a rank here."""
    with contextlib.suppress(OSError):
        for path in sorted(home.glob("*/*/*/rank_*.json") if home.lstat().st_uid == os.getuid() else ()):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                part = msgspec.json.decode(path.read_bytes(), type=RankCopy)
                yield msgspec.structs.replace(part, path=str(path), holder=holder)


def newest_whole(parts: Iterable[RankCopy]) -> list[RankCopy]:
    """Returns the parts of the newest copy that is complete across hosts, by rank; empty if there is none."""
    copies: dict[tuple[int, int], dict[int, list[RankCopy]]] = defaultdict(lambda: defaultdict(list))
    for part in parts:
        copies[part.step, part.count][part.rank].append(part)
    for _, held in sorted(copies.items(), reverse=True):
        if len(held) == held[min(held)][0].ranks:
            return [held[rank][rank % len(held[rank])] for rank in sorted(held)]  # The ranks of a host share the work.
    return []


class Slot:
    """The file of one rank in a slot.

    Attributes:
        folder, entry, file: of the slot, and the paths of the rank's entry and file there.
        content: of the file, uint8.
        arrays: the memory in it for the elements of each slice, flat.
    """

    def __init__(self, folder: Path, rank: int, pieces: Iterable[TensorSlice]):
        """Makes the file and maps its memory; raises an OSError without such a file system, or space in it."""
        self.folder, self.entry, self.file = folder, folder / f"rank_{rank:05d}.json", folder / f"rank_{rank:05d}.state"
        home = folder.parents[2]
        home.mkdir(mode=0o700, exist_ok=True)
        if home.lstat().st_uid != os.getuid():
            raise PermissionError(13, "another user has made it", str(home))
        folder.mkdir(parents=True, exist_ok=True)
        pieces = shard.in_file_order(pieces)
        size = max(1, sum(piece.nbytes for piece in pieces))  # No empty file can be mapped.
        with open(self.file, "w+b") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)  # Else a write to a page without memory would kill.
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.file)) from error
            self.content = np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
        memory.map_pages([self.content])
        self.arrays = memory.divided(self.content, pieces)

    def complete(self, part: RankCopy, run: Mapping[str, Any]) -> None:
        """Writes the entry: what the copy is, the description of the run, and the slices and the digest of the file.

        Raises:
            CheckpointError: an element is not finite.
            OSError: it can't be written.
        """
        if bad := memory.first_not_finite(self.arrays.items()):
            raise CheckpointError(f"{bad} is not finite")
        file = Written(self.content.nbytes, {DIGEST: xxhash.xxh3_128_hexdigest(self.content)}, tuple(self.arrays))
        entry = Entry(**msgspec.structs.asdict(part), run=dict(run), files={self.file.name: file})
        durable.write(self.entry, msgspec.json.encode(entry))


def write_to_disk(part: RankCopy, output_dir: Path, number: int) -> dict[str, Any]:
    """Writes a part as a rank's shards of an attempt; returns the description of the run.

    Raises:
        CheckpointError, OSError, ValueError: a file or the entry is missing or damaged, or a shard can't be written.
    """
    entry = msgspec.json.decode(Path(part.path).read_bytes(), type=Entry)
    ((name, file),) = entry.files.items()
    path, expected = Path(part.path).with_name(name), file.digests[DIGEST]
    content = np.memmap(path, np.uint8, "r")
    if (digest := xxhash.xxh3_128_hexdigest(content)) != expected:
        raise CheckpointError(f"{path}: damaged: its {DIGEST} is {digest}, expected {expected}")
    tensors = [TensorData(*each) for each in memory.divided(content, file.pieces).items()]
    save.write(Attempt(output_dir, part.step, number, part.rank, part.ranks), tensors)
    return entry.run
