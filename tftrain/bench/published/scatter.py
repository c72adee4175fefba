"""A scatter plot in SVG for tables with too many rows for bars: planned over published samples/s of a GPU."""

import math
from collections.abc import Sequence

from tftrain.bench.table import Record

MAX_BARS = 60  # a table with more rows has points
SIZE, LEFT, BOTTOM = 480, 56, 44
NAMES = ("published_samples_per_sec_per_gpu", "planned_samples_per_sec_per_gpu")


def points(records: Sequence[Record]) -> list[tuple[float, float]]:
    """Returns published and planned samples/s of a GPU, of the rows that have both."""
    pairs = [tuple(record.get(name) for name in NAMES) for record in records]
    return [pair for pair in pairs if all(isinstance(value, float | int) and value > 0 for value in pair)]


def svg(records: Sequence[Record]) -> str:
    """Returns the plot: logarithmic axes, lines where both agree and where they are 10% apart; "" without points."""
    pairs = points(records)
    if not pairs:
        return ""
    low, high = math.log10(min(map(min, pairs))) - 0.1, math.log10(max(map(max, pairs))) + 0.1

    def x(value: float) -> float:
        return LEFT + (SIZE - LEFT - 10) * (math.log10(value) - low) / (high - low)

    def y(value: float) -> float:
        return SIZE - BOTTOM - (SIZE - BOTTOM - 10) * (math.log10(value) - low) / (high - low)

    def line(factor: float, style: str) -> str:
        ends = [10**low * max(1, 1 / factor), 10**high * min(1, 1 / factor)]
        (x1, x2), (y1, y2) = map(x, ends), (y(factor * end) for end in ends)
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="var(--quiet)" {style}/>'

    dots = "".join(f'<circle cx="{x(right):.1f}" cy="{y(up):.1f}" r="2.6"/>' for right, up in pairs)
    ticks = [10.0**power for power in range(math.ceil(low), math.floor(high) + 1)]
    marks = "".join(
        f'<line x1="{LEFT}" x2="{SIZE - 10}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="var(--line)"/>'
        f'<line y1="10" y2="{SIZE - BOTTOM}" x1="{x(tick):.1f}" x2="{x(tick):.1f}" stroke="var(--line)"/>'
        f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>'
        f'<text x="{x(tick):.1f}" y="{SIZE - BOTTOM + 16}" text-anchor="middle">{tick:g}</text>'
        for tick in ticks
    )
    off = 'stroke-dasharray="3 3"'
    return (
        f'<svg viewBox="0 0 {SIZE} {SIZE}" role="img" font-size="12" fill="var(--text)">'
        f"<title>planned over published samples/s of a GPU, {len(pairs)} rows</title>{marks}"
        f'{line(1.0, "")}{line(1.1, off)}{line(1 / 1.1, off)}<g fill="var(--published)" fill-opacity=".6">{dots}</g>'
        f'<text x="{(LEFT + SIZE) / 2}" y="{SIZE - 8}" text-anchor="middle">published samples/s of a GPU</text>'
        f'<text transform="translate(14 {(SIZE - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"planned samples/s of a GPU</text></svg>\n<p class=note>{len(pairs)} rows; dashed: 10 % apart.</p>\n"
    )
