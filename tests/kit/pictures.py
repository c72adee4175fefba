"""Runs of tests save a few bytes instead of their curves, each of which takes a quarter of a second to draw.

A test that looks at a curve draws it with `drawn`.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tftrain.observe import plot

PNG, PLACEHOLDER = b"\x89PNG", b"\x89PNG, not drawn"
_save = plot._save


def leave_out() -> None:
    """Lets this process draw no curve from now on."""
    plot._save = lambda axes, png_path: Path(png_path).write_bytes(PLACEHOLDER)


@contextlib.contextmanager
def drawn() -> Iterator[None]:
    """Draws curves inside of the context."""
    before, plot._save = plot._save, _save
    try:
        yield
    finally:
        plot._save = before


def is_drawn(path: Path) -> bool:
    """Returns whether a file is a picture, not the placeholder."""
    content = path.read_bytes()
    return content.startswith(PNG) and content != PLACEHOLDER
