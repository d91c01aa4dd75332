"""Draw the small curves of the matrix: SVG of one line, whose colours are the page's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, HEIGHT, EDGE = 116, 30, 4  # px
LEAST_SPAN = 0.05  # share: smaller differences fill no more of the height than they are of this
MOST_POINTS = 116  # a point for each px


def sparkline(times: Sequence[float], marks: Sequence[tuple[int, str]]) -> Markup:
    """Return the curve of some times, in any one unit, as SVG; empty for fewer than two. `marks`
    are places of steps with the class of each. The height spans at least 5 % of the median."""
    from markupsafe import Markup

    if len(times) < 2:
        return Markup("")
    low, high = min(times), max(times)
    missing = LEAST_SPAN * sorted(times)[len(times) // 2] - (high - low)
    if missing > 0:
        low, high = low - missing / 2, high + missing / 2

    def place(n: int) -> str:
        x = EDGE + (WIDTH - 2 * EDGE) * n / (len(times) - 1)
        y = HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (times[n] - low) / (high - low)
        return f"{x:.0f} {y:.1f}"

    every = -(-len(times) // MOST_POINTS)
    shown = [*range(0, len(times) - 1, every), len(times) - 1]
    path = "M" + "L".join(map(place, shown))
    lines = "".join(
        f'<path class="{kind}" d="M{place(n).split()[0]} 1V{HEIGHT - 1}"/>' for n, kind in marks
    )
    x, y = place(len(times) - 1).split()
    return Markup(
        f'<svg class="spark" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'aria-hidden="true">{lines}<path class="curve" d="{path}"/>'
        f'<circle cx="{x}" cy="{y}" r="2.5"/></svg>'
    )
