"""Lines of a program's output in a page: the page has the words, the output the numbers."""

import difflib
import re
import sys
from collections.abc import Iterator

NUMBER = r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
CLOCK = re.compile(r"\d+:\d\d:\d\d")
CHANCE = re.compile(rf"{CLOCK.pattern}|(?<=^memory of rank )\d+")  # the time of day, and which rank is the fullest
# Times and rates, memory as a process has it, and rounding: such numbers may differ by SPREAD of the larger one.
TIMED = re.compile(r"/s\b|^\s*(baseline|activations|peak|step +\d)|\beta\b|largest difference|MB \|")
SPREAD = 0.5
ROUNDING = 0.05  # other numbers: a run may add its floats in another order


def filled(template: list[str], output: list[str]) -> Iterator[str]:
    """Yields for each line of a template the next line of the output that fits it best.

    A line with the same words fits best, then one that begins with the same words, then one with similar letters. `...`
    stands for left-out lines, and in a line for left-out words. Fences of code and lines that begin with `$ ` stay.
    """
    rest = output
    for line in template:
        if not line or line.strip() == "..." or line.startswith(("$ ", "```")):
            yield line
            continue
        shown = rest if CLOCK.match(line) else [re.sub(rf"^{CLOCK.pattern} +", "", text) for text in rest]
        number, text = best(line, shown)
        rest = rest[number + 1 :]
        yield text


def best(line: str, output: list[str]) -> tuple[int, str]:
    """Returns the number of the output's line that fits a template's line best, and the text to show."""
    if "..." in line:
        number, pattern = r"\d[\d,.]*", ""
        for text in re.split(rf"(\.\.\.|\s+|{number})", line):
            same = r"\s+" if text.isspace() else f"({number})" if text[:1].isdigit() else re.escape(text)
            pattern += ".*?" if text == "..." else same
        for place, other in enumerate(output):
            if match := re.match(pattern, other):
                numbers = iter(match.groups())
                return place, re.sub(number, lambda _, numbers=numbers: next(numbers), line)
    words = label(line)
    begins = words.partition("#")[0].partition(":")[0]
    for fits in (words.__eq__, lambda other: bool(begins) and other.startswith(begins)):
        for number, other in enumerate(output):
            if fits(label(other)):
                return number, other.rstrip()
    for other in difflib.get_close_matches(line, output, 1):
        return output.index(other), other.rstrip()
    sys.exit(f"this line of a page is not in the output of its command:\n{line}")


def label(line: str) -> str:
    """Returns a line with # for its numbers, but for those of steps."""
    return " ".join(re.sub(rf"(?<!step )(?<!step  ){NUMBER}", "#", CLOCK.sub("#", line)).split())


def differences(now: str, then: str, exact: bool) -> list[str]:
    """Returns each line that a page shows now and should not, with the line to show."""
    lines, others = (text.strip("\n").splitlines() for text in (now, then))
    if len(lines) != len(others):
        return [f"{len(lines)} lines, expected {len(others)}"]
    pairs = zip(lines, others, strict=True)
    return [f"{line}\n  expected {other}" for line, other in pairs if not equal(line, other, exact)]


def equal(line: str, other: str, exact: bool) -> bool:
    """Whether two lines agree in words, and in numbers but for CHANCE and the spread of TIMED and of other numbers.

    With `exact` they must be the same. Without it, words that a model predicts may differ.
    """
    line, other = (" ".join(CHANCE.sub("#", text).split()) for text in (line, other))
    if exact or label(line) != label(other):
        return line == other or not exact
    spread = SPREAD if TIMED.search(other) else ROUNDING
    numbers = [[float(text.replace(",", "")) for text in re.findall(NUMBER, text)] for text in (line, other)]
    return all(abs(one - two) <= spread * max(one, two) for one, two in zip(*numbers, strict=True))
