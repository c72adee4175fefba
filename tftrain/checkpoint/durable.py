"""Files and folders that survive a crash: written under another name, flushed, then renamed."""

import os
import shutil
from pathlib import Path


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Writes a small file and flushes it; after a crash or on a full disk, the file is complete or does not exist.

    Raises:
        OSError: it can't be written; the error names the file.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        # In a folder that others may write to, the name may be a link of theirs, which the mode "x" does not follow.
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    temporary.replace(path)


def rename(old: Path, new: Path) -> None:
    """Renames within a folder, and flushes the folder."""
    old.rename(new)
    flush(new.parent)


def remove(folder: Path, trash: Path) -> None:
    """Removes a folder; after a crash, the folder is complete or is named `trash`, a path in the same parent."""
    rename(folder, trash)
    shutil.rmtree(trash)
