"""The blocks of code of a page, and which of them are commands."""

import re
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
PROGRAMS = {
    "python",
    "make",
    "apt-get",
    "git",
    "printf",
    "srun",
    "sbatch",
    "kubectl",
    "horovodrun",
    "mpirun",
    "tftrain",
}


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: the first word after the fence, or "".
        name: the second word after the fence: the file that a reader saves the block as, or "".
        text: the lines, without the indentation of the fence.
        start: where the block begins in the page, in characters.
        line: the number of its first line in the page, from 1.
    """

    language: str
    name: str
    text: str
    start: int
    line: int

    @property
    def is_python(self) -> bool:
        """Whether the block is a program in Python."""
        return self.language == "python"

    @property
    def commands(self) -> list[str]:
        """The commands of a block for a shell, each on one line and without comments; [] for another block."""
        lines = re.sub(r"\\\n\s*", " ", self.text).splitlines()
        lines = [line for line in lines if line.strip() and not line.startswith("#")]
        if self.language not in ("", "sh", "bash") or not lines:
            return []
        is_shell = self.language or first_word(lines[0]) in PROGRAMS
        return [re.sub(r"\s+#\s.*$", "", line) for line in lines] if is_shell else []


def blocks(page: Path | str) -> list[Block]:
    """Returns the blocks of a page (a path) or of a page's text, in their order."""
    text = page.read_text() if isinstance(page, Path) else page
    found = []
    for match in FENCE.finditer(text):
        indentation, words, content = match[1], match[2].split(), match[3]
        content = re.sub(rf"(?m)^{indentation}", "", content)
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block((words or [""])[0], "".join(words[1:2]), content, match.start(), line))
    return found


def first_word(command: str) -> str:
    """Returns the program of a command, without variables before it."""
    return next((word for word in command.split() if not re.match(r"\w+=", word)), "")
