"""The text files that `--input_files` names: files, folders and globs, separated by commas or in several flags."""

import glob
import os
from collections.abc import Iterator, Sequence

from tftrain.data.errors import DataError

# Number of commas that the name of one file or one glob may contain.
_COMMAS_IN_NAME = 16


def list_files(values: Sequence[str]) -> list[str]:
    """Returns the sorted paths of all named files. A file that is named twice occurs once.

    Each value is a list of names with commas between them. A name is a file, a folder or a glob. A folder means all
    regular files below it; files and folders whose names begin with a dot are left out. A name that exists is never
    split at its commas and never read as a glob.

    Args:
        values: the values of all `--input_files` flags.

    Raises:
        DataError: a name matches no file.
    """
    paths: dict[str, str] = {}
    for value in values:
        for name, matches in _names(value):
            found = [path for match in matches for path in _files(match)]
            if not found:
                reason = "no file in this folder" if os.path.isdir(name) else "no file matches"
                raise DataError(
                    f"--input_files={name}: {reason}; expected files, folders or globs (quote a glob in a shell)"
                )
            for path in found:
                paths.setdefault(os.path.realpath(path), path)
    if not paths:
        raise DataError(f"--input_files={','.join(values)}: no name; expected files, folders or globs")
    return sorted(paths.values())


def _names(value: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the names in a value with the paths that match each. The longest name that matches comes first."""
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
    if os.path.exists(name):
        return [name]
    # A shell does not expand "~" after "=".
    return glob.glob(os.path.expanduser(name), recursive=True)


def _files(path: str) -> list[str]:
    """Returns a file, or the files below a folder."""
    if os.path.isfile(path):
        return [path]
    found = []
    for folder, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        files = [os.path.join(folder, name) for name in names if not name.startswith(".")]
        found += [file for file in files if os.path.isfile(file)]
    return found
