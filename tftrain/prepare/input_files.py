"""The files that `--input_files` names: files, folders, globs and addresses, with commas or in several flags."""

import errno
import glob
import logging
import os
import stat
from collections.abc import Iterator, Sequence

from tftrain.host import addresses
from tftrain.host.files import expanded
from tftrain.host.files import reason as reason_of
from tftrain.input.errors import DataError, MissingFileError

logger = logging.getLogger(__name__)

# Number of commas that the name of one file or one glob may contain.
_COMMAS_IN_NAME = 16


def list_files(values: Sequence[str], skip_unreadable: bool = False) -> tuple[list[str], int]:
    """Returns the sorted paths of the named files, and the number of files and folders that can't be read.

    A file that is named twice occurs once. Each value is a list of names with commas between them. A name is a file, a
    folder, a glob or an address. A folder means all regular files below it, through links too; files and folders whose
    names begin with a dot are left out, and what `datasets` saves beside its files. A name that exists is never split
    at its commas and never read as a glob.

    Raises:
        MissingFileError: a name matches no file.
        DataError: a file, a folder or a link can't be read, unless that is to be skipped.
    """
    paths: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for value in map(expanded, values):
        for name, matches in _names(value):
            before = len(unreadable)
            _note_unlisted(name, unreadable)
            named = matches or ([] if addresses.is_address(name) else [name])
            files = _data_files([path for match in named for path in _files(match, unreadable)])
            if not files and len(unreadable) == before:
                reason = "no file in this folder" if os.path.isdir(name) else "no file matches"
                raise MissingFileError(
                    f"--input_files={name}: {reason}; expected files, folders or globs (quote a glob in a shell)"
                )
            for path in files:
                paths.setdefault(os.path.realpath(path), path)
    if unreadable:
        path, reason = min(unreadable.items())
        more = f", and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        if not skip_unreadable:
            raise DataError(f"{path}: {reason}{more}; make it readable, or leave it out with --skip_unreadable")
        logger.warning(f"--skip_unreadable: {len(unreadable)} left out: {path}: {reason}{more}")
    if not paths:
        reason = "nothing that can be read" if unreadable else "no name"
        raise DataError(f"--input_files={','.join(values)}: {reason}; expected files, folders or globs")
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


def _files(path: str, unreadable: dict[str, str]) -> list[str]:
    """Returns a file, or the files below a folder. What can't be read goes into `unreadable`, with the reason."""
    if not os.path.isdir(path):
        return [path] if addresses.is_address(path) or _is_file(path, unreadable) else []
    paths, visited = [], {os.path.realpath(path)}

    def is_new(folder: str) -> bool:
        real = os.path.realpath(folder)
        return not (real in visited or visited.add(real))

    def note(error: OSError) -> None:
        unreadable[error.filename] = _reason(error.filename, error)

    for folder, folders, names in os.walk(path, onerror=note, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and is_new(os.path.join(folder, name))]
        files = [os.path.join(folder, name) for name in names if not name.startswith(".")]
        paths += [file for file in files if _is_file(file, unreadable)]
    return paths


def _is_file(path: str, unreadable: dict[str, str]) -> bool:
    """Whether a path is a regular file that can be read."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb"):
            return True
    except OSError as error:
        # A name that nothing has, or that goes through a file, matches nothing.
        if os.path.lexists(path) or not isinstance(error, FileNotFoundError | NotADirectoryError):
            unreadable[path] = _reason(path, error)
        return False


def _data_files(paths: list[str]) -> list[str]:
    """Returns the paths without those that a data set saved by `datasets` has beside its files of rows."""
    saved = {os.path.dirname(path) for path in paths if path.endswith("/dataset_info.json")}
    return [
        path
        for path in paths
        if not path.endswith("/dataset_dict.json")
        and (os.path.dirname(path) not in saved or os.path.basename(path).startswith("data-"))
    ]


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
