"""Small files from elsewhere, read whole: what is no regular file, or larger than such a file ever is, is refused.

Manifests, vocabularies, indexes and flagfiles go through here, so that none of them can block a program (a pipe, a
device) or fill its memory, whatever lies at its path.
"""

import errno
import os
import stat


def read_small(path: str, limit: int) -> bytes:
    """Returns the content of a file.

    Args:
        path: of a regular file.
        limit: the most bytes that it may have.

    Raises:
        OSError: it can't be read, is something else, or is too large; `strerror` says which.
    """
    # Without O_NONBLOCK the call would wait for somebody to open the other end of a pipe.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        # Not trusted to be what fstat says: a file of /proc has the size 0.
        content = file.read(limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"Larger than {limit} bytes", path)
    return content
