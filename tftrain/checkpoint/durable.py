"""Files and names that survive a crash: written beside, flushed, renamed."""

import os
import shutil
from pathlib import Path


def flush(path: Path) -> None:
    """Makes a file's content, or a folder's names, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Writes a small file and flushes it; under its name it exists whole or not at all."""
    beside = path.with_name(f".{path.name}.new")
    with open(beside, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def rename(old: Path, new: Path) -> None:
    """Renames within a folder, and flushes the folder."""
    old.rename(new)
    flush(new.parent)


def remove(folder: Path, trash: Path) -> None:
    """Removes a folder so that a crash leaves it whole or under the name `trash`, which lies beside it."""
    rename(folder, trash)
    shutil.rmtree(trash)
