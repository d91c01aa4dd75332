"""Figures of a comparison: both operands' samples, their ratio round by round, the clock."""

from collections.abc import Sequence

from markupsafe import Markup

from workbench.code.compared_pair import ComparedPair
from workbench.data import stats
from workbench.data.record import Measured, Verdict
from workbench.data.units import unit_of
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import (
    SMALLER,
    axes,
    bar,
    name_rows,
    note_row,
    plain_ticks,
    short_name,
)
from workbench.reports.pair_texts import problem_name

LOOKS = (("impl-0", "-"), ("impl-1", (0, (6, 2))))  # left, right: by colour and by dash
_STEPS = 240  # points of a distribution's line; more would be finer than a pixel


def windows(timing: Measured) -> list[tuple[float, ...]]:
    """Return the samples in seconds by window; as one where their sizes are unknown."""
    return timing.windows or [timing.samples_s]


def round_ratios(pair: ComparedPair, cycles: bool = False) -> list[float]:
    """Return right over left, window by window: of medians, with `cycles` times clocks."""
    left, right = (_window_values(t, cycles) for t in pair.timings)
    if len(left) != len(right):  # windows were left out, and it is unknown which
        return []
    return [r / a for a, r in zip(left, right, strict=True) if a and r]


def _window_values(timing: Measured, cycles: bool) -> list[float]:
    middles = [stats.median(w) if w else 0.0 for w in windows(timing)]
    if not cycles:
        return middles
    if len(timing.window_mhz) != len(middles):
        return []
    return [m * f for m, f in zip(middles, timing.window_mhz, strict=True)]


def distribution(pair: ComparedPair, prefix: str) -> Markup:
    """Return the cumulative distribution of both operands' samples, without the slowest 2 %."""
    scale, unit = unit_of(min(t.median_s for t in pair.timings))
    low = min(stats.quantile(t.samples_s, 0.0) for t in pair.timings)
    high = max(stats.quantile(t.samples_s, 0.98) for t in pair.timings)
    room = (high - low) * 0.04 or high * 0.01
    fig = figure(560, 330)
    ax = axes(fig, 58, 14, 490, 264, "both")
    ax.set(xlim=((low - room) / scale, (high + room) / scale), ylim=(0, 100))
    ax.set(xlabel=f"time of one call, {unit}", ylabel="samples up to this time, %")
    for timing, (ink, dash) in zip(pair.timings, LOOKS, strict=True):
        shares = [i / _STEPS for i in range(_STEPS + 1)]
        ordered = sorted(timing.samples_s)
        times = [stats.quantile(ordered, q) / scale for q in shares]
        ax.plot(times, [100 * q for q in shares], color=colour(ink), linestyle=dash, linewidth=2)
        middle = timing.median_s / scale
        ax.plot([middle], [50], marker="o", markersize=6, color=colour(ink))
    return figure_svg(fig, prefix, f"Samples of {pair.names[0]} and {pair.names[1]}")


def round_figure(pair: ComparedPair, prefix: str, cycles: bool = False) -> Markup | None:
    """Return the ratio of each round, its median and interval, and the band that counts as equal.
    None where there are fewer than two rounds or there is no verdict."""
    ratios = round_ratios(pair, cycles)
    verdict = pair.verdict
    if len(ratios) < 2 or verdict is None:
        return None
    whole = verdict.cycles if cycles else verdict.time
    if whole is None:
        return None
    inner = [stats.quantile(ratios, q) for q in (0.02, 0.98)]
    edges = _band(verdict)
    low, high = min(*inner, *edges, whole.low), max(*inner, *edges, whole.high)
    room = (high - low) * 0.08
    fig = figure(560, 300)
    ax = axes(fig, 66, 14, 482, 234)
    ax.set(xlim=(0, len(ratios) + 1), ylim=(low - room, high + room))
    what = "cycles" if cycles else "time"
    ax.set(xlabel="round", ylabel=f"ratio in {what}, right over left")
    ax.axhspan(*edges, facecolor=colour("rule"), edgecolor="none", zorder=0)
    ax.axhline(1, color=colour("muted"), linewidth=0.8, zorder=1)
    dots = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgewidth": 0}
    at = range(1, len(ratios) + 1)
    ax.plot(at, ratios, color=colour("ink"), alpha=0.65, zorder=2, **dots)
    ax.axhspan(whole.low, whole.high, facecolor=colour("accent"), alpha=0.28, zorder=3)
    ax.axhline(whole.middle, color=colour("accent"), linewidth=2, zorder=4)
    ax.xaxis.get_major_locator().set_params(integer=True)
    return figure_svg(fig, prefix, f"Ratio in {what} of each round")


def clocks(pair: ComparedPair, prefix: str) -> Markup | None:
    """Return the SM clock of each window, both operands; None where it is unknown."""
    if any(len(t.window_mhz) < 2 for t in pair.timings):
        return None
    fig = figure(560, 240)
    ax = axes(fig, 66, 14, 482, 174, "y")
    seen = [f for t in pair.timings for f in t.window_mhz]
    room = (max(seen) - min(seen)) * 0.1 or 10
    ax.set(ylim=(min(seen) - room, max(seen) + room), xlabel="round", ylabel="SM clock, MHz")
    for timing, (ink, dash) in zip(pair.timings, LOOKS, strict=True):
        at = range(1, len(timing.window_mhz) + 1)
        ax.plot(at, timing.window_mhz, color=colour(ink), linestyle=dash, linewidth=1.4)
    ax.xaxis.get_major_locator().set_params(integer=True)
    plain_ticks(ax.yaxis)
    return figure_svg(fig, prefix, "SM clock of each round")


def forest(pairs: Sequence[ComparedPair]) -> Markup:
    """Return ratio and interval of each comparison that has a verdict, with its own threshold."""
    left, right, line, top = 300, 150, 26, 8
    spans = [e for p in pairs if (v := p.verdict) for e in (v.time.low, v.time.high, *_band(v))]
    low, high = min(spans), max(spans)
    room = (high - low) * 0.05
    fig = figure(900, top + line * len(pairs) + 52)
    ax = axes(fig, left, top, 900 - left - right, line * len(pairs))
    ax.set(xlim=(low - room, high + room), ylim=(len(pairs) - 0.5, -0.5))
    ax.set(xlabel="time, right over left: above 1 the right operand is slower")
    name_rows(ax, range(len(pairs)), [short_name(problem_name(pair), 48) for pair in pairs])
    ax.axvline(1, color=colour("muted"), linewidth=0.8, zorder=1)
    for y, pair in enumerate(pairs):
        if (verdict := pair.verdict) is not None:
            ratio, edges = verdict.time, _band(verdict)
            look = {"facecolor": colour("rule"), "edgecolor": "none", "zorder": 0}
            ax.fill_between(edges, y - 0.42, y + 0.42, **look)
            bar(ax, ratio.low, ratio.high, y, "accent", 3, zorder=2)
            ax.plot([ratio.middle], [y], marker="o", markersize=6, color=colour("ink"), zorder=3)
            note_row(ax, y, f"{verdict.time.middle:.4f}  {verdict.word}", SMALLER)
    return figure_svg(fig, "forest", "Ratio of each comparison")


def _band(verdict: Verdict) -> tuple[float, float]:
    """Return the ratios between which two times count as equal."""
    return 1 / (1 + verdict.threshold), 1 + verdict.threshold
