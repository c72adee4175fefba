"""Reads a checkpoint: each rank reads the slices that it needs, whatever the layout of the ranks that wrote it.

Reading is one pass: a block of a file is read into its destination and hashed while it is in the processor's cache. No
element is returned from a file whose digest was not checked: ranks that share a checkpoint call `verify`, and
must not use an element before all of them have found their files good; otherwise `read` checks each file when it is
first needed.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from tftrain.checkpoint import manifest, memory, shard, tensor_slice
from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.tensor_slice import DTYPES, TensorSlice

# Some threads wait for the disk while others hash; reading and hashing release Python's global lock.
READING_THREADS = 12
DIGEST = "xxh3_128"  # a key of `shard.DIGESTS`: detects damage faster than disks read


class Reader:
    """An open checkpoint.

    Attributes:
        path, manifest: its folder, and its content.
        digest: of the manifest; equal on ranks that see the same checkpoint.
        tensors: dtype and shape of every tensor by name.
    """

    def __init__(self, path: str | Path):
        """Reads the manifest, but no shard; raises a CheckpointError if the manifest is missing or damaged."""
        self.path = Path(path)
        content = manifest.content_of(self.path)
        self.manifest = manifest.decode(content, self.path / manifest.NAME)
        self.digest = hashlib.sha256(content).hexdigest()
        blocks = map(next, map(iter, self.manifest.files.tensors.values()))
        self.tensors = {each.name: (each.dtype, each.whole) for each in blocks}
        self._read_ahead: dict[TensorSlice, np.ndarray] = {}
        self._unchecked = set(self.manifest.files)

    def verify(
        self, rank: int = 0, ranks: int = 1, wanted: Mapping[TensorSlice, np.ndarray] | None = None, check: str = DIGEST
    ) -> None:
        """Checks the digest of this rank's share of the files, and reads slices in the same pass.

        Args:
            rank, ranks: this rank, and the number of ranks that share the files.
            wanted: slices that `read` will be called with, and flat memory for each, looked up by several threads.
                Slices of tensors that are not in the checkpoint are ignored.
            check: a key of `shard.DIGESTS`.

        Raises:
            CheckpointError: a file is missing or damaged; the message names the first.
        """
        checked = share(self.manifest.files, rank, ranks)
        self._read_ahead = self._fetch(wanted or {}, checked, check)
        self._unchecked.clear()  # The other ranks check the other files.

    def read(self, wanted: TensorSlice) -> np.ndarray:
        """Returns the elements of a slice in its stored shape, from whatever slices are in the files.

        A slice that `verify` has read is returned from the memory given there. Another slice is read from the files.

        Raises:
            CheckpointError: the checkpoint has no such tensor, or a file with a slice of it is missing or damaged.
        """
        expected, stored = (wanted.dtype, wanted.whole), self.tensors.get(wanted.name)
        if stored != expected:
            state = "is missing" if stored is None else f"is {_described(stored)}"
            raise CheckpointError(f"{self.path}: {wanted.name} {state}, expected {_described(expected)}")
        flat = self._read_ahead.get(wanted)
        if flat is None:
            unchecked = self._unchecked.intersection(self.manifest.files.holders(wanted))
            flat = self._fetch(memory.arrays([wanted]), unchecked, DIGEST)[wanted]
            self._unchecked -= unchecked
        return flat.reshape(wanted.stored_shape)

    def _fetch(
        self, wanted: Mapping[TensorSlice, np.ndarray], checked: Collection[str], digest: str
    ) -> dict[TensorSlice, np.ndarray]:
        """Reads slices into the memory of each, flat, and checks a digest of some files.

        Files to check without a wanted slice are read only for that.

        Returns:
            The wanted slices that are in the checkpoint, with their memory.
        """
        known = {each for each in wanted if self.tensors.get(each.name) == (each.dtype, each.whole)}
        by_tensor: dict[str, list[TensorSlice]] = defaultdict(list)
        for each in known:
            by_tensor[each.name].append(each)
        files = {name: self.manifest.files[name] for name in {*checked}.union(*map(self.manifest.files.holders, known))}

        def targets(stored: TensorSlice) -> list[TensorSlice]:
            return [each for each in by_tensor.get(stored.name, ()) if tensor_slice.overlap(stored, each)]

        def allocate(stored: TensorSlice) -> np.ndarray | None:
            if stored in known:
                return wanted[stored]
            return np.empty(stored.size, DTYPES[stored.dtype]) if targets(stored) else None

        def read_file(name: str) -> None:
            check = digest if name in checked else ""
            for stored, values in shard.load(self.path / name, files[name], allocate, check):
                for target in targets(stored):
                    if target != stored:
                        tensor_slice.copy(stored, values, target, wanted[target])

        with ThreadPoolExecutor(READING_THREADS) as pool:
            # The largest files first, so that no thread reads alone in the end.
            order = sorted(files, key=lambda name: -files[name].bytes)
            futures = {name: pool.submit(read_file, name) for name in order}
            try:
                for name in sorted(futures):
                    futures[name].result()
            finally:
                futures.clear()  # The traceback of an error refers to the futures, which refer to all memory read into.
        return {each: wanted[each] for each in known}


def share(names: Collection[str], rank: int, ranks: int) -> list[str]:
    """Returns the files whose digest a rank checks: neighbours, so that a rank mostly checks files that it wrote."""
    names = sorted(names)
    return names[len(names) * rank // ranks : len(names) * (rank + 1) // ranks]


def _described(tensor: tuple[str, tuple[int, ...]]) -> str:
    return f"{tensor[0]} {list(tensor[1])}"
