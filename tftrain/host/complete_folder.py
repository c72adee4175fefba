"""A folder that appears when it is complete: a program that fails or is stopped leaves nothing."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to write into, and moves it to its place at the end; an exception deletes it.

    Args:
        path: of a folder that does not exist or is empty.

    Raises:
        OSError: it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}_"))
    try:
        yield partial
        partial.chmod(0o777 & ~_umask())
        if path.exists():
            path.rmdir()
        partial.rename(path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
