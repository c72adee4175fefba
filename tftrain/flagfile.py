"""Flagfiles: every `--flagfile=FILE` of a command line is replaced by the arguments in the file, one on each line.

Blank lines and those that begin with # or // mean nothing. A flagfile may name others. One that is no text, too large,
or includes itself is a problem of its own, whereas absl warns, gives up on the first, or waits for a pipe.
"""

import os
import re
from collections.abc import Sequence

from tftrain.fields import Problem
from tftrain.files import read_small

MAX_BYTES = 1 << 18
MAX_FILES = 100
MAX_ARGUMENTS = 10_000
_DIRECTIVE = re.compile(r"--?flagfile(?:=(.*))?", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def expand(args: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Returns a command line without flagfiles.

    Args:
        args: the arguments; `--flagfile FILE` means the same as `--flagfile=FILE`, and what follows `--` is left alone.

    Returns:
        The arguments, those of each file in its place, and what is wrong with the files.
    """
    reader = _Reader()
    waiting = list(reversed(args))
    while waiting:
        arg = waiting.pop()
        if arg == "--":
            reader.found += [arg, *reversed(waiting)]
            break
        directive = _DIRECTIVE.fullmatch(arg)
        if not directive:
            reader.found.append(arg)
        elif directive[1] is not None:
            reader.read(directive[1], ())
        elif waiting:
            reader.read(waiting.pop(), ())
        else:
            reader.refuse("", "expected a file's name behind it")
    return reader.found, reader.problems


class _Reader:
    """The arguments found so far, and the problems; the files read are counted, as each may name another twice."""

    def __init__(self):
        self.found: list[str] = []
        self.problems: list[Problem] = []
        self._files = 0

    def refuse(self, name: str, expected: str) -> None:
        self.problems.append(Problem("flagfile", name, expected))

    def read(self, name: str, within: tuple[str, ...]) -> None:
        """Reads a file that was named in the files `within`, the outermost first."""
        self._files += 1
        path = os.path.expanduser(name.strip())
        place = os.path.realpath(path)
        if place in within:
            return self.refuse(name, f"it includes itself, through {within[-1]}; remove that line")
        if self._files > MAX_FILES:
            return self.refuse(name, f"expected at most {MAX_FILES} flagfiles, each counted as often as it is named")
        try:
            text = read_small(path, MAX_BYTES).decode("utf-8")
        except OSError as error:
            return self.refuse(name, f"{error.strerror}; expected a text file of at most {MAX_BYTES} bytes")
        except UnicodeDecodeError as error:
            return self.refuse(name, f"byte {error.start}: not UTF-8; expected a text file with a flag on each line")
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            if _CONTROL.search(line):
                return self.refuse(name, f"line {number}: a control character; expected a text file")
            self._take(name, number, line.strip(), (*within, place))
            if len(self.found) > MAX_ARGUMENTS:
                return self.refuse(name, f"line {number}: expected at most {MAX_ARGUMENTS} arguments in all")
        return None

    def _take(self, name: str, number: int, line: str, within: tuple[str, ...]) -> None:
        if not line or line.startswith(("#", "//")):
            return
        directive = _DIRECTIVE.fullmatch(line)
        if not directive:
            self.found.append(line)
        elif directive[1]:
            self.read(directive[1], within)
        else:
            self.refuse(name, f"line {number}: expected --flagfile=FILE in one line")
