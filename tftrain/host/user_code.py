"""A user's own class that a flag names as MODULE:CLASS: it is loaded, and an error in it is one line."""

import contextlib
import importlib
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from tftrain.host.exit_codes import RunError
from tftrain.host.text import one_line

CLASS = "MODULE:CLASS"


class UserCodeError(RunError):
    """A user's class can't be used, or has raised an error; perhaps on this rank alone, so each says so."""


def is_class_name(name: str) -> bool:
    """Whether a text is MODULE:CLASS."""
    return re.fullmatch(r"[\w.]+:\w+", name) is not None


def load(flag: str, name: str, base: type) -> type:
    """Returns the class that a flag names, derived from `base`; a UserCodeError says why it can't be used."""
    module, _, attribute = name.partition(":")
    try:
        loaded = getattr(importlib.import_module(module), attribute, None)
    except Exception as error:
        raise UserCodeError(
            f"--{flag}={name}: importing {module} raised {type(error).__name__}: {one_line(str(error))}; modules are "
            "imported from the working folder and in PYTHONPATH"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        public = f"{base.__module__}.{base.__name__}"
        raise UserCodeError(f"--{flag}={name}: {module} has no class {attribute} derived from {public}")
    return loaded


def file_of(name: str) -> str | None:
    """Returns the file of a class that is loaded; None if it has none."""
    return getattr(sys.modules.get(name.partition(":")[0]), "__file__", None)


@contextlib.contextmanager
def named(flag: str, name: str, method: str) -> Iterator[None]:
    """Begins a UserCodeError with flag, class and method, and makes one with the line of any other error."""
    origin = f"--{flag}={name}: {method}"
    try:
        yield
    except UserCodeError as error:
        raise UserCodeError(f"{origin} {error}") from error
    except Exception as error:
        frames, file = traceback.extract_tb(error.__traceback__), file_of(name)
        lines = [f" ({Path(file).name}, line {frame.lineno})" for frame in frames if frame.filename == file]
        words = f"{type(error).__name__}: {one_line(str(error))}"
        raise UserCodeError(f"{origin} raised {words}{lines[-1] if lines else ''}") from error
