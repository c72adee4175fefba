"""The announcement of a rank: a file that tells the chief which shards the rank has written, or why it has failed."""

from collections.abc import Mapping

import msgspec

from tftrain.checkpoint.errors import CheckpointError
from tftrain.checkpoint.shard import Written


class _Content(msgspec.Struct):
    error: str = ""
    files: dict[str, Written] = {}


def encode(files: Mapping[str, Written], error: str = "") -> bytes:
    """Returns the announcement of files, with their slices, or of a failure, as JSON."""
    return msgspec.json.encode(_Content(error, dict(files)))


def decode(content: bytes) -> dict[str, Written]:
    """Returns the files that a rank announces.

    Raises:
        CheckpointError: the rank has failed; the message is the rank's.
        ValueError: it is no announcement.
    """
    announced = msgspec.json.decode(content, type=_Content)
    if announced.error:
        raise CheckpointError(announced.error)
    return announced.files
