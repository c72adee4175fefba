"""Prepared data at an address: a local folder, its mirror, whose shards are fetched block by block as a run reads them.

A mirror has the manifest, the vocabulary, the indexes, and an empty file of the right size for each shard. So
everything that reads prepared data reads a mirror. The file `.blocks` beside a shard has a byte for each of its blocks,
1 if the block is there. A block is fetched under a lock of its byte, so that the ranks of a host fetch it once. A shard
beyond the size of the cache has no `.blocks`: each of its records is a request. No file says from where: a folder is a
mirror only for a process that has asked for its address.

A run reads examples in random order, and each once an epoch, so no block is a better one to keep than another: blocks
stay, and none makes way for another.
"""

import fcntl
import functools
import itertools
import logging
import os
import shutil
import struct
from pathlib import Path

import numpy as np

from tftrain.data.manifest import MAX_BYTES, NAME, Manifest, Shard, listed_files, load_manifest
from tftrain.files import addresses
from tftrain.files.addresses import Cache, is_address, join
from tftrain.files.complete_folder import complete_folder, locked
from tftrain.files.errors import DataError
from tftrain.files.limits import FREE_SHARE

logger = logging.getLogger(__name__)

BLOCK_BYTES = 256 << 10
_BLOCKS = ".blocks"


@functools.cache
def local_folder(folder: str, cache: Cache) -> str:
    """Returns the mirror of prepared data at an address; a local folder is returned as it is.

    For a process, the data at an address is what it was when it first asked.

    Raises:
        DataError: the data is not there, is incomplete, or can't be read; or there can be no mirror.
    """
    if not is_address(folder):
        return folder
    try:
        content = addresses.read_small(join(folder, NAME), MAX_BYTES)
        path = cache.path("data", addresses.local_name(folder, content))
        with locked(path):
            if not path.is_dir():
                with complete_folder(path) as partial:
                    _create(partial, folder, content)
        with locked(path.with_name("blocks")):
            _add_blocks(path, cache.bytes)
    except OSError as error:
        what = "of a folder that `python -m tftrain.prepare` has written, and that can be read"
        raise DataError(f"{error.filename or folder}: {error.strerror}; expected the address {what}") from error
    _addresses()[str(path)] = folder
    return str(path)


@functools.cache
def _addresses() -> dict[str, str]:
    """Returns the address of each mirror that this process has asked for, by its folder."""
    return {}


def address_of(path: str) -> str | None:
    """Returns the address of a file of a mirror; None for any other file."""
    found = ((folder, address) for folder, address in _addresses().items() if path.startswith(f"{folder}/"))
    return next((join(address, path[len(folder) + 1 :]) for folder, address in found), None)


def _create(folder: Path, address: str, content: bytes) -> None:
    (folder / NAME).write_bytes(content)
    listed_files(str(folder))  # Checks the names.
    manifest = load_manifest(str(folder))
    shards = _shards(manifest)
    whole = [manifest.vocab_file, manifest.tokenizer_file, *(f"{shard.file}.index" for shard in shards)]
    addresses.download_all(address, filter(None, whole), folder)
    sizes = addresses.in_parallel(lambda shard: addresses.size(join(address, shard.file)), shards)
    for shard, size in zip(shards, sizes, strict=True):
        origin = join(address, shard.file)
        if size != shard.bytes:
            reason = f"the shard has {size} bytes, {join(address, NAME)} says {shard.bytes}"
            raise DataError(f"{origin}: {reason}; restore it or prepare the data again")
        path = folder / shard.file
        path.touch()
        os.truncate(path, shard.bytes)


def _add_blocks(path: Path, limit: int) -> None:
    """Gives lists of blocks, all of them missing, to shards that have none, as far as the size of the cache allows."""
    left = limit - sum(each.with_suffix("").stat().st_size for each in path.parent.glob(f"*/*{_BLOCKS}"))
    left = min(left, int(FREE_SHARE * shutil.disk_usage(path).free))
    shards = [shard for shard in _shards(load_manifest(str(path))) if not (path / f"{shard.file}{_BLOCKS}").exists()]
    for number, shard in enumerate(shards):
        left -= shard.bytes
        if left < 0:
            rest = f"{len(shards) - number} shards of {path} have no place in the cache"
            logger.info(f"{rest}: each of their records is a request; a larger --cache_gb, or less data there, helps")
            return
        (path / f"{shard.file}{_BLOCKS}").write_bytes(bytes(-(-shard.bytes // BLOCK_BYTES)))


def _shards(manifest: Manifest) -> list[Shard]:
    return list(itertools.chain(*manifest.splits.values()))


class Blocks:
    """The blocks of a shard of a mirror; `address` is that of the shard."""

    def __init__(self, path: str, address: str, size: int):
        """Opens the list of the blocks of a shard of `size` bytes; raises OSError."""
        self._path, self._size, self._present, self.address = path, size, None, address
        if os.path.exists(path + _BLOCKS):
            self._present = np.memmap(path + _BLOCKS, np.uint8, "r+")

    def fetch(self, offset: int, size: int) -> bytes | None:
        """Fetches the blocks of a range that are missing; returns the range itself if the shard has no blocks.

        Raises:
            OSError: the range can't be read, or not be written; the error has the reason.
        """
        if self._present is None:
            return addresses.read(self.address, offset, offset + size)
        for block in self._numbers(offset, size):
            if not self._present[block]:
                self._fetch(block)
        return None

    def discard(self, offset: int, size: int) -> None:
        """Lets the blocks of a range be fetched again: a crash of the host may have lost what was written."""
        if self._present is not None:
            self._present[list(self._numbers(offset, size))] = 0

    def _numbers(self, offset: int, size: int) -> range:
        return range(offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES + 1)

    def _fetch(self, block: int) -> None:
        with open(self._path + _BLOCKS, "rb+") as marks, open(self._path, "rb+") as file:
            # The lock of an open file keeps out other threads as well.
            fcntl.fcntl(marks, fcntl.F_OFD_SETLKW, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, block, 1, 0))
            if not self._present[block]:
                begin = block * BLOCK_BYTES
                content = addresses.read(self.address, begin, min(begin + BLOCK_BYTES, self._size))
                os.pwrite(file.fileno(), content, begin)
                self._present[block] = 1
