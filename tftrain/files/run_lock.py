"""The lock of an output folder: one run at a time writes to it.

Two runs in one folder would remove each other's checkpoints and mix their metrics. The chief of a run locks the file
`OUTPUT_DIR/run.lock`, which names the process. The operating system releases the lock when the process ends, however it
ends, so a crash leaves no lock behind. POSIX locks work between the hosts of a file system whose servers support them,
such as NFS.
"""

import errno
import fcntl
import json
import logging
import os
import platform
import time
from datetime import datetime
from pathlib import Path

logger = logging.getLogger(__name__)

NAME = "run.lock"
HELD = (errno.EACCES, errno.EAGAIN)
POLL_SECONDS = 0.1
# The holder writes its name right after it has the lock; a network file system may show it a little later.
NAME_SECONDS = 2.0
# How long a file server keeps the lock of a host that has died: NFS's lease is 90 seconds.
LEASE_SECONDS = 100.0


class RunLock:
    """The lock of one folder, held by this process until `release`, or until the process ends.

    A process loses its POSIX lock when it closes any descriptor of the file, so nothing else may open the file.
    """

    def __init__(self, output_dir: str | Path):
        self.path = Path(output_dir) / NAME
        self._file: int | None = None

    def acquire(self, wait_seconds: float = 0.0) -> str | None:
        """Locks the folder; returns words for the process that still holds the lock after `wait_seconds`, else None.

        It waits longer for a process on another host, which may be dead. If the file system has no locks, this warns
        and goes on.
        """
        end, lease = time.monotonic() + wait_seconds, LEASE_SECONDS
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            while not self._try():
                if time.monotonic() >= end:
                    holder = self._holder()
                    if not lease or f" on host {platform.node()}," in holder or " on host " not in holder:
                        self.release()
                        return holder
                    logger.info(f"{self.path} is locked by {holder}; waiting {lease:.0f} s, in case that host is dead")
                    end, lease = end + lease, 0.0
                time.sleep(POLL_SECONDS)
            self._write_name()
        except OSError as error:
            logger.warning(
                f"{self.path}: can't be locked here: {error.strerror}; nothing keeps a second run out of this folder"
            )
        return None

    def release(self) -> None:
        """Unlocks the folder if it is locked."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _try(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in HELD:
                return False
            raise
        return True

    def _write_name(self) -> None:
        started = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        name = json.dumps({"host": platform.node(), "process": os.getpid(), "started": started}).encode()
        # Over the old name, and only then shorter: a reader never finds an empty file again.
        os.pwrite(self._file, name, 0)
        os.ftruncate(self._file, len(name))

    def _holder(self) -> str:
        end = time.monotonic() + NAME_SECONDS
        while True:
            try:
                name = json.loads(os.pread(self._file, 4096, 0))
                return f"process {name['process']} on host {name['host']}, started {name['started']}"
            except (ValueError, KeyError, TypeError):
                if time.monotonic() >= end:
                    return "a process whose name can't be read"
                time.sleep(POLL_SECONDS)
