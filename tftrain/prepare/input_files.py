"""The files that `--input_files` names: files, folders, globs and addresses, with commas or in several flags."""

import contextlib
import errno
import glob
import logging
import os
import re
import stat
from collections.abc import Iterator, Sequence

from tftrain.files import addresses
from tftrain.files.errors import DataError, MissingFileError
from tftrain.files.reading import POINTER_BYTES, expanded
from tftrain.host.text import reason as reason_of
from tftrain.prepare import data_names

logger = logging.getLogger(__name__)

_COMMAS_IN_NAME = 16  # that the name of one file or one glob may have
LARGEST_POINTER = 1 << 10


def list_files(
    values: Sequence[str], skip_unreadable: bool = False, flag: str = "input_files"
) -> tuple[list[str], int]:
    """Returns the sorted paths of the files that a flag names, and the number of files and folders that can't be read.

    A file that is named twice occurs once. Each value is a list of names with commas between them. A name is a file, a
    folder, a glob or an address. A folder means all regular files below it, through links too, that are data by
    `data_names`; the log has the number of the others. A name that exists is never split at its commas and never read
    as a glob.

    Raises:
        MissingFileError: a name matches no file.
        DataError: a file, a folder or a link can't be read, unless that is to be skipped.
    """
    paths: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    left_out: list[str] = []
    for value in map(expanded, values):
        for name, matches in _names(value):
            before = len(unreadable)
            _note_unlisted(name, unreadable)
            others: list[str] = []
            if addresses.is_address(name):
                files = _at_address(name, matches, others)
            else:
                files = [path for match in matches or [name] for path in _files(match, unreadable, others)]
            left_out += others
            if not files and len(unreadable) == before:
                reason = "no file in this folder" if os.path.isdir(name) else "no file matches"
                reason = f"no data; {data_names.words(others)}" if others else reason
                expected = "expected files, folders or globs (quote a glob in a shell)"
                raise MissingFileError(f"--{flag}={name}: {reason}; {expected}")
            for path in files:
                paths.setdefault(os.path.realpath(path), path)
    if left_out:
        logger.info(data_names.words(left_out))
    if unreadable:
        path, reason = min(unreadable.items())
        more = f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        if not skip_unreadable:
            raise DataError(f"{path}: {reason}{more}; make it readable, or leave it out with --skip_unreadable")
        logger.warning(f"--skip_unreadable: {len(unreadable)} left out: {path}: {reason}{more}")
    if not paths:
        reason = "nothing that can be read" if unreadable else "no name"
        raise DataError(f"--{flag}={','.join(values)}: {reason}; expected files, folders or globs")
    return sorted(paths.values()), len(unreadable)


def _names(value: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the names in a value with the paths that match each. The longest name that matches comes first."""
    if "://" in value:
        yield from ((name, _matches(name)) for name in filter(None, map(str.strip, value.split(","))))
        return
    if matches := _matches(value):
        yield value, matches
        return
    parts, begin = value.split(","), 0
    while begin < len(parts):
        for end in range(min(len(parts), begin + 1 + _COMMAS_IN_NAME), begin, -1):
            name = ",".join(parts[begin:end])
            # Spaces around a comma do not belong to a name, unless a file has them in its name.
            matches = _matches(name) or _matches(name.strip())
            if matches or end == begin + 1:
                break
        if name.strip():
            yield name, matches
        begin = end


def _matches(name: str) -> list[str]:
    if addresses.is_address(name):
        try:
            return addresses.list_files(name)
        except OSError as error:
            reason = f"{error.strerror}; expected an address that can be listed"
            raise DataError(f"--input_files={name}: {reason}") from error
    if os.path.exists(name):
        return [name]
    return glob.glob(name, recursive=True)


def _files(path: str, unreadable: dict[str, str], left_out: list[str]) -> list[str]:
    """Returns a file, or the data below a folder; the rest goes into `left_out` and, with the reason, `unreadable`."""
    if not os.path.isdir(path):
        return [] if _beginning(path, unreadable) is None else [path]
    entries, visited = [], {os.path.realpath(path)}

    def is_new(folder: str) -> bool:
        real = os.path.realpath(folder)
        return not (real in visited or visited.add(real))

    def note(error: OSError) -> None:
        unreadable[error.filename] = _reason(error.filename, error)

    for folder, folders, names in os.walk(path, onerror=note, followlinks=True):
        left_out += [os.path.join(folder, name, "") for name in sorted(folders) if data_names.hides(name)]
        folders[:] = [name for name in folders if not data_names.hides(name) and is_new(os.path.join(folder, name))]
        for file in (os.path.join(folder, name) for name in names):
            ignored = unreadable if not data_names.is_no_data(os.path.relpath(file, path)) else {}
            if (beginning := _beginning(file, ignored)) is not None:
                entries.append((os.path.relpath(file, path), beginning, file))
    files, others = _data_files(sorted(entries))
    left_out += [os.path.join(path, other) for other in others]
    return files


def _at_address(address: str, files: list[str], left_out: list[str]) -> list[str]:
    """Returns those of the files at an address that it names itself, or that are data below it."""

    def parts(name: str) -> list[str]:
        return [part for part in re.sub(r"^[\w.+-]+://|::.*", "", name).split("/") if part]

    depth = len(parts(address))
    below = {file: "/".join(parts(file)[depth:]) for file in files if "**" not in address}
    entries = [(path, file) for file, path in below.items() if path]
    beginnings = addresses.in_parallel(lambda entry: _beginning_at(entry[1]), entries)
    data, others = _data_files([(path, start, file) for (path, file), start in zip(entries, beginnings, strict=True)])
    left_out += others
    return [file for file in files if not below.get(file)] + data


def _beginning_at(file: str) -> bytes | None:
    """Returns the first bytes of a small file at an address, or at a path of file://; None if it is no pointer."""
    if not addresses.is_address(file):
        return _beginning(file, {})
    with contextlib.suppress(OSError):  # Reading the file says why.
        size = addresses.size(file)
        if size < LARGEST_POINTER and not file.startswith("http"):  # Some servers of HTTP say no size.
            return addresses.read(file, 0, min(size, POINTER_BYTES)) if size else b""
    return None


def _beginning(path: str, unreadable: dict[str, str]) -> bytes | None:
    """Returns the first bytes of a regular file; None if it is none, or can't be read, which goes into `unreadable`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return file.read(POINTER_BYTES)
    except OSError as error:
        # A name that nothing has, or that goes through a file, matches nothing.
        if os.path.lexists(path) or not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable[path] = _reason(path, error)
        return None


def _data_files(entries: list[tuple[str, bytes | None, str]]) -> tuple[list[str], list[str]]:
    """Returns the files below a folder that are data, and the others, given what `data_names.data` takes.

    A data set saved by `datasets` has rows only in files whose names begin with data-.
    """
    saved = {os.path.dirname(path) for path, _, _ in entries if os.path.basename(path) == "dataset_info.json"}
    left_out = [
        path
        for path, _, _ in entries
        if os.path.dirname(path) in saved and not os.path.basename(path).startswith("data-")
    ]
    others = set(left_out)
    files = list(data_names.data((entry for entry in entries if entry[0] not in others), left_out))
    return files, left_out


def _note_unlisted(name: str, unreadable: dict[str, str]) -> None:
    """Adds the folders in which a glob looks and which can't be listed. `glob` skips them."""
    if os.path.exists(name):
        return
    parts = name.split(os.sep)
    for number, part in enumerate(parts):
        if not glob.has_magic(part) or (number and parts[number - 1] == "**"):
            continue
        above = "".join(part + os.sep for part in parts[:number])
        below = glob.glob(f"{above}**{os.sep}", recursive=True) if part == "**" else []
        for folder in [*(glob.glob(above, recursive=True) if above else ["."]), *below]:
            try:
                os.scandir(os.path.join(folder, ".")).close()
            except OSError as error:
                unreadable[folder.rstrip(os.sep)] = _reason(folder, error)


def _reason(path: str, error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "a symbolic link that leads to itself"
    if isinstance(error, FileNotFoundError) and os.path.islink(path):
        return f"a symbolic link to {os.readlink(path)}, which does not exist"
    return reason_of(error)
