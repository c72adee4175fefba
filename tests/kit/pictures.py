"""Runs of tests save a few bytes instead of their pictures, which take as long as the training of a small model.

A test that looks at a picture draws it with `drawn`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

from markupsafe import Markup

from tftrain.observe import plot
from tftrain.page import lines

PNG, PLACEHOLDER = b"\x89PNG", b"\x89PNG, not drawn"
_made = plot._figure, lines.svg


def leave_out() -> None:
    """Lets this process draw no curve from now on, neither of files nor of a run's page."""
    plot._figure, lines.svg = _figure, lambda draw, about: Markup("<svg></svg>")


def _figure(width: float, height: float) -> MagicMock:
    """Returns what takes everything that is drawn, and saves the placeholder."""
    figure = MagicMock()
    figure.savefig.side_effect = lambda path, **options: Path(path).write_bytes(PLACEHOLDER)
    figure.add_subplot.return_value.figure = figure
    return figure


@contextlib.contextmanager
def drawn() -> Iterator[None]:
    """Draws curves inside of the context."""
    before = plot._figure, lines.svg
    plot._figure, lines.svg = _made
    try:
        yield
    finally:
        plot._figure, lines.svg = before


def is_drawn(path: Path) -> bool:
    """Returns whether a file is a picture, not the placeholder."""
    content = path.read_bytes()
    return content.startswith(PNG) and content != PLACEHOLDER
