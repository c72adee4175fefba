import ctypes
import itertools
import re

import pytest

from tftrain.ops import library as module
from tftrain.ops.library import MissingLibraryError, library


def handlers():
    """Returns the library, and the function that handles each op without its suffix: `_host` or `_cuda`."""
    path = next(path for path in module.candidates() if path.exists())
    found = ctypes.CDLL(str(path))
    found.tftrain_ops.restype = ctypes.POINTER(ctypes.c_char_p)
    names = [name.decode() for name in itertools.takewhile(bool, found.tftrain_ops())]
    return found, dict(zip(names[::2], names[1::2], strict=True))


def test_it_is_loaded_once():
    assert library() is library()


def test_a_missing_library_is_an_error_that_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "candidates", lambda: [tmp_path / "nowhere.so"])
    with pytest.raises(MissingLibraryError, match=r"nowhere\.so.*make setup.*bazel run //custom_ops:install"):
        library.__wrapped__()


def test_a_library_for_another_tensorflow_is_an_error_that_says_so(monkeypatch, tmp_path):
    broken = tmp_path / module.NAME
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(module, "candidates", lambda: [broken])
    with pytest.raises(MissingLibraryError, match=r"cannot load .*make setup"):
        library.__wrapped__()


def test_it_lists_every_op_with_the_function_that_handles_it():
    found, symbols = handlers()
    ops = {name for name in dir(library()) if re.fullmatch(r"Tftrain[A-Z]\w+", name)}
    # XLA has calls of cuDNN of its own, and counts no collectives.
    assert set(symbols) == {op for op in ops if "Cudnn" not in op and op != "TftrainCount"}
    assert all(hasattr(found, f"{symbol}_host") for symbol in symbols.values())
