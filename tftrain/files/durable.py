"""Files and folders that survive a crash: written under another name, flushed, then renamed.

Some file systems can't flush a folder, lock a file or rename a folder that has files: those of object stores, of
Windows' shares, of some containers. What works there is done, and a line says what does not, once.
"""

import contextlib
import errno
import functools
import logging
import os
import shutil
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

# How a file system says that it has no such operation, and not that the operation has failed.
UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOLCK)
# The same of a folder's rename: gcsfuse has a limit of files, which is 0; an overlay has folders of a lower layer.
NO_RENAME = (*UNSUPPORTED, errno.EMFILE, errno.EXDEV, errno.EPERM)
LAST = "manifest.json"  # without which nobody takes a folder for a complete one


def flush_file(descriptor: int, path: Path) -> None:
    """Flushes what an open file or folder has to the disk; raises an OSError that names it."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise OSError(error.errno, error.strerror, str(path)) from error
        _say_once("flush folders or files: after a crash of the host, the newest of them may be missing", path)


def flush(path: Path) -> None:
    """Flushes a file's content, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_file(descriptor, path)
    finally:
        os.close(descriptor)


def write(path: Path, content: bytes) -> None:
    """Writes a small file and flushes it; after a crash or on a full disk, the file is complete or does not exist.

    Raises an OSError that names the file if it can't be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        # In a folder that others may write to, the name may be a link of theirs, which the mode "x" does not follow.
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            flush_file(file.fileno(), path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
    temporary.replace(path)


def rename(old: Path, new: Path) -> None:
    """Renames within a folder, and flushes the folder.

    Where a folder with files can't be renamed, its files move one by one, and last the one that makes it complete.
    """
    try:
        old.rename(new)
    except OSError as error:
        if error.errno not in NO_RENAME or not old.is_dir():
            raise
        new.mkdir(exist_ok=True)
        for path in sorted(old.iterdir(), key=lambda path: path.name == LAST):
            rename(path, new / path.name)
        old.rmdir()
        _say_once("rename folders: their files are moved one by one", new)
    flush(new.parent)


def remove(folder: Path, trash: Path) -> None:
    """Removes a folder; after a crash, the folder is complete or is named `trash`, a path in the same parent."""
    try:
        folder.rename(trash)
    except OSError as error:
        if error.errno not in NO_RENAME:
            raise
        (folder / LAST).unlink(missing_ok=True)
        trash = folder
    flush(trash.parent)
    shutil.rmtree(trash)


def probe(folder: Path) -> None:
    """Tries in a folder what a run needs of its file system, and says what that can't do; raises an OSError."""
    before = Path(tempfile.mkdtemp(prefix=".probe_", dir=folder))
    after = before.with_name(f"{before.name}_renamed")
    try:
        write(before / "file", b"")
        rename(before, after)
    finally:
        for path in (before, after):
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(path)


def _say_once(what: str, path: Path) -> None:
    if what not in _said():
        _said().add(what)
        logger.info(f"{path}: this file system can't {what}")


@functools.cache
def _said() -> set[str]:
    return set()
