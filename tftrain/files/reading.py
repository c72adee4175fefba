"""Reads small files whole, and refuses large files and files that are not regular.

Manifests, vocabularies, indexes and flagfiles are read by this module, so that no path can block a program (a pipe, a
device) or fill its memory.
"""

import errno
import os
import re
import stat
from typing import BinaryIO

_PART_BYTES = 1 << 20
# Where a path begins in the value of a flag: after FORMAT:, SHARE:, "=" of a phase, and file://.
_HOME = re.compile(r"(^\s*|[:=]\s*|file://)(~[\w.-]*)(?=[/\s]|$)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def expanded(value: str) -> str:
    """Returns a path, or a list with paths, with `~` and variables as a shell replaces them; not in addresses of HTTP.

    A name that exists may have "$" in it. Raises a ValueError if a variable is not set, or if there are quotes, as on a
    line of a flagfile.
    """

    def variable(match: re.Match) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ValueError(f"the variable {name} is not set; set it, or write the path out")
        return os.environ[name]

    if value[:1] in ("'", '"') and value[:1] == value[-1:] and not os.path.lexists(value):
        raise ValueError("expected no quotes here, which only a shell removes")
    parts = [value] if os.path.lexists(value) else re.split("([,;])", value)
    for index, part in enumerate(parts):
        if not part.startswith(("http://", "https://")):
            part = _HOME.sub(lambda match: match[1] + os.path.expanduser(match[2]), part)
            parts[index] = part if os.path.lexists(part) else _VARIABLE.sub(variable, part)
    return "".join(parts)


POINTER = "a Git LFS pointer, not the file itself; run git lfs pull where it was cloned"
_POINTER = re.compile(rb"version https?://(git-lfs\.github\.com|hawser\.github\.com|git-media\.io)/")
POINTER_BYTES = 64  # that tell


def is_pointer(beginning: bytes) -> bool:
    """Whether a file that begins with these bytes is a pointer that Git LFS puts in the place of a file."""
    return _POINTER.match(beginning) is not None


def pointer(path: str | os.PathLike) -> str:
    """Returns what to say of a file that is a pointer of Git LFS; "" if it is none or can't be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            return POINTER if is_pointer(file.read(POINTER_BYTES) or b"") else ""
    except OSError:
        return ""


def read_small(path: str, limit: int) -> bytes:
    """Returns the content of a file of at most `limit` bytes.

    Raises an OSError if the file can't be read, is not regular, or is too large; its `strerror` gives the reason.
    """
    # Without O_NONBLOCK, opening a pipe waits until another process opens its other end.
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "Not a regular file", path)
        content = read_at_most(file, limit + 1)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"Larger than {limit} bytes", path)
    if is_pointer(content):
        raise OSError(errno.EINVAL, POINTER, path)
    return content


def read_at_most(file: BinaryIO, limit: int) -> bytes:
    """Returns the bytes of an open file, at most `limit` of them, without memory for as many.

    The size in fstat is not reliable: a file in /proc has size 0.
    """
    parts, left = [], limit
    while left > 0 and (part := file.read(min(left, _PART_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
