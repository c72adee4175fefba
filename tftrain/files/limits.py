"""What a server may give: neither folders without end nor more bytes than the disk has, whatever it says of them."""

import contextlib
import os
import shutil
from typing import Any

# Files below one address, and folders below each other: more than the largest run or model has.
MOST_FILES, DEEPEST = 100_000, 32
# Share of the free disk space that a copy may take.
FREE_SHARE = 0.8


def files_below(system: Any, path: str) -> dict[str, dict[str, Any]]:
    """Returns what a file system of fsspec says of files below a folder; raises a ValueError if they have no end."""
    files, folders = {}, 0
    is_http = "http" in system.protocol  # Stores list all in few requests.
    for _, inner, own in system.walk(path, maxdepth=DEEPEST, detail=True) if is_http else [(path, (), None)]:
        files |= system.find(path, detail=True) if own is None else {info["name"]: info for info in own.values()}
        folders += len(inner)
        if len(files) + folders > MOST_FILES:
            raise ValueError(f"it has more than {MOST_FILES} files and folders")
    return files


def get_file(system: Any, name: str, path: str, size: int | None) -> None:
    """Copies a file of a file system of fsspec; raises a ValueError if it is too large for the disk."""
    import fsspec

    folder = os.path.dirname(path)
    reserve = (1 - FREE_SHARE) * shutil.disk_usage(folder).free

    def check(left: int) -> None:
        if shutil.disk_usage(folder).free - reserve < left:
            raise ValueError(f"{size or 'its'} bytes are more than the disk of {folder} has space for")

    with contextlib.suppress(FileNotFoundError):
        os.remove(path)  # It may be a link.
    check(size or 0)
    system.get_file(name, path, callback=fsspec.Callback(hooks={"space": lambda *_, **__: check(0)}))
