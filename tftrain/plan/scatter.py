"""All layouts of a search as dots of memory and time, and the frontier of those that no other one beats in both."""

import math
from collections.abc import Callable, Sequence

from tftrain.page.lines import ticks
from tftrain.plan.forecast import Forecast
from tftrain.plan.search import Layout

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 380, 64, 44, 14, 14
MOST_MEMORY = 1.5  # of a device, at the right edge
MOST_TIME = 12  # times the fastest layout, at the top


def frontier(layouts: Sequence[Layout], accepts: Callable[[Layout], bool]) -> list[Layout]:
    """Returns the layouts that are faster than all that need as little memory, the fastest first.

    `accepts`: whether the trainer takes a layout.
    """
    frontier: list[Layout] = []
    for candidate in sorted(layouts, key=lambda layout: (layout.gb, layout.seconds)):
        if (not frontier or candidate.seconds < frontier[-1].seconds) and accepts(candidate):
            frontier.append(candidate)
    return frontier[::-1]


def svg(layouts: Sequence[Layout], best: Sequence[Layout], plan: Forecast, days: float) -> str:
    """Returns the picture: GB of the fullest rank from left to right, days on a logarithmic scale from bottom to top.

    Layouts beyond MOST_MEMORY and MOST_TIME are left out. `days` are those of a second a step.
    """
    limit = plan.cluster.memory_gb
    most = max(1.1 * limit, max(each.gb for each in layouts))
    right = max(min(MOST_MEMORY * limit, most), 1.05 * plan.gb)
    fastest = min(plan.seconds, min(each.seconds for each in layouts))
    bottom, top = fastest / 1.25, max(MOST_TIME * fastest, 1.1 * plan.seconds)

    def at(gb: float, seconds: float) -> tuple[float, float]:
        up = math.log(seconds / bottom) / math.log(top / bottom)
        return LEFT + gb / right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    shown = [each for each in layouts if each.gb <= right and each.seconds <= top]
    places = {tuple(round(value) for value in at(each.gb, each.seconds)) for each in shown}
    dots = "".join(f'<circle class="dot" cx="{x}" cy="{y}" r="2"/>' for x, y in sorted(places))
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(each.gb, each.seconds) for each in best if each in shown))
    ring = '<circle class="ring" cx="{:.1f}" cy="{:.1f}" r="6"/>'.format(*at(plan.gb, plan.seconds))
    edge = at((1 - plan.margin) * limit, top)[0]
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="memory and days of all layouts">'
        f"{_axes(at, right, bottom, top, days)}{dots}"
        f'<line class="edge" x1="{edge:.1f}" x2="{edge:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<polyline class="frontier" points="{line}"/>{ring}</svg>\n'
    )


def _axes(at, right: float, bottom: float, top: float, days: float) -> str:
    base, parts = HEIGHT - BOTTOM, []
    for gb in ticks(0, right):
        x = at(gb, bottom)[0]
        parts.append(f'<text x="{x:.1f}" y="{base + 18}" text-anchor="middle">{gb:g}</text>')
    # Days at 1, 2 and 5 times a power of ten.
    low = math.floor(math.log10(bottom * days))
    for value in (factor * 10.0 ** (low + power) for power in range(4) for factor in (1, 2, 5)):
        if bottom <= value / days <= top:
            y = at(0, value / days)[1]
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">GB of the fullest rank</text>')
    parts.append(f'<text x="6" y="{HEIGHT - 6}">days, from bottom to top</text>')
    return "".join(parts)
