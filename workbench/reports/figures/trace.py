"""Timelines of a trace as lanes: the device, its streams, idle time by cause, waits of the host.

A lane has a column for each pixel, whose height is the share of that time which the boxes cover. A
box wider than a pixel is drawn at full height, and a thousand short kernels as what they add up to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench.data.intervals import Intervals, clip, difference, union
from workbench.data.units import duration
from workbench.traces.timeline import DeviceTimes
from workbench.traces.trace import ActivityKind
from workbench.traces.trace_summary import DeviceSummary

if TYPE_CHECKING:
    from markupsafe import Markup

WIDTH, LEFT, TOP, LANE, BOX = 1130, 150, 4, 26, 16  # CSS pixels
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
    """Return the lanes of a device between two times in ns. Idle time has none where work of the
    device is missing: it may have been busy then."""
    times = summary.times
    table = summary.trace.activities
    causes: dict[str, list[tuple[int, int]]] = {}
    for gap in () if summary.hides_work else times.gaps:
        causes.setdefault(gap.cause, []).append((gap.start, gap.end))
    rows = [
        Lane("device", _device(times, start, end)),
        Lane("idle", {cause: clip(union(each), start, end) for cause, each in causes.items()}),
    ]
    streams: dict[str, dict[str, list[tuple[int, int]]]] = {}
    for index in times.order:
        if table.starts[index] < end and table.ends[index] > start:
            kind = ActivityKind(table.kinds[index]).name.lower()
            lane = streams.setdefault(table.lanes.entries[table.lane_numbers[index]], {})
            lane.setdefault(kind, []).append((table.starts[index], table.ends[index]))
    for name, kinds in list(sorted(streams.items(), key=_busiest))[:STREAMS]:
        boxes = {kind: clip(union(each), start, end) for kind, each in kinds.items()}
        rows.append(Lane(f"stream {name}"[:20], boxes))
    rows.append(Lane("host waits", {"wait": clip(times.sync, start, end)}))
    return [lane for lane in rows if any(each.starts for each in lane.boxes.values())]


def _device(times: DeviceTimes, start: int, end: int) -> dict[str, Intervals]:
    """Return the busy time of a device: kernels, copies beside which none ran, and the rest."""
    rest = difference(difference(times.busy, times.kernels), times.copies)
    parts = {"kernel": times.kernels, "copy": times.copies_exposed, "set": rest}
    return {look: clip(each, start, end) for look, each in parts.items()}


def _busiest(stream: tuple[str, dict[str, list[tuple[int, int]]]]) -> int:
    return -sum(end - start for each in stream[1].values() for start, end in each)


def timeline(summary: DeviceSummary, start: int, end: int, title: str) -> Markup:
    """Return the lanes between two times in ns as inline SVG. The longest activities show their
    name and duration under the pointer."""
    from markupsafe import Markup, escape

    end = max(end, start + 1)  # of work that takes no time
    rows = lanes(summary, start, end)
    bottom = TOP + LANE * len(rows)
    pixels = WIDTH - LEFT - 20
    parts = [_axis(start - summary.times.start, end - summary.times.start, pixels, bottom)]
    for row, lane in enumerate(rows):
        base = TOP + LANE * (row + 0.5) + BOX / 2
        parts.append(
            f'<text x="{LEFT - 8}" y="{base - BOX / 2 + 4:.1f}" text-anchor="end" '
            f'fill="var(--ink)">{escape(lane.name)}</text>'
        )
        filled = [0.0] * pixels
        for look, boxes in lane.boxes.items():
            shares = _coverage(boxes, start, end, pixels)
            if path := _columns(shares, filled, base):
                parts.append(f'<path d="{path}" fill="var(--{LOOK[look]})" stroke="none"/>')
            filled = [a + b for a, b in zip(filled, shares, strict=True)]
        if lane.name == "device":
            parts += _hover_boxes(summary, start, end, pixels, base)
    return Markup(
        f'<svg class="figure" viewBox="0 0 {WIDTH} {bottom + 40}" width="{WIDTH}" '
        f'style="--natural:{WIDTH}px" role="group" aria-label="{escape(title)}">'
        f'<g font-size="12">{"".join(parts)}</g></svg>'
    )


def _hover_boxes(
    summary: DeviceSummary, start: int, end: int, pixels: int, base: float
) -> Iterator[str]:
    """Yield a transparent box for each of the longest activities, with its name for the pointer."""
    from markupsafe import escape

    scale = pixels / (end - start)
    for left, right, text in _longest_activities(summary, start, end):
        yield (
            f'<rect x="{LEFT + (left - start) * scale:.1f}" y="{base - BOX:.1f}" '
            f'width="{max((right - left) * scale, 1):.1f}" height="{BOX}" fill="transparent">'
            f"<title>{escape(text)}</title></rect>"
        )


def _axis(start: int, end: int, pixels: int, bottom: float) -> str:
    """Return the time axis from `start` to `end` in ns: a line, its ticks, the grid, the unit."""
    scale, unit = _scale(end - start)
    step = tick_step((end - start) / scale)
    parts = [f'<path d="M{LEFT} {bottom}h{pixels}" stroke="var(--rule)" fill="none"/>']
    for number in range(math.ceil(start / scale / step), math.floor(end / scale / step) + 1):
        x = LEFT + (number * step * scale - start) / (end - start) * pixels
        parts.append(
            f'<path d="M{x:.1f} {TOP}V{bottom + 4}" stroke="var(--rule)" stroke-width="0.8" '
            f'fill="none"/><text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle" '
            f'fill="var(--muted)">{number * step:.12g}</text>'
        )
    parts.append(
        f'<text x="{LEFT + pixels / 2}" y="{bottom + 34}" text-anchor="middle" '
        f'fill="var(--muted)">{unit} since the window began</text>'
    )
    return "".join(parts)


def tick_step(length: float) -> float:
    """Return the distance of ticks on an axis of this length: 1, 2 or 5 times a power of ten, so
    that there are 4 to 10 of them."""
    power = 10.0 ** math.floor(math.log10(length / 10))
    return next(power * each for each in (1, 2, 5, 10, 20) if length / (power * each) <= 10)


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


def _longest_activities(summary: DeviceSummary, start: int, end: int) -> list[tuple[int, int, str]]:
    """Return the longest activities between two times, with name and duration."""
    table = summary.trace.activities
    inside = [i for i in summary.times.order if table.starts[i] >= start and table.ends[i] <= end]
    longest = sorted(inside, key=lambda i: table.starts[i] - table.ends[i])[:NAMED]
    return [
        (
            table.starts[i],
            table.ends[i],
            f"{table.names.entries[table.name_numbers[i]][:100]}, "
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
