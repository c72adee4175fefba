"""Flagfiles: replaces each `--flagfile=FILE` of a command line by the arguments in the file, one a line.

Blank lines and lines that begin with # or // are skipped. A flagfile may include other flagfiles.
"""

import os
import re
from collections.abc import Sequence

from tftrain.config.fields import Problem
from tftrain.files.reading import expanded, read_small

MAX_BYTES = 1 << 18
MAX_FILES = 100
MAX_ARGUMENTS = 10_000
_NAMELESS = ("--flagfile", "-flagfile")
_DIRECTIVE = re.compile(r"--?flagfile=(.*)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def expand(args: Sequence[str]) -> tuple[list[str], list[Problem]]:
    """Returns a command line with the arguments of each flagfile in its place, and the problems of the files.

    `--flagfile FILE` means the same as `--flagfile=FILE`. Arguments after `--` stay as they are.
    """
    reader, waiting = _Reader(), list(reversed(args))
    while waiting:
        arg = waiting.pop()
        if arg == "--":
            reader.arguments += [arg, *reversed(waiting)]
            break
        if directive := _DIRECTIVE.fullmatch(arg):
            reader.read(directive[1], ())
        elif arg not in _NAMELESS:
            reader.arguments.append(arg)
        elif waiting:
            reader.read(waiting.pop(), ())
        else:
            reader.refuse("", "expected a file name after it")
    return reader.arguments, reader.problems


class _Reader:
    """The arguments and problems so far. It counts the files, because each may include another twice."""

    def __init__(self):
        self.arguments: list[str] = []
        self.problems: list[Problem] = []
        self._files = 0

    def refuse(self, name: str, expected: str) -> None:
        self.problems.append(Problem("flagfile", name, expected))

    def read(self, name: str, within: tuple[str, ...]) -> None:
        """Reads a file; `within` are the files that include it, the outermost first."""
        self._files += 1
        try:
            path = expanded(name.strip())
        except ValueError as error:
            return self.refuse(name, str(error))
        real_path = os.path.realpath(path)
        if real_path in within:
            return self.refuse(name, f"the file includes itself, through {within[-1]}; remove that line")
        if self._files > MAX_FILES:
            return self.refuse(name, f"expected at most {MAX_FILES} flagfiles; a file counts each time it is included")
        try:
            text = read_small(path, MAX_BYTES).decode("utf-8-sig")
        except OSError as error:
            return self.refuse(name, f"{error.strerror}; expected a text file of at most {MAX_BYTES} bytes")
        except UnicodeDecodeError as error:
            return self.refuse(name, f"byte {error.start}: not UTF-8; expected a text file with a flag on each line")
        for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
            if _CONTROL.search(line):
                return self.refuse(name, f"line {number}: a control character; expected a text file")
            line = line.strip()
            directive = _DIRECTIVE.fullmatch(line)
            if line.removesuffix("=") in _NAMELESS:
                self.refuse(name, f"line {number}: expected --flagfile=FILE on one line")
            elif directive:
                self.read(directive[1], (*within, real_path))
            elif line and not line.startswith(("#", "//")):
                self.arguments.append(line)
            if len(self.arguments) > MAX_ARGUMENTS:
                return self.refuse(name, f"line {number}: expected at most {MAX_ARGUMENTS} arguments in all")
        return None
