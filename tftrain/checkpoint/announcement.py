"""The announcement of a rank: a file that tells the chief which shards the rank has written, or why it has failed.

The chief reads one of every rank, with thousands of slices in each. So an announcement is decoded straight into rows of
numbers, and its content is checked once for all ranks, when the manifest is made of it.
"""

from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.placement import BlockKey, Placement, SliceCollector, columns
from tftrain.checkpoint.shard import Written

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _File(msgspec.Struct, array_like=True):
    name: str
    bytes: int
    digests: dict[str, str]
    places: list[BlockKey]
    starts: list[Count]
    stops: list[Count]


class _Content(msgspec.Struct):
    error: str = ""
    files: list[_File] = []


def encode(files: Mapping[str, Written], error: str = "") -> bytes:
    """Returns the announcement of files, with their slices, or of a failure, as JSON."""
    entries = [_File(name, file.bytes, dict(file.digests), *columns(file.pieces)) for name, file in files.items()]
    return msgspec.json.encode(_Content(error, entries))


class Announced:
    """Collects the announcements of all ranks."""

    def __init__(self):
        self._decoder, self._files, self._rows = msgspec.json.Decoder(_Content), {}, SliceCollector()

    def add(self, content: bytes) -> None:
        """Adds the announcement of the next rank.

        Raises:
            CheckpointError: the rank has failed; the message is the rank's.
            ValueError: it is no announcement.
        """
        announced = self._decoder.decode(content)
        if announced.error:
            raise CheckpointError(announced.error)
        for file in announced.files:
            if not len(file.places) == len(file.starts) == len(file.stops):
                raise ValueError(f"{file.name} has {len(file.places)} pieces, but another number of ranges")
            self._rows.add(len(self._files), file.places, file.starts, file.stops)
            self._files[file.name] = Written(file.bytes, file.digests, ())

    def placement(self) -> Placement:
        """Returns all files; raises a ValueError if ranks do not agree on the dtype or the shape of a tensor."""
        numbers = np.argsort(np.argsort(list(self._files)))  # a file's place among the sorted names
        return Placement(self._files, self._rows.tensors(numbers))
