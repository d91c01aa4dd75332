"""Timelines of a trace as lanes: the device, its streams, idle time by cause, waits of the host.

A lane has a column for each pixel, whose height is the share of that time which the boxes cover. A
box wider than a pixel is drawn at full height, and a thousand short kernels as what they add up to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.data.intervals import Intervals, clipped, difference, union
from workbench.data.timeline import DeviceTimes
from workbench.data.trace import ActivityKind
from workbench.data.trace_summary import DeviceSummary
from workbench.data.units import duration
from workbench.reports import colour, figure, figure_svg, place
from workbench.reports.figures.drawing import axes, frame

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, LEFT, LANE, BOX = 1130, 150, 26, 16  # CSS pixels
STREAMS = 8  # lanes of streams at most, the busiest
NAMED = 60  # kernels that a detail names when the pointer is on them
LOOK = {
    "kernel": "impl-0",
    "copy": "impl-2",
    "set": "heat-3",
    "wait": "muted",
    "host wait": "accent",
    "dependency": "roof-memory",
    "step": "hatch",
    "unknown": "rule",
}


@dataclass(frozen=True)
class Lane:
    """One row of a timeline: its name, and the boxes of each look."""

    name: str
    boxes: dict[str, Intervals]


def lanes(summary: DeviceSummary, start: int, end: int) -> list[Lane]:
    """Return the lanes of a device between two times in ns."""
    times = summary.times
    table = summary.trace.activities
    causes: dict[str, list[tuple[int, int]]] = {}
    for gap in times.gaps:
        causes.setdefault(gap.cause, []).append((gap.start, gap.end))
    rows = [
        Lane("device", _device(times, start, end)),
        Lane("idle", {cause: clipped(union(each), start, end) for cause, each in causes.items()}),
    ]
    streams: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for index in times.order:
        if table.starts[index] < end and table.ends[index] > start:
            kind = ActivityKind(table.kinds[index]).name.lower()
            lane = streams.setdefault(table.lanes.known[table.lane_numbers[index]], {})
            lane.setdefault(kind, []).append((table.starts[index], table.ends[index]))
    for name, kinds in list(sorted(streams.items(), key=_busiest))[:STREAMS]:
        boxes = {kind: clipped(union(each), start, end) for kind, each in kinds.items()}
        rows.append(Lane(f"stream {name}"[:20], boxes))
    rows.append(Lane("host waits", {"wait": clipped(times.sync, start, end)}))
    return [lane for lane in rows if any(each.starts for each in lane.boxes.values())]


def _device(times: DeviceTimes, start: int, end: int) -> dict[str, Intervals]:
    """Return the busy time of a device: kernels, copies beside which none ran, and the rest."""
    rest = difference(difference(times.busy, times.kernels), times.copies)
    parts = {"kernel": times.kernels, "copy": times.copies_exposed, "set": rest}
    return {look: clipped(each, start, end) for look, each in parts.items()}


def _busiest(stream: tuple[str, dict[str, list[tuple[int, int]]]]) -> int:
    return -sum(end - start for each in stream[1].values() for start, end in each)


def timeline(summary: DeviceSummary, start: int, end: int, prefix: str, title: str) -> Markup:
    """Return the lanes between two times in ns as inline SVG. The longest activities show their
    name and duration under the pointer."""
    from markupsafe import Markup, escape

    rows = lanes(summary, start, end)
    height = LANE * len(rows) + 44
    fig = figure(WIDTH, height)
    ax = axes(fig, LEFT, 4, WIDTH - LEFT - 20, LANE * len(rows))
    scale, unit = _scale(end - start)
    first = summary.times.start
    ax.set_xlim((start - first) / scale, (end - first) / scale)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_yticks(range(len(rows)), [lane.name for lane in rows])
    ax.tick_params(axis="y", length=0, labelcolor=colour("ink"))
    ax.grid(axis="x", color=colour("rule"), linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xlabel(f"{unit} since the window began")
    frame(ax, ("bottom",))

    def x(time: int) -> float:
        return place(ax, (time - first) / scale, 0)[0]

    pixels = WIDTH - LEFT - 20
    parts = []
    for row, lane in enumerate(rows):
        base = place(ax, (start - first) / scale, row)[1] + BOX / 2
        filled = [0.0] * pixels
        for look, boxes in lane.boxes.items():
            shares = _coverage(boxes, start, end, pixels)
            if path := _columns(shares, filled, base):
                parts.append(f'<path d="{path}" fill="var(--{LOOK[look]})" stroke="none"/>')
            filled = [a + b for a, b in zip(filled, shares, strict=True)]
        if lane.name == "device":
            parts += [
                f'<rect x="{x(s):.1f}" y="{base - BOX:.1f}" width="{max(x(e) - x(s), 1):.1f}" '
                f'height="{BOX}" fill="transparent"><title>{escape(text)}</title></rect>'
                for s, e, text in _named(summary, start, end)
            ]
    overlay = "".join(parts)
    return figure_svg(fig, prefix, title, Markup(overlay))


def _scale(length: int) -> tuple[float, str]:
    """Return the ns of the unit of a time axis, and its name."""
    for scale, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if length >= 2 * scale:
            return scale, unit
    return 1.0, "ns"


def _coverage(boxes: Intervals, start: int, end: int, pixels: int) -> list[float]:
    """Return the share of each pixel that boxes cover, from `start` to `end` in ns."""
    result = [0.0] * pixels
    width = (end - start) / pixels
    for left, right in boxes.pairs():
        low, high = (left - start) / width, (right - start) / width
        first, last = int(low), min(int(high), pixels - 1)
        if first >= pixels:
            continue
        if first == last:
            result[first] += high - low
            continue
        result[first] += first + 1 - low
        for pixel in range(first + 1, last):
            result[pixel] = 1.0
        result[last] += high - last
    return [min(share, 1.0) for share in result]


def _columns(shares: Sequence[float], below: Sequence[float], base: float) -> str:
    """Return an SVG path of columns on those `below`; equal neighbours are one."""
    path = []
    at = 0
    while at < len(shares):
        height, bottom = round(BOX * shares[at], 1), round(BOX * below[at], 1)
        end = at + 1
        while end < len(shares) and (height, bottom) == (
            round(BOX * shares[end], 1), round(BOX * below[end], 1)
        ):  # fmt: skip
            end += 1
        if height:
            path.append(f"M{LEFT + at} {base - bottom:.1f}h{end - at}v-{height:g}h-{end - at}z")
        at = end
    return "".join(path)


def _named(summary: DeviceSummary, start: int, end: int) -> list[tuple[int, int, str]]:
    """Return the longest activities between two times, with name and duration."""
    table = summary.trace.activities
    inside = [i for i in summary.times.order if table.starts[i] >= start and table.ends[i] <= end]
    longest = sorted(inside, key=lambda i: table.starts[i] - table.ends[i])[:NAMED]
    return [
        (
            table.starts[i],
            table.ends[i],
            f"{table.names.known[table.name_numbers[i]][:100]}, "
            f"{duration((table.ends[i] - table.starts[i]) / 1e9)}",
        )
        for i in sorted(longest)
    ]


def detail_window(summary: DeviceSummary) -> tuple[int, int] | None:
    """Return start and end of a part to draw in detail: one repetition of the longest sequence, or
    one step in the middle, or the first forty activities; None where the whole has no more."""
    times, table = summary.times, summary.trace.activities
    if len(times.order) <= NAMED:
        return None
    if summary.repeats:
        repeat = summary.repeats[0]
        length = (repeat.end - repeat.start) // repeat.count
        start = repeat.start + repeat.count // 2 * length
        return start, min(start + 2 * length, times.end)
    part: Sequence[int] = times.order[len(times.order) // 2 :][:40]
    return table.starts[part[0]], max(table.ends[i] for i in part)
