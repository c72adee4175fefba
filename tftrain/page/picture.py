"""Pictures in SVG by matplotlib, in the colours of the page, which follow its light or dark scheme."""

import io
from collections.abc import Callable
from typing import Any

from markupsafe import Markup

# Names of colours in `page.css`, and how matplotlib writes them.
COLOURS = {
    "measured": "#c9742a", "planned": "#7fa6cc", "published": "#24557f", "quiet": "#596168", "line": "#d9dee3",
    "text": "#1c2024",
}  # fmt: skip
STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": "none",
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": COLOURS["quiet"],
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.size": 11,
    "grid.color": COLOURS["line"],
    "grid.linewidth": 1,
    "lines.linewidth": 1.6,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "tftrain",
    "xtick.color": COLOURS["quiet"],
    "ytick.color": COLOURS["quiet"],
}


def svg(draw: Callable[[Any], object], about: str, width: float = 5.4, height: float = 2.6) -> Markup:
    """Returns the picture that `draw` makes on matplotlib's axes; `about` describes it to a screen reader."""
    import matplotlib
    from matplotlib.figure import Figure

    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        draw(figure.add_subplot())
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = out.getvalue()
    for name, colour in COLOURS.items():
        text = text.replace(colour, f"var(--{name})")
    begin, _, drawn = text[text.index("<svg ") :].partition(">")
    box = begin.partition('viewBox="')[2].partition('"')[0]
    for opening, closing in (("<style", "</style>"), ("<!--", "-->")):
        drawn = _without(drawn, opening, closing)
    head = Markup('<svg class="plot" viewBox="{}" role="img" aria-label="{}">').format(box, about)
    return head + Markup("\n".join(map(str.lstrip, drawn.splitlines())))


def _without(text: str, opening: str, closing: str) -> str:
    """Returns a text without what stands between these two words, and without them."""
    kept, *others = text.split(opening)
    return kept + "".join(other.partition(closing)[2] for other in others)
