"""The messages that docs/troubleshooting.md quotes are those of the code."""

import re

from tests.kit.ranks import ROOT

SOURCES = [*(ROOT / "tftrain").rglob("*.py"), *(ROOT / "tools").glob("*.py"), ROOT / "tools/setup.sh"]
QUOTE = re.compile(r"`([^`]+)`")
VALUES = re.compile(r"\.\.\.|--\w+(?:=\S*)?|\d+|[=:;()*]|\bnode2\b")  # what differs from run to run
SHORTEST = 12  # characters of a passage


def passages(text: str) -> list[str]:
    """Returns the words of the quoted messages in the first column of the tables, without values."""
    cells = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    quotes = [quote for cell in cells for quote in QUOTE.findall(cell) if " " in quote]
    return [part.strip(" ,.") for quote in quotes for part in VALUES.split(quote) if len(part.strip(" ,.")) >= SHORTEST]


def test_quoted_messages_are_in_the_code():
    code = " ".join(path.read_text() for path in SOURCES)
    code = re.sub(r'"\s*f?"', "", code)  # a message on several lines
    found = passages((ROOT / "docs/troubleshooting.md").read_text())
    assert len(found) > 20
    assert [part for part in found if part not in code] == []
