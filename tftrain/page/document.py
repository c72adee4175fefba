"""A page of HTML that needs no other file: `page.html` writes it from parts that are data, and escapes all text.

A part is a pair of its kind and its content. A heading, text, note, about or failed line has a text; a table a `Grid`;
bars the panels of `tftrain.page.bars`; curves the charts of `tftrain.page.lines`; details a summary and parts; an image
its description and the base64 of a PNG; an svg what `tftrain.page.picture` draws.
"""

import datetime
import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from markupsafe import Markup, escape

# No script runs and nothing is loaded, should markup ever get into a page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
FOLDER = Path(__file__).parent

Part = tuple[str, Any]


class Cell(NamedTuple):
    """A cell of a table with more than a text."""

    text: str
    kind: str = ""  # better, worse or noise, which chooses the colour
    small: Sequence[tuple[str, str | None]] = ()  # lines in small type, each with its kind; None: plain text
    failed: str = ""  # why there is no figure
    command: str = ""  # shown when the reader opens it
    summary: str = "command"


class Grid(NamedTuple):
    """A table: a heading and a kind for each column, and lines of texts or cells."""

    heads: Sequence[str]
    kinds: Sequence[str]  # text, number, or row for the heading of a line
    lines: Sequence[Sequence[str | Cell]]
    base: Any = None  # the line that the others are compared with
    groups: Sequence[tuple[str, int]] = ()  # headings over several columns, which begin with the second one


def document(title: str, about: str, parts: Sequence[Part]) -> str:
    """Returns a page: a heading, one line of text below it, and parts."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    about = f"{about[:1].upper()}{about[1:]}. Made {now}."
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    return _template().render(title=title, about=about, parts=parts, policy=POLICY, style=style)


@functools.cache
def _template() -> Any:
    import jinja2  # A run has no page until its end.

    loader = jinja2.FileSystemLoader(FOLDER)
    environment = jinja2.Environment(autoescape=True, loader=loader, undefined=jinja2.StrictUndefined)
    environment.filters |= {"words": words, "zip": zip}
    return environment.get_template("page.html")


def words(text: object) -> Markup:
    """Returns a value's text as HTML that breaks between words, and after an underscore or a slash."""
    parts = re.sub(r"([_/])", r"\1<wbr>", str(escape(str(text)))).split()
    span = '<span class="word">{}</span>'
    return Markup(" ".join(span.format(part) if "-" in part or "<wbr>" in part else part for part in parts))
