"""A folder that appears when it is complete: a program that fails or is stopped leaves nothing."""

import fcntl
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tftrain.files import durable

logger = logging.getLogger(__name__)


@contextmanager
def complete_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to write into, and moves it at the end to its place, which does not exist or is empty.

    An exception deletes it. Raises an OSError if it can't be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}_"))
    try:
        yield partial
        mask = os.umask(0)
        os.umask(mask)
        partial.chmod(0o777 & ~mask)
        if path.exists():
            path.rmdir()
        durable.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keeps out all others that lock a path, also those on hosts that share the file system; raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in durable.UNSUPPORTED:
                raise
            logger.info(f"{path}: this file system can't lock files: use {path.name} from one program at a time")
        yield
