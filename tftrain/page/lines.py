"""Curves in SVG, with round numbers at both axes and a legend that gives each curve's last value."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 300, 72, 44, 14, 14
MOST_POINTS = 1000  # of a curve: more than the picture has pixels


class Curve(NamedTuple):
    """A curve; `kind` is measured, planned or published, which chooses its colour, or edge for a dashed line."""

    name: str
    points: Sequence[tuple[float, float]]  # (x, y), finite, with ascending x
    kind: str


def chart(title: str, unit: str, curves: Sequence[Curve], across: str = "step", from_zero: bool = False) -> str:
    """Returns a heading, a legend and the picture; "" if no curve has a point.

    Args:
        unit: of the values, shown at the axis.
        across: name of the horizontal axis.
        from_zero: the vertical axis begins at 0, or at the least value if there are lower ones.
    """
    curves = [curve._replace(points=thinned(curve.points)) for curve in curves if curve.points]
    if not curves:
        return ""
    xs, ys = ([point[axis] for curve in curves for point in curve.points] for axis in (0, 1))
    left, right = min(xs), max(max(xs), min(xs) + 1)
    low, high = min([*ys, 0.0] if from_zero else ys), max(ys)
    margin = 0.04 * (high - low) or 0.1 * abs(high) or 1.0
    low, high = low if from_zero else low - margin, high + margin

    def at(x: float, y: float) -> str:
        across, up = (x - left) / (right - left), (y - low) / (high - low)
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP):.1f}"

    parts = []
    for value in ticks(low, high):
        _, y = at(left, value).split(",")
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    for value in ticks(left, right):
        x, _ = at(value, low).split(",")
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:.6g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{html.escape(across)}</text>')
    parts.append(f'<text x="6" y="{HEIGHT - 6}">{html.escape(unit)}, from bottom to top</text>')
    for curve in curves:
        points = " ".join(at(*point) for point in curve.points)
        dot = f'<circle class="end {curve.kind}" cx="{{}}" cy="{{}}" r="3"/>'.format(*at(*curve.points[-1]).split(","))
        parts.append(f'<polyline class="curve {curve.kind}" points="{points}"/>{dot}')
    keys = "".join(
        f'<span><i class="key {curve.kind}"></i>{html.escape(curve.name)}, {curve.points[-1][1]:.4g} at the end</span>'
        for curve in curves
    )
    name = html.escape(title)
    return (
        f'<section class="panel"><h3>{name}</h3><p class="legend">{keys}</p>'
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{name}">{"".join(parts)}</svg>'
        "</section>\n"
    )


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns at most `MOST_POINTS`: of groups of neighbours, the lowest and the highest, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size, kept = math.ceil(2 * len(points) / (MOST_POINTS - 2)), []
    for begin in range(0, len(points), size):
        group = points[begin : begin + size]
        ends = {min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])}
        kept += sorted(ends)
    return [*kept, points[-1]] if kept[-1] != points[-1] else kept


def ticks(low: float, high: float) -> list[float]:
    """Returns about six round numbers between two."""
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda size: abs(size - raw))
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
