"""Reads a checkpoint: whoever wrote it, each reader takes the pieces that it needs.

Reading is one pass: a block of a file is read, hashed, and copied to where it belongs while it is in the processor's
cache. What was read counts when all ranks have found all files good, and not before.
"""

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tftrain.checkpoint import manifest, memory, piece, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import DTYPES, Piece
from tftrain.checkpoint.source import Source

# Of which some wait for the disk while others hash; reading and hashing work outside Python's lock.
READING_THREADS = 12
BLOCK_BYTES = memory.LARGE_PAGE_BYTES


class Reader:
    """An open checkpoint.

    Attributes:
        path: its folder.
        manifest: what it holds.
        tensors: dtype and shape of every tensor by name.
    """

    def __init__(self, path: str | Path):
        """Reads the manifest, and no shard.

        Raises:
            CheckpointError: it is missing or damaged.
        """
        self.path = Path(path)
        self.manifest = manifest.read(self.path)
        self.tensors = self.manifest.tensors()
        self._held: dict[Piece, np.ndarray] = {}

    def verify(
        self,
        rank: int = 0,
        ranks: int = 1,
        wanted: Mapping[Piece, np.ndarray] | None = None,
        digest: str = "xxh3_128",
    ) -> None:
        """Checks the digest of every file, or of this rank's share of them, and reads on the way.

        Args:
            rank, ranks: which of how many shares is this rank's.
            wanted: what will be asked of `read`, and memory for it, flat, for which threads ask; what is not in the
                checkpoint is left out.
            digest: which one, of `shard.DIGESTS`.

        Raises:
            CheckpointError: a file is missing or damaged; it names the first.
        """
        mine = sorted(self.manifest.files)[rank::ranks]
        self._held = self._fetch(wanted or {}, mine, digest, alone=ranks == 1)

    def read(self, wanted: Piece) -> np.ndarray:
        """Returns a piece in its stored shape, whatever the pieces are that were written.

        What `verify` has read is in the memory that it was given; anything else comes from the files.

        Raises:
            CheckpointError: the checkpoint has no such tensor, or a shard can't be read.
        """
        expected, found = (wanted.dtype, wanted.whole), self.tensors.get(wanted.name)
        if found != expected:
            there = "is missing" if found is None else f"is {_described(found)}"
            raise CheckpointError(f"{self.path}: {wanted.name} {there}, expected {_described(expected)}")
        flat = self._held.get(wanted)
        if flat is None:
            flat = self._fetch(memory.arrays([wanted]))[wanted]
        return flat.reshape(wanted.stored_shape)

    def _fetch(
        self,
        wanted: Mapping[Piece, np.ndarray],
        checked: Collection[str] = (),
        digest: str = "",
        alone: bool = False,
    ) -> dict[Piece, np.ndarray]:
        """Reads pieces, flat, and checks a digest of these files; `alone`: no other rank reads them."""
        there = {each for each in wanted if self.tensors.get(each.name) == (each.dtype, each.whole)}
        by_tensor: dict[str, list[Piece]] = {}
        for each in there:
            by_tensor.setdefault(each.name, []).append(each)
        takers: dict[str, dict[Piece, list[Piece]]] = {}
        for name, file in self.manifest.files.items():
            of_file = {
                stored: [each for each in by_tensor.get(stored.name, ()) if piece.meet(stored, each)]
                for stored in file.pieces
            }
            if name in checked or any(of_file.values()):
                takers[name] = of_file

        idle: SimpleQueue[np.ndarray] = SimpleQueue()
        for block in memory.blocks(min(READING_THREADS, len(takers)), BLOCK_BYTES):
            idle.put(block)

        def take(name: str) -> None:
            def room(stored: Piece) -> np.ndarray | None:
                if stored in there:
                    return wanted[stored]
                return np.empty(stored.size, DTYPES[stored.dtype]) if takers[name][stored] else None

            file, block = self.manifest.files[name], idle.get()
            try:
                with Source(self.path / name, file.bytes, block, alone) as source:
                    for stored, values in shard.load(source, file, room, digest if name in checked else ""):
                        for each in takers[name][stored]:
                            if each != stored:
                                piece.copy(stored, values, each, wanted[each])
            finally:
                idle.put(block)

        with ThreadPoolExecutor(READING_THREADS) as pool:
            # The largest first, or in the end one thread reads alone.
            order = sorted(takers, key=lambda name: -self.manifest.files[name].bytes)
            taken = {name: pool.submit(take, name) for name in order}
            try:
                for name in sorted(taken):
                    taken[name].result()
            finally:
                taken.clear()  # An error's traceback leads here, and from here to all memory that was read into.
        return {each: wanted[each] for each in there}


def _described(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]} {list(tensor[1])}"
