"""torch's files (`torch.save`), read and written without torch. Reading one runs nothing that is in it.

A file is a zip archive with a pickle of containers and tensors, and an entry for the elements of each storage. A pickle
may name any function of any module, to be called when it is loaded. This reader calls none of them: it rebuilds tensors
and ordered dictionaries itself, and everything else becomes an inert record of its attributes.
"""

import collections
import io
import math
import pickle
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import ml_dtypes
import numpy as np

from tftrain.files.errors import FormatError
from tftrain.files.reading import pointer
from tftrain.host.text import one_line
from tftrain.prepare import archives

_STORAGES = {
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "DoubleStorage": np.dtype(np.float64),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
# The pickle has no elements in it. A byte of it can take 200 bytes of memory.
_MAX_PICKLE_BYTES = 1 << 23


class Storage(NamedTuple):
    """The elements in an entry of the archive."""

    entry: str
    dtype: np.dtype


class Tensor(NamedTuple):
    """A view of a storage; offset and strides count elements."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Record:
    """An object of a class that is not loaded: its attributes by name, if it has any."""

    def __init__(self, *_args, **_kwargs):
        self.attributes: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}

    def __reduce_ex__(self, _: Any):
        raise TypeError("a record is only read")

    def __call__(self, *_args, **_kwargs) -> "Record":
        """Returns another record: an attribute of the object was called."""
        return Record()

    def append(self, _: Any) -> None:
        """Ignores an element of what is perhaps a list."""

    def __setitem__(self, _key: Any, _value: Any) -> None: ...

    def __hash__(self) -> int:
        return id(self)


class TorchFile:
    """An open file.

    Its `content` is dictionaries, lists, numbers and strings, with a `Tensor` for each tensor and a `Record` for the
    rest.
    """

    def __init__(self, path: Path):
        """Reads all but the elements; raises a FormatError if it is no file of `torch.save` since version 1.6."""
        self.path = path
        if words := pointer(path):
            raise FormatError(f"{path}: {words}")
        try:
            self._archive = archives.open_zip(open(path, "rb"))  # noqa: SIM115
            entry = next((name for name in self._archive.namelist() if name.endswith("/data.pkl")), "data.pkl")
            self._prefix = entry.removesuffix("data.pkl")
            if self._archive.getinfo(entry).file_size > _MAX_PICKLE_BYTES:
                raise FormatError(f"{path}: its pickle has more than {_MAX_PICKLE_BYTES} bytes")
            self.content = _Unpickler(io.BytesIO(self._stored(entry)), self._prefix).load()
        except FormatError:
            raise
        except Exception as error:  # Unpickling damaged bytes can raise anything.
            raise FormatError(one_line(f"{path}: not a file that torch 1.6 or later has saved: {error}")) from error

    def read(self, tensor: Tensor) -> np.ndarray:
        """Returns the elements of a tensor; raises a FormatError if they are not in the file."""
        entry, dtype = tensor.storage
        try:
            elements = np.frombuffer(self._stored(entry), dtype.newbyteorder("<"))
        except (LookupError, ValueError, OSError, EOFError, MemoryError, RuntimeError, zipfile.BadZipFile) as error:
            raise FormatError(one_line(f"{self.path}: {entry} can't be read: {error}")) from error
        last = tensor.offset + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides, strict=True))
        size = math.prod(tensor.shape)
        if size and not (0 <= tensor.offset <= last < elements.size and size <= elements.size):
            raise FormatError(one_line(f"{self.path}: a tensor lies outside {entry}, or has more elements"))
        strides = [step * dtype.itemsize for step in tensor.strides]
        return np.lib.stride_tricks.as_strided(elements[tensor.offset :], tensor.shape, strides, writeable=False)

    def _stored(self, entry: str) -> bytes:
        """Returns an entry, which torch never compresses, so that no more is read than the file has."""
        if self._archive.getinfo(entry).compress_type != zipfile.ZIP_STORED:
            raise zipfile.BadZipFile(f"{entry} is compressed; expected a file as torch saves it")
        return self._archive.read(entry)


class _Unpickler(pickle._Unpickler):
    """Builds tensors and containers; names of classes are compared with a few strings, and nothing is imported.

    A pickle can change whatever it is handed: what takes the place of a class or function is made anew for each name.
    The unpickler in C allocates as many places as the pickle gives its objects numbers, so it is that in Python.
    """

    def __init__(self, file: io.BytesIO, prefix: str):
        super().__init__(file)
        self._prefix = prefix

    def find_class(self, module: str, name: str) -> Any:
        """Returns what takes the place of a class or function."""
        match module, name:
            case "collections", "OrderedDict":
                return type(name, (collections.OrderedDict,), {})
            case "torch._utils", "_rebuild_tensor_v2":
                return lambda *parts: _tensor(*parts)
            case "torch._utils", "_rebuild_parameter":
                return lambda tensor, *_: tensor
            case "torch", _ if name in _STORAGES:
                return name
        return type(name, (Record,), {})

    def persistent_load(self, pid: Any) -> Storage:
        """Returns the storage that the pickle names, see `Tensor`."""
        kind, storage, key = pid[:3]
        if kind != "storage" or storage not in _STORAGES or not isinstance(key, str):
            raise ValueError(f"a storage of an unknown kind: {pid[:2]}")
        return Storage(f"{self._prefix}data/{key}", _STORAGES[storage])


def _tensor(storage: Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_) -> Tensor:
    numbers = (offset, *shape, *strides)
    if not isinstance(storage, Storage):
        raise ValueError("a tensor without a storage")
    if len(shape) != len(strides) or any(not isinstance(each, int) or each < 0 for each in numbers):
        raise ValueError("a tensor with a negative size or stride")
    return Tensor(storage, offset, tuple(shape), tuple(strides))


class Global(NamedTuple):
    """A class or function of another program, which a pickle names."""

    module: str
    name: str


class Placeholder(NamedTuple):
    """The place of an fp32 tensor to write: its name among the values, and its shape."""

    name: str
    shape: tuple[int, ...]


def write(path: Path, content: Any, values: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes a file that torch can load.

    `content` is dictionaries, numbers, strings, an `argparse.Namespace`, and a `Placeholder` for each tensor. The
    tensors come by name, each once; one is in memory at a time.
    """
    buffer = io.BytesIO()
    pickler = _Pickler(buffer, protocol=2)
    pickler.dump(content)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        archive.writestr("archive/data.pkl", buffer.getvalue())
        archive.writestr("archive/byteorder", "little")
        for name, value in values:
            with archive.open(f"archive/data/{pickler.keys.pop(name)}", "w", force_zip64=True) as file:
                file.write(np.ascontiguousarray(value, "<f4").reshape(-1).view(np.uint8).data)
        archive.writestr("archive/version", "3\n")
    if pickler.keys:
        raise ValueError(f"no values of {', '.join(pickler.keys)}")


class _Pickler(pickle._Pickler):
    """Writes names of classes without importing them; `keys` are the numbers of the tensors' storages by name."""

    dispatch: ClassVar[dict] = dict(pickle._Pickler.dispatch)

    def __init__(self, file: io.BytesIO, protocol: int):
        super().__init__(file, protocol)
        self.keys: dict[str, int] = {}

    def _save_global(self, named: Global) -> None:
        self.write(pickle.GLOBAL + f"{named.module}\n{named.name}\n".encode())

    def _save_tensor(self, tensor: Placeholder) -> None:
        key = self.keys.setdefault(tensor.name, len(self.keys))
        size = math.prod(tensor.shape)
        strides = tuple(math.prod(tensor.shape[axis + 1 :]) for axis in range(len(tensor.shape)))
        self.save(Global("torch._utils", "_rebuild_tensor_v2"))
        self.write(pickle.MARK)
        self.save(("storage", Global("torch", "FloatStorage"), str(key), "cpu", size))
        self.write(pickle.BINPERSID)
        for part in (0, tuple(tensor.shape), strides, False, collections.OrderedDict()):
            self.save(part)
        self.write(pickle.TUPLE + pickle.REDUCE)

    dispatch[Global], dispatch[Placeholder] = _save_global, _save_tensor
