"""TensorFlow's checkpoints of named tensors, read and written one tensor at a time.

`tf.raw_ops.SaveV2` takes all tensors at once. So each tensor, or a few small ones, becomes a checkpoint of its own, and
`tf.raw_ops.MergeV2Checkpoints` makes them one: it moves the data files and writes an index over all.
"""

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from tftrain.files.errors import FormatError, MissingModelError
from tftrain.files.reading import pointer

FILE_BYTES = 2**26  # Small tensors share a data file of about so many.


class TfCheckpoint:
    """An open checkpoint; `shapes` are those of its tensors, by name."""

    def __init__(self, prefix: Path):
        """Opens PREFIX.index; raises a FormatError if there is none, or it is damaged."""
        self.path = prefix
        if not prefix.with_name(f"{prefix.name}.index").is_file():
            raise MissingModelError(f"{prefix}.index: no such file; expected a checkpoint of TensorFlow")
        if words := next(filter(None, map(pointer, prefix.parent.glob(f"{prefix.name}.*"))), ""):
            raise FormatError(f"{prefix}: {words}")
        try:
            self._reader = tf.train.load_checkpoint(str(prefix))
            self.shapes = {name: tuple(shape) for name, shape in self._reader.get_variable_to_shape_map().items()}
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise FormatError(f"{prefix}: not a checkpoint of TensorFlow: {_first_line(error)}") from error

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor; raises a FormatError if it can't be read."""
        try:
            return self._reader.get_tensor(name)
        except (tf.errors.OpError, ValueError, RuntimeError) as error:
            raise FormatError(f"{self.path}: {name} can't be read: {_first_line(error)}") from error


def write(
    prefix: Path, tensors: Iterable[tuple[str, np.ndarray]], others: Mapping[str, tf.Tensor] | None = None
) -> None:
    """Writes a checkpoint of fp32 tensors.

    Args:
        prefix: path of the checkpoint without `.index`.
        tensors: names and values; few are in memory at a time.
        others: small tensors of any dtype.
    """
    with tempfile.TemporaryDirectory(dir=prefix.parent, prefix=".parts_") as folder:
        parts: list[str] = []

        def save(values: Mapping[str, tf.Tensor]) -> None:
            parts.append(f"{folder}/{len(parts)}")
            names = list(values)
            tf.raw_ops.SaveV2(
                prefix=parts[-1], tensor_names=names, shape_and_slices=[""] * len(names), tensors=list(values.values())
            )

        waiting, held = dict(others or {}), 0
        for name, value in tensors:
            size = 4 * value.size
            if waiting and held + size > FILE_BYTES:
                save(waiting)
                waiting, held = {}, 0
            waiting[name], held = tf.convert_to_tensor(np.ascontiguousarray(value, np.float32)), held + size
        save(waiting)
        tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=str(prefix), delete_old_dirs=False)


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", None) or error).split("\n")[0]
