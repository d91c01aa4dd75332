"""Figures of a kernel under its ceilings: the roofline, or bandwidth without arithmetic."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from workbench.data.record import Record
from workbench.data.selection import interval_of
from workbench.data.units import quantity
from workbench.device.ceilings import (
    ceilings_in_state,
    clock_state,
    clock_words,
    origin_of,
    state_of,
    stem_of,
)
from workbench.device.error_band import expected_s
from workbench.reports import colour, figure, figure_svg
from workbench.reports.figures.drawing import EXPECTED_BAR, axes, decades, frame, note, plain_ticks
from workbench.reports.figures.sweep import Board, jitter, place_points

Ceilings = Mapping[str, Mapping[str, Any]]
NEAR = 16.0  # times a point's intensity or rate: limits within it are in the figure
_BAR: Mapping[str, Any] = {"color": colour("muted"), "linewidth": 1, "zorder": 1}


def roofline(board: Board, records: Sequence[Record], ceilings: Ceilings, prefix: str) -> Markup:
    """Return rate against arithmetic intensity under the device's ceilings, log-log."""
    at = records[0].flops / records[0].bytes
    rates = [r.flops / s for r in records for s in (r.time_s, *_span_s(board, r))]
    ceilings = _usual_ceilings(ceilings, records)
    ceiling_set, slopes = _unit_ceilings(ceilings, "FLOP/s"), _unit_ceilings(ceilings, "B/s")
    ceiling_set.sort(key=lambda c: -c[1]["value"])  # labels go above the first, below the others
    ridges = [flat["value"] / slope["value"] for _, flat in ceiling_set for _, slope in slopes]
    # Only what is near the points: a ridge 200 times as far compresses them into one spot.
    lo, hi = min([at, *_values_near(ridges, at)]) / 4, max([at, *_values_near(ridges, at)]) * 4
    over = [c["value"] for _, c in ceiling_set]
    over += [c["value"] * at for _, c in slopes if c["value"] * at < max(over, default=math.inf)]
    peak = max([*rates, *_values_near(over, max(rates))])
    fig = figure(620, 380)
    ax = axes(fig, 74, 14, 532, 316)
    ax.set(xscale="log", yscale="log", xlim=(lo, hi), ylim=(min(rates) / 2, peak * 2))
    ax.set(xlabel="arithmetic intensity, FLOP per byte of least traffic", ylabel="rate, FLOP/s")
    decades(ax)
    top = max((c["value"] for _, c in ceiling_set), default=peak)
    for n, (name, flat) in enumerate(ceiling_set):
        start = min((flat["value"] / c["value"] for _, c in slopes), default=lo)
        ax.plot([start, hi], [flat["value"]] * 2, **_ceiling_style("compute", name, flat))
        words, aside = _ceiling_name(name, flat), (-4, 5 if n == 0 else -14)
        note(ax, words, (hi, flat["value"]), aside, "roof-compute", ha="right")
    for name, slope in slopes:
        kind = "cache" if name.startswith("cache") else "memory"
        ends = [lo, top / slope["value"]], [lo * slope["value"], top]
        ax.plot(*ends, **_ceiling_style(kind, name, slope))
    if ceiling_set and slopes and lo < ridges[0] < hi:
        flat, x = ceiling_set[0][1]["value"], ridges[0]
        ax.plot([x], [flat], marker="o", markersize=4, color=colour("ink"), zorder=3)
        note(ax, f"ridge {x:.0f} FLOP/B", (x, flat), (7, -14))
    sloping = at < 3 * max(ridges, default=0)
    points = [(r, at * 10 ** _aside(board, r, sloping), r.flops / r.time_s) for r in records]
    for r, x, _ in points:
        if span := _span_s(board, r):
            ax.plot([x] * 2, [r.flops / s for s in span], **_bar_look(r))
    return figure_svg(fig, prefix, "Roofline", place_points(ax, board, points, "s"))


def _values_near(values: Sequence[float], to: float) -> list[float]:
    return [value for value in values if to / NEAR <= value <= to * NEAR]


def _span_s(board: Board, record: Record) -> tuple[float, ...]:
    """Return the ends of the interval that a model states, in seconds, or of the predicted best
    those between which a measured time is expected."""
    expected = expected_s(record) if record is board.best else None
    return interval_of(record) or expected or ()


def _bar_look(record: Record) -> Mapping[str, Any]:
    return _BAR if interval_of(record) else EXPECTED_BAR


def bandwidth(board: Board, records: Sequence[Record], ceilings: Ceilings, prefix: str) -> Markup:
    """Return the rate of least bytes under the memory ceilings; for kernels without FLOPs."""
    slopes = _unit_ceilings(_usual_ceilings(ceilings, records), "B/s")
    rates = [r.bytes / s / 1e9 for r in records for s in (r.time_s, *_span_s(board, r))]
    # The cache's ceiling only where it is close, as it would compress the range of the points.
    reach = max([*rates, *(c["value"] / 1e9 for k, c in slopes if not k.startswith("cache"))])
    slopes = [(k, c) for k, c in slopes if c["value"] / 1e9 <= reach * 1.1]
    fig = figure(620, 200)
    ax = axes(fig, 16, 56, 588, 94)
    ax.set(xlim=(min(rates) * 0.92, reach * 1.04), ylim=(-1, 1))
    ax.set(xlabel="least bytes over time, GB/s", yticks=[])
    plain_ticks(ax.xaxis)
    frame(ax, ("bottom",))
    for n, (name, slope) in enumerate(sorted(slopes, key=lambda c: c[1]["value"])):
        kind = "cache" if name.startswith("cache") else "memory"
        ax.axvline(slope["value"] / 1e9, **_ceiling_style(kind, name, slope))
        words, above = _ceiling_name(name, slope), (0, 5 + 14 * (n % 3))
        note(ax, words, (slope["value"] / 1e9, 1), above, f"roof-{kind}", ha="right")
    heights = [0.75 * jitter(board.row(r)) for r in records]
    for r, y in zip(records, heights, strict=True):
        if span := _span_s(board, r):
            ax.plot([r.bytes / s / 1e9 for s in span], [y] * 2, **_bar_look(r))
    points = [(r, r.bytes / r.time_s / 1e9, y) for r, y in zip(records, heights, strict=True)]
    return figure_svg(fig, prefix, "Bandwidth", place_points(ax, board, points))


def shares_of(ceilings: Ceilings, record: Record) -> list[tuple[float, str, Mapping[str, Any]]]:
    """Return the share of each ceiling but the cache's that a record reaches, its name, and it. Of
    a ceiling measured in both states that of the record's state counts."""
    results = []
    for name, ceiling in ceilings_in_state(ceilings, clock_state(record)).items():
        memory = ceiling.get("unit") == "B/s"
        if ceiling.get("value", 0) <= 0 or name.startswith("cache"):
            continue
        if memory or (ceiling.get("unit") == "FLOP/s" and record.flops):
            done = record.bytes if memory else record.flops
            results.append((done / record.time_s / ceiling["value"], name, ceiling))
    return results


def _usual_ceilings(ceilings: Ceilings, records: Sequence[Record]) -> Ceilings:
    """Return the ceilings of the state that most records are of."""
    ((state, _),) = Counter(map(clock_state, records)).most_common(1)
    return ceilings_in_state(ceilings, state)


def _unit_ceilings(ceilings: Ceilings, unit: str) -> list[tuple[str, Mapping[str, Any]]]:
    return [(k, c) for k, c in ceilings.items() if c.get("unit") == unit and c.get("value", 0) > 0]


def _ceiling_style(kind: str, name: str, ceiling: Mapping[str, Any]) -> dict[str, Any]:
    dash: Any = "-" if origin_of(name, ceiling) == "measured" else (0, (5, 3))
    return {"color": colour(f"roof-{kind}"), "linewidth": 1.4, "linestyle": dash, "zorder": 2}


def _ceiling_name(name: str, ceiling: Mapping[str, Any]) -> str:
    rate = quantity(ceiling["value"], ceiling["unit"])
    parts = f"{what_of(name, ceiling)} {rate}", origin_of(name, ceiling)
    return ", ".join(filter(None, (*parts, clock_words(state_of(name, ceiling)))))


def what_of(name: str, ceiling: Mapping[str, Any]) -> str:
    """Return the limited resource: `DRAM`, `bf16 compute`."""
    what = stem_of(name)
    if what.startswith("compute"):
        return f"{ceiling.get('dtype', '')} compute".strip()
    return {"dram": "DRAM", "cache": "last-level cache"}.get(what, what)


def _aside(board: Board, record: Record, sloping: bool) -> float:
    """Return the decades by which a point is moved beside its intensity: none for the best, and
    never to the left under a sloping ceiling, which it would seem to exceed."""
    if record is board.best:
        return 0.0
    spread = jitter(board.row(record))
    return 0.15 * (1 + spread) if sloping else 0.2 * spread
