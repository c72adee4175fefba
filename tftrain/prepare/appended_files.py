"""Files to which tasks append, on one machine or on several that share a file system.

Each thread appends to files of its own, so no locks are needed. A task may fail in the middle of a write, and be
repeated by the same thread or by another one. So rows may occur twice, and the last row of a file may be incomplete:
readers count a row once, and ignore an incomplete one, because the task that was repeated wrote it whole.
"""

import functools
import os
import threading
import uuid


def append(folder: str, prefix: str, rows: bytes, row_bytes: int = 1) -> None:
    """Appends rows to this thread's file of a folder, and makes the folder; `prefix` begins the file's name.

    `row_bytes` is the size of every row. What an earlier write has left of an incomplete row is removed.
    """
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, prefix + _writer(os.getpid(), threading.get_ident())), "ab") as file:
        if incomplete := file.tell() % row_bytes:
            file.truncate(file.tell() - incomplete)
        file.write(rows)


def paths(folder: str, prefix: str) -> list[str]:
    """Returns the files of a folder, maybe none, to which `append` has written with this prefix."""
    names = os.listdir(folder) if os.path.isdir(folder) else ()
    return [os.path.join(folder, name) for name in names if name.startswith(prefix)]


@functools.cache
def _writer(process: int, thread: int) -> str:
    """Returns a name for a thread of this process. Containers may share a host's name, and have equal process ids."""
    return uuid.uuid4().hex
