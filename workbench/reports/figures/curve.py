"""Figure of rates over one axis of the sizes: each Impl, the libraries, and the roofline bound."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import LIBRARY_MARKERS, MARKERS, axes, legend_beside

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEIGHT = 820, 400  # px
TIME_UNIT = "µs"  # of curves without declared bytes and FLOPs
KEY_LETTERS = 30  # of a line of the key, which has 200 px beside its marks
LOG_FROM = 8.0  # largest over smallest size or time, from which its axis is logarithmic


@dataclass(frozen=True)
class RateLine:
    """Rates of one Impl at the sizes at which it has a time; `low` and `high` are the ends of the
    95 % interval, or of the error band of a prediction; empty where its device has none."""

    name: str
    x: tuple[int, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    measured: bool = True
    library: bool = False


@dataclass(frozen=True)
class Curve:
    """Rates over one axis, the other axes and the dtype being equal."""

    axis: str
    about: str  # the other axes and the dtype
    unit: str  # "GB/s" or "TFLOP/s"; TIME_UNIT for times in place of rates
    lines: tuple[RateLine, ...]
    bound: RateLine | None = None  # the rate at the roofline bound; None without a ceiling

    @property
    def title(self) -> str:
        """Return `rate, GB/s over N, M=4096, bf16`."""
        return f"{self.quantity} over {self.axis}, {self.about}"

    @property
    def quantity(self) -> str:
        """Return what is drawn: `rate, GB/s`, or `time of one call, µs`."""
        return f"{'time of one call' if self.unit == TIME_UNIT else 'rate'}, {self.unit}"


def curve_svg(curve: Curve, prefix: str) -> Markup:
    """Return a curve as inline SVG."""
    return figure_svg(curve_figure(curve), prefix, curve.title)


def curve_figure(curve: Curve) -> Figure:
    """Return a curve as a figure. Measured rates are filled marks on solid lines, predicted ones
    hollow marks on dashed lines; libraries have thin crosses."""
    fig = figure(WIDTH, HEIGHT)
    ax = axes(fig, 76, 16, WIDTH - 316, HEIGHT - 72, "both")
    kinds = {line.measured for line in curve.lines}
    kind = {frozenset({True}): "measured", frozenset({False}): "predicted"}.get(frozenset(kinds))
    ax.set(
        xlabel=f"{curve.axis} ({curve.about})", ylabel=f"{curve.quantity}, {kind or 'as marked'}"
    )
    _scale(ax, curve)
    own = [line for line in curve.lines if not line.library]
    for n, line in enumerate(own):
        _draw(ax, line, f"impl-{n % 4}", MARKERS[n % len(MARKERS)])
    for n, line in enumerate(line for line in curve.lines if line.library):
        _draw(ax, line, "muted", LIBRARY_MARKERS[n % len(LIBRARY_MARKERS)])
    if curve.bound is not None:
        ink = colour("roof-memory" if curve.unit == "GB/s" else "roof-compute")
        ax.plot(
            curve.bound.x, curve.bound.y, color=ink, linewidth=2, label=_wrap_name(curve.bound.name)
        )
    tops = [y for line in (*curve.lines, curve.bound) if line for y in (*line.y, *line.high)]
    ends = [y for line in curve.lines for y in (*line.y, *line.low, *line.high)]
    if curve.unit == TIME_UNIT and max(ends) >= LOG_FROM * min(ends):
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        ax.yaxis.set_minor_formatter(lambda value, _: "")
    else:
        ax.set_ylim(0, 1.06 * max(tops, default=1.0))
    legend_beside(ax)
    return fig


def _wrap_name(name: str) -> str:
    """Return a name in lines that fit beside the axes."""
    return "\n".join(textwrap.fill(line, KEY_LETTERS) for line in name.splitlines())


def _scale(ax: Any, curve: Curve) -> None:
    """Set the scale of the sizes, and a tick at each where they are few."""
    xs = sorted({x for line in curve.lines for x in line.x})
    if xs[-1] >= LOG_FROM * xs[0]:
        ax.set_xscale("log", base=2)
    shown = xs if len(xs) <= 9 else xs[:: -(-len(xs) // 9)]
    ax.set_xticks(shown, [size_text(x) for x in shown])
    ax.xaxis.minorticks_off()


def size_text(size: int) -> str:
    """Return a size as a tick: 768, 16Ki, 4Mi."""
    for step, name in ((1 << 20, "Mi"), (1 << 10, "Ki")):
        if size >= 16 * (1 << 10) and size % step == 0:
            return f"{size // step}{name}"
    return f"{size:,}" if size < 100_000 else f"{size:.3g}"


def _draw(ax: Any, line: RateLine, ink_name: str, mark: str) -> None:
    ink = colour(ink_name)
    look: dict[str, Any] = {"marker": mark, "markersize": 6, "zorder": 3, "label": line.name}
    look |= {"linewidth": 1.0 if line.library else 1.8}
    look |= {"linestyle": "-" if line.measured else (0, (5, 3))}
    look |= {"markerfacecolor": ink if line.measured else "none"}
    ax.plot(line.x, line.y, color=ink, **look)
    if line.low:
        ax.fill_between(line.x, line.low, line.high, color=ink, alpha=0.18, linewidth=0)


def crosses(lines: Sequence[RateLine]) -> bool:
    """Return whether there is something to draw: two sizes at least."""
    return len({x for line in lines for x in line.x}) > 1
