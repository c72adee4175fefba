"""safetensors files, read and written one tensor at a time.

The library's own `save_file` needs all tensors in memory at once. The format is
https://huggingface.co/docs/safetensors: eight bytes with the length of the header, the header as JSON, the elements.
"""

import json
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from tftrain.files.errors import FormatError
from tftrain.files.reading import pointer

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F64": np.float64, "I64": np.int64}


class SafetensorsFile:
    """An open file; `shapes` are those of its tensors, by name."""

    def __init__(self, path: Path):
        """Opens a file, whose header the library checks; raises a FormatError if it is no safetensors file."""
        self.path = path
        if words := pointer(path):
            raise FormatError(f"{path}: {words}")
        try:
            self._file = safe_open(str(path), framework="numpy")
            names = list(self._file.keys())
            slices = {name: self._file.get_slice(name) for name in names}
        except (OSError, SafetensorError) as error:
            raise FormatError(f"{path}: not a safetensors file: {error}") from error
        self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        self._dtypes = {name: part.get_dtype() for name, part in slices.items()}

    def is_float(self, name: str) -> bool:
        """Whether a tensor has no integers."""
        return self._dtypes[name].startswith(("F", "BF"))

    def read(self, name: str) -> np.ndarray:
        """Returns a tensor in the dtype that it has in the file; raises a FormatError if that is not in `DTYPES`."""
        dtype = self._dtypes[name]
        if dtype not in DTYPES:
            raise FormatError(f"{self.path}: {name} is {dtype}; expected one of {', '.join(DTYPES)}")
        return np.asarray(self._file.get_tensor(name)).view(DTYPES[dtype])


def write_sharded(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]], most: float
) -> None:
    """Writes `WEIGHTS`, or as many files as keep each at `most` bytes of fp32 tensors, and their `INDEX`.

    A larger tensor has a file of its own. For `shapes` and `tensors`, see `write`.
    """
    parts, sizes = [[]], [0]
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        if parts[-1] and sizes[-1] + size > most:
            parts.append([])
            sizes.append(0)
        parts[-1].append(name)
        sizes[-1] += size
    tensors, count = iter(tensors), len(parts)
    files = [WEIGHTS] if count == 1 else [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
    for file, names in zip(files, parts, strict=True):
        write(folder / file, {name: shapes[name] for name in names}, islice(tensors, len(names)))
    if count > 1:
        names = {name: file for file, part in zip(files, parts, strict=True) for name in part}
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": names}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write(path: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes a file of fp32 tensors.

    Args:
        shapes: of all tensors by name, in the order of the file, which must not exist.
        tensors: names and values, in the same order; one is in memory at a time.
    """
    header, position = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        end = position + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, values), expected in zip(tensors, shapes, strict=True):
            if name != expected or values.shape != shapes[name]:
                raise ValueError(f"{name} {values.shape}: expected {expected} {shapes[expected]}")
            file.write(np.ascontiguousarray(values, "<f4").reshape(-1).view(np.uint8).data)
