"""Curves over the steps of a run, with a legend that gives each curve's last value."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from tftrain.page.picture import COLOURS, svg

MOST_POINTS = 1000  # a curve's points: more than the picture has pixels
# How a curve looks by its kind, besides its colour: faint is behind a smoothed one, edge a dashed line without an end.
LOOKS = {"faint": {"color": COLOURS["planned"], "linewidth": 0.8, "alpha": 0.5}}
LOOKS |= {"edge": {"color": COLOURS["quiet"], "linestyle": "--", "linewidth": 1}}


class Curve(NamedTuple):
    """A curve; `kind` is measured, planned or published, which chooses its colour, or faint or edge."""

    name: str
    points: Sequence[tuple[float, float]]  # (x, y), finite, with ascending x
    kind: str


def chart(
    title: str, unit: str, curves: Sequence[Curve], across: str = "step", from_zero: bool = False
) -> list[dict[str, Any]]:
    """Returns a picture with its heading and legend, for `curves` of a page; none if no curve has a point.

    `unit` is the unit of the values, shown at the vertical axis; `across` is the name of the horizontal axis. With
    `from_zero`, the vertical axis begins at 0, or at the least value if there are lower ones.
    """
    curves = [curve._replace(points=thinned(curve.points)) for curve in curves if curve.points]
    if not curves:
        return []

    def draw(axes: Any) -> None:
        for curve in curves:
            xs, ys = zip(*curve.points, strict=True)
            axes.plot(xs, ys, **LOOKS.get(curve.kind) or {"color": COLOURS[curve.kind]})
            if curve.kind not in LOOKS:
                axes.plot(xs[-1:], ys[-1:], "o", markersize=4, color=COLOURS[curve.kind])
        axes.set(xlabel=across, ylabel=unit)
        if from_zero:
            axes.set_ylim(bottom=min(0.0, *(y for curve in curves for _, y in curve.points)))

    keys = [(f"{curve.name}, {number(curve.points[-1][1])} at the end", curve.kind) for curve in curves]
    return [{"title": title, "legend": keys, "svg": svg(draw, title)}]


def number(value: float) -> str:
    """Returns a value with four digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Returns at most `MOST_POINTS`: of groups of neighbours, the lowest and the highest, so that no peak is lost."""
    if len(points) <= MOST_POINTS:
        return list(points)
    size, extremes = math.ceil(2 * len(points) / (MOST_POINTS - 2)), []
    for begin in range(0, len(points), size):
        group = points[begin : begin + size]
        ends = {min(group, key=lambda point: point[1]), max(group, key=lambda point: point[1])}
        extremes += sorted(ends)
    return [*extremes, points[-1]] if extremes[-1] != points[-1] else extremes
