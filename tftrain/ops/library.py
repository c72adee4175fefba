"""The compiled ops, loaded once. There is no falling back: a run that asked for fused ops has them, or stops here."""

import functools
from pathlib import Path
from types import ModuleType

import tensorflow as tf

NAME = "libtftrain_ops.so"


class MissingLibraryError(ImportError):
    """The ops were not built, or were built for another TensorFlow; the message says what to do."""


def candidates() -> list[Path]:
    """Returns the places where the library may be: in the package, where the set-up puts it, and in Bazel's tests."""
    package = Path(__file__).parent
    checkout = package.parent.parent
    return [package / NAME, checkout / "build" / "custom_ops" / NAME, checkout / "custom_ops" / "tensorflow" / NAME]


@functools.cache
def library() -> ModuleType:
    """Loads the library on the first call.

    Returns:
        A module with one function for each op, such as `tftrain_layer_norm`.

    Raises:
        MissingLibraryError: there is none, or TensorFlow cannot load it.
    """
    path = next((path for path in candidates() if path.exists()), None)
    how = "build it with `make setup` or `bazel run //custom_ops:install`, or choose the reference implementations"
    if path is None:
        places = ", ".join(str(place) for place in candidates())
        raise MissingLibraryError(f"the fused ops' library {NAME} is in none of {places}; {how}")
    try:
        return tf.load_op_library(str(path))
    except tf.errors.NotFoundError as error:
        raise MissingLibraryError(
            f"TensorFlow {tf.__version__} cannot load {path}, built for another one perhaps; {how}\n{error.message}"
        ) from error


def is_available() -> bool:
    """Whether the library is built for this TensorFlow."""
    try:
        library()
    except MissingLibraryError:
        return False
    return True
