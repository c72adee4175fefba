"""Reads a checkpoint piece by piece: whoever wrote it, each reader takes what it needs from memory-mapped shards."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tftrain.checkpoint import manifest, piece, shard
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.piece import DTYPES, Piece

HASHING_THREADS = 4


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
        self._files: dict[str, dict[str, np.ndarray]] = {}
        self._where: dict[str, list[tuple[str, Piece]]] = {}
        for name, file in self.manifest.files.items():
            for each in file.pieces:
                self._where.setdefault(each.name, []).append((name, each))

    def verify(self, rank: int = 0, ranks: int = 1) -> None:
        """Checks the SHA-256 of every file, or of this rank's share of them.

        Raises:
            CheckpointError: one is missing or damaged; it names the first.
        """
        names = sorted(self.manifest.files)[rank::ranks]
        threads = min(HASHING_THREADS, len(os.sched_getaffinity(0)), len(names)) or 1
        with ThreadPoolExecutor(threads) as pool:  # hashlib works outside Python's lock.
            for _ in pool.map(lambda name: shard.verify(self.path / name, self.manifest.files[name]), names):
                pass

    def read(self, wanted: Piece) -> np.ndarray:
        """Returns a piece in its stored shape, in memory of its own; for the errors, see `read_into`."""
        flat = np.empty(wanted.size, DTYPES[wanted.dtype])
        self.read_into(wanted, flat)
        return flat.reshape(wanted.stored_shape)

    def read_into(self, wanted: Piece, out: np.ndarray) -> None:
        """Reads a piece.

        Args:
            wanted: any, whatever the pieces are that were written.
            out: flat, takes the elements.

        Raises:
            CheckpointError: the checkpoint has no such tensor, or a shard can't be read.
        """
        expected, found = (wanted.dtype, wanted.whole), self.tensors.get(wanted.name)
        if found != expected:
            there = "is missing" if found is None else f"is {_described(found)}"
            raise CheckpointError(f"{self.path}: {wanted.name} {there}, expected {_described(expected)}")
        copied = 0
        for name, each in self._where[wanted.name]:
            copied += piece.copy(each, self._file(name)[each.name], wanted, out)
        assert copied == wanted.size, f"{wanted} has {copied} elements: the manifest was checked to hold each once"

    def _file(self, name: str) -> dict[str, np.ndarray]:
        if name not in self._files:
            loaded = shard.load(self.path / name, self.manifest.files[name])
            self._files[name] = {each.name: values for each, values in loaded}
        return self._files[name]


def _described(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]} {list(tensor[1])}"
