"""All layouts of a search as dots of memory and time, and the frontier of those that no other one beats in both."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from markupsafe import Markup

from tftrain.page import picture
from tftrain.page.picture import COLOURS
from tftrain.plan.forecast import Forecast

DOTS = 400  # that fit side by side; more of them are one
MOST_MEMORY = 1.5  # times a device's memory, at the right edge
MOST_TIME = 12  # times the fastest layout, at the top


def frontier(layouts: Sequence[Forecast], accepts: Callable[[Forecast], bool]) -> list[Forecast]:
    """Returns the accepted layouts that are faster than all that need as little memory, the fastest first."""
    frontier: list[Forecast] = []
    for candidate in sorted(layouts, key=lambda layout: (layout.gb, layout.seconds)):
        if (not frontier or candidate.seconds < frontier[-1].seconds) and accepts(candidate):
            frontier.append(candidate)
    return frontier[::-1]


def svg(layouts: Sequence[Forecast], best: Sequence[Forecast], plan: Forecast, days: float) -> Markup:
    """Returns the picture: GB of the fullest rank from left to right, days on a logarithmic scale from bottom to top.

    Layouts beyond MOST_MEMORY and MOST_TIME are left out. `days` is how long the run takes if an update takes a second.
    """
    from matplotlib.ticker import LogLocator, NullLocator

    limit = plan.cluster.memory_gb
    most = max(1.1 * limit, max(each.gb for each in layouts))
    right = max(min(MOST_MEMORY * limit, most), 1.05 * plan.gb)
    fastest = min(plan.seconds, min(each.seconds for each in layouts))
    bottom, top = fastest / 1.25, max(MOST_TIME * fastest, 1.1 * plan.seconds)
    shown = [each for each in layouts if each.gb <= right and each.seconds <= top]

    def coarse(layout: Forecast) -> tuple[int, int]:
        return round(DOTS * layout.gb / right), round(DOTS * math.log(layout.seconds / bottom, top / bottom) / 2)

    dots = {coarse(each): each for each in shown}.values()
    line = [each for each in best if each in shown]

    def draw(axes: Any) -> None:
        def points(of: Iterable[Forecast]) -> tuple[list[float], list[float]]:
            return [each.gb for each in of], [each.seconds * days for each in of]

        axes.plot(*points(dots), "o", color=COLOURS["planned"], markersize=3, markeredgewidth=0, alpha=0.45)
        axes.axvline((1 - plan.margin) * limit, color=COLOURS["quiet"], linestyle="--", linewidth=1)
        axes.plot(*points(line), color=COLOURS["measured"])
        axes.plot([plan.gb], [plan.seconds * days], "o", markersize=10, markerfacecolor="none", color=COLOURS["text"])
        axes.set(yscale="log", xlim=(0, right), ylim=(bottom * days, top * days), xlabel="GB of the fullest rank")
        axes.set_ylabel("days")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")

    return picture.svg(draw, "memory and days of all layouts", width=6.2, height=3.8)
