"""The guides in a terminal: `python -m tftrain docs NAME` shows the page docs/NAME.md as plain text.

A wheel contains the pages inside the package; a clone has them beside it.
"""

import pydoc
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import tftrain
from tftrain.cli.help import columns, print_text, refuse_name, wrapped

_STARTS = re.compile(r"\s*(?:[-*]|\d+\.) |#|<!--")


def pages() -> dict[str, str]:
    """Returns the text of each guide by its name."""
    package = Path(tftrain.__file__).parent
    folders = [folder for folder in (package / "docs", package.parent / "docs") if (folder / "flags.md").exists()][:1]
    return {page.stem: page.read_text("utf-8") for folder in folders for page in sorted(folder.glob("*.md"))}


def show(name: str) -> NoReturn:
    """Shows a guide, on a terminal through a pager; without a name, lists all guides."""
    guides = {name: "\n".join(plain(page)) for name, page in pages().items()}
    listing = "usage: python -m tftrain docs NAME\n"
    for guide, text in guides.items():
        first = next((each for each in text.split("\n\n")[1:] if each[0] not in " #"), "")
        listing += "\n" + wrapped(f"{guide:18}  {first.partition('. ')[0].rstrip('.:')}.", 2, 22)
    if name and name not in guides:
        refuse_name("guide", name, guides, listing)
    if not name or not sys.stdout.isatty():
        print_text(guides.get(name, listing))
    pydoc.pager(guides[name])
    raise SystemExit(0)


def plain(page: str) -> Iterator[str]:
    """Yields the lines of a page in Markdown as plain text, in lines as wide as the terminal."""
    block, is_code = [], False
    for line in [*page.splitlines(), ""]:
        is_fence = line.lstrip().startswith("```")
        joins = block and line.strip() and not _STARTS.match(line) and (line[0] == "|") == (block[0][0] == "|")
        if block and (is_fence or not joins):
            yield from _table(block) if block[0][0] == "|" else _paragraph(block)
            block = []
        if is_fence:
            is_code = not is_code
        elif is_code or not line.strip() or (line.startswith("    ") and not block and not _STARTS.match(line)):
            yield f"    {line}".rstrip()
        elif not line.startswith("<!--"):
            block.append(line)


def _text(source: str) -> str:
    """Returns Markdown without links and emphasis."""
    return re.sub(r"!?\[([^\[\]]*)\]\([^()]*\)|\*\*", r"\1", source).replace("\\|", "|").strip()


def _paragraph(block: Sequence[str]) -> list[str]:
    """Returns the lines of a paragraph, a heading, or an item of a list, which is indented after its mark."""
    indent, mark = re.match(r"(\s*)((?:[-*]|\d+\.) )?", block[0]).groups("")
    return wrapped(_text(" ".join(line.strip() for line in block)), len(indent), len(indent + mark)).splitlines()


def _table(block: Sequence[str]) -> Iterator[str]:
    """Yields the rows of a table; if they are wider than the terminal, each cell on lines of its own."""
    head, _, *rows = [[_text(cell) for cell in re.split(r"(?<!\\)\|", line.strip()[1:-1])] for line in block]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=False)]
    for row in [head, *rows] if (fits := sum(widths) + 2 * len(widths) <= columns()) else rows:
        if fits:
            yield "  ".join(map(str.ljust, row, widths)).rstrip()
            continue
        yield from wrapped(row[0], 0, 2).splitlines()
        for cell in (f"{name}: {cell}" for name, cell in zip(head[1:], row[1:], strict=False) if cell):
            yield from wrapped(cell, 4, 6).splitlines()
