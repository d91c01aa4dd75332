"""Figures of the roofline report: axes by matplotlib, all else as SVG over them.

The overlay lets a legend switch parts of the figure, and links each point with its row. A
switchable element carries `data-t`, words separated by spaces, each of which is one or more
switches joined by `|`: it is hidden where all switches of one of its words are off.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from markupsafe import Markup, escape

from workbench.data.record import group_by
from workbench.data.units import quantity
from workbench.device.ceilings import LEVELS, Ceiling, clock_words
from workbench.reports import figure, figure_svg, place
from workbench.reports.figures.drawing import axes
from workbench.reports.figures.limit_lines import decades
from workbench.reports.figures.profiled_traffic import NAMES
from workbench.reports.figures.roofline_points import Point, Sheet, bests
from workbench.reports.figures.sweep import MARKS

WIDTH, HEIGHT = 1120, 620  # px; the chart is up to 1/4 wider where its labels are long
LEFT, TOP, ACROSS, DOWN = 78, 14, 770, 548  # of the axes, CSS px
MOST_LABELS = 14  # named points; the others show their names on hover
MOST_CHANGES = 12  # arrows with their change beside them
_LARGEST = 2.3  # scale of the mark with the largest share of time
_SMALLEST = 0.62  # smaller marks are hard to hit with a pointer
CHAR = 6.1  # px, mean width of a letter in 11 px text
LINE = 14
Ends = tuple[tuple[float, float], tuple[float, float]]  # of a line: FLOP/B, FLOP/s
Places = Mapping[int, tuple[float, float]]  # of points, by their index: px


@dataclass(frozen=True)
class Line:
    """A ceiling as drawn; dtypes of equal value share one line."""

    ceiling: Ceiling
    dtypes: tuple[str, ...]
    start: tuple[float, float]  # FLOP/B, FLOP/s
    end: tuple[float, float]
    ridge: float | None = None
    paired: bool = False  # also measured in the other state, and switched with its own
    alike: bool = False  # in the other state it is the same, and not drawn again

    @property
    def words(self) -> str:
        """Return the label: `bf16, fp16 989 TFLOP/s, datasheet, boost clock`."""
        what, c = ", ".join(self.dtypes) or LEVELS[self.ceiling.level], self.ceiling
        clock = "both clocks" if self.alike else clock_words(c.state)
        words = ", ".join(filter(None, (f"{what} {quantity(c.value, c.unit)}", c.origin, clock)))
        return f"{words}; ridge {self.ridge:.3g}" if self.ridge else words


@dataclass(frozen=True)
class Scene:
    """Contents and limits of a picture of a sheet: for pages and for papers."""

    sheet: Sheet
    x: tuple[float, float]
    y: tuple[float, float]
    lines: tuple[Line, ...]
    placed: tuple[int, ...]  # indices of points with an intensity in the sheet
    strip: tuple[int, ...]  # indices of those without FLOPs
    dtypes: tuple[str, ...]  # of points and of their ceilings: switched on at first
    states: tuple[str, ...]  # of the points' clocks: switched on at first

    def off(self, line: Line) -> bool:
        """Return whether a ceiling is switched off at first: no point computes in its dtype, or
        none has a time of its state and the other state is drawn."""
        if line.dtypes and not set(line.dtypes) & set(self.dtypes):
            return True
        return line.paired and line.ceiling.state not in self.states

    def number(self, point: Point) -> int:
        """Return the number of a point's look: by device where there are several, else by dtype."""
        if len(self.sheet.devices) > 1:
            return self.sheet.devices.index(point.device)
        own = list(dict.fromkeys(p.record.case.dtype for p in self.sheet.points))
        return own.index(point.record.case.dtype)

    def mark(self, point: Point) -> str:
        """Return the name of a point's marker."""
        return "cross" if point.record.case.is_baseline else mark_of(self.number(point))


def mark_of(number: int) -> str:
    """Return the marker of a device or dtype by its number; with four colours, sixteen looks."""
    return MARKS[(number + number // len(MARKS)) % len(MARKS)]


def scene_of(sheet: Sheet) -> Scene:
    """Return limits and lines for all points of a sheet."""
    placed = [n for n, p in enumerate(sheet.points) if p.load.flops and p.load.bytes]
    strip = [n for n, p in enumerate(sheet.points) if not p.load.flops and p.load.bytes]
    points = [sheet.points[n] for n in placed]
    dtypes = dict.fromkeys(p.record.case.dtype for p in sheet.points)
    dtypes |= dict.fromkeys(p.load.dtype for p in points)
    drawn = {device: ceilings.lines() for device, ceilings in sheet.ceilings.items()}
    shown = [c for each in drawn.values() for c in each if not c.dtype or c.dtype in dtypes]
    peaks = [c.value for c in shown if c.level == "compute"]
    memory = [c.value for c in shown if c.level != "compute"]
    at = [p.load.intensity or 1.0 for p in points] or [1.0]
    at += [t.flops / t.bytes for p in points for t in p.traffic]
    ridges = [peak / rate for peak in peaks for rate in memory]
    x = min([*at, *ridges]) / 4, max([*at, *ridges]) * 3
    states = tuple(dict.fromkeys(p.load.state for p in sheet.points)) or ("sustained",)
    rates = [p.flops_rate for p in points]
    ends = [p.load.flops / w for p in points if p.bar_s for w in p.bar_s]
    bound = [x[0] * 4 * min(memory)] if memory and not points else []
    y = min([*rates, *ends, *bound, *peaks], default=1e9) / 3
    y = min(y, max([*rates, *peaks], default=1e12) / 1e3)
    top = max([*rates, *ends, *peaks], default=1e12) * 3
    scene = Scene(sheet, x, (y, top), (), tuple(placed), tuple(strip), tuple(dtypes), states)
    lines = [line for each in drawn.values() for line in _lines(each, scene)]
    return replace(scene, lines=tuple(sorted(lines, key=scene.off)))


def _lines(drawn: Sequence[Ceiling], scene: Scene) -> list[Line]:
    x, dtypes = scene.x, set(scene.dtypes)
    memory = [c for c in drawn if c.level in ("dram", "cache", "shared")]
    both = {
        key
        for key, some in group_by((c for c in drawn if c.is_measured), _limit).items()
        if len(some) > 1
    }
    merged: dict[tuple[float, bool, str], list[Ceiling]] = {}
    for c in drawn:
        if c.level == "compute":
            merged.setdefault((c.value, c.is_measured, c.state), []).append(c)
    widest = max((c.value for c in memory), default=None)
    flat = []
    for alike in merged.values():
        c = next((c for c in alike if c.dtype in dtypes), alike[0])
        start = max(x[0], c.value / widest) if widest else x[0]
        names = tuple(sorted(a.dtype for a in alike))
        ridge = scene.sheet.ceilings[c.device].ridge(c)
        ends = (start, c.value), (x[1], c.value)
        flat.append(_line(Line(c, names, *ends, ridge), both, scene))
    top = max((n.ceiling.value for n in flat if not scene.off(n)), default=math.inf)
    lines = []
    for c in memory:
        reach = min(x[1], top / c.value)
        ends = (x[0], x[0] * c.value), (reach, reach * c.value)
        lines.append(_line(Line(c, (), *ends), both, scene))
    return [*lines, *flat]


def _line(line: Line, both: Container[tuple[str, str]], scene: Scene) -> Line:
    """Return the line with its relation to the other state; `both` are limits drawn in both."""
    c = line.ceiling
    paired = c.is_measured and _limit(c) in both
    return replace(line, paired=paired, alike=scene.sheet.ceilings[c.device].alike(c))


def _limit(c: Ceiling) -> tuple[str, str]:
    return c.level, c.dtype


# The chart.


@dataclass
class Room:
    """Free space for text: boxes that are taken, points that text should not cover, and dots along
    lines that it should not cross where it can be avoided."""

    width: float
    height: float
    left: float
    top: float
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)
    dots: list[tuple[float, float]] = field(default_factory=list)
    along: list[tuple[float, float]] = field(default_factory=list)

    def cross(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Register a line."""
        steps = max(1, int(math.hypot(x1 - x0, y1 - y0) / 6))
        self.along += [
            (x0 + (x1 - x0) * n / steps, y0 + (y1 - y0) * n / steps) for n in range(steps + 1)
        ]

    def ring(self, start: tuple[float, float], ring: tuple[float, float]) -> None:
        """Register a ring and the arrow to it, several dots each: no text should hide them."""
        self.dots += [ring] * 3
        long = math.dist(start, ring)
        steps = max(1, int(long / 8))
        self.dots += [
            (
                start[0] + (ring[0] - start[0]) * n / steps,
                start[1] + (ring[1] - start[1]) * n / steps,
            )
            for n in range(1, steps)
        ]

    def take(self, x: float, y: float, text: str) -> None:
        """Register a text at its left baseline."""
        self.taken.append((x, y - 10, x + CHAR * len(text), y + 3))

    def find(
        self, x: float, y: float, text: str, gap: float = 8, far: bool = False
    ) -> tuple[float, float] | None:
        """Reserve a free place beside a point and return its left baseline in px. With `far` places
        some way off count, too. None where each place hides three or more points."""
        wide = CHAR * len(text)
        left, middle, right = x - gap - wide, x - wide / 2, x + gap
        places = [
            (right, y + 4),
            (left, y + 4),
            (middle, y - gap - 2),
            (middle, y + gap + 11),
            (right, y - gap),
            (left, y - gap),
            (right, y + gap + 9),
            (left, y + gap + 9),
        ]
        for away in (30, 48, 66) if far else ():
            places += [
                (middle, y - away),
                (middle, y + away + 8),
                (x + away, y - away / 2),
                (x + away, y + away / 2),
                (x - away - wide, y + away / 2),
            ]
        best: tuple[float, float, float] | None = None
        for px, py in places:
            box = (px, py - 10, px + wide, py + 3)
            if self._outside(box) or any(_meet(box, other) for other in self.taken):
                continue
            hidden = _inside(box, self.dots)
            cost = 6 * hidden + _inside(box, self.along)
            if hidden < 3 and (best is None or cost < best[0]):
                best = (cost, px, py)
        if best is None:
            return None
        self.take(best[1], best[2], text)
        return best[1], best[2]

    def _outside(self, box: tuple[float, float, float, float]) -> bool:
        right, bottom = self.left + self.width, self.top + self.height
        return box[0] < self.left + 2 or box[2] > right or box[1] < self.top or box[3] > bottom


def _inside(box: tuple[float, float, float, float], dots: Iterable[tuple[float, float]]) -> int:
    return sum(box[0] < a < box[2] and box[1] < b < box[3] for a, b in dots)


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def chart(scene: Scene, prefix: str) -> Markup:
    """Return rate against arithmetic intensity, log-log, under the ceilings of every device."""
    scene = replace(scene, y=(scene.y[0], _top(scene)))
    longest = max((len(line_words(scene, n)) for n in scene.lines if n.dtypes), default=0)
    width = min(1.25 * WIDTH, max(WIDTH, LEFT + ACROSS + 40 + CHAR * longest))
    fig = figure(round(width), HEIGHT)
    ax = axes(fig, LEFT, TOP, ACROSS, DOWN)
    ax.set(xscale="log", yscale="log", xlim=scene.x, ylim=scene.y)
    ax.set(xlabel="arithmetic intensity, FLOP per byte of least traffic", ylabel="rate, FLOP/s")
    decades(ax)
    ax.set_axisbelow(True)
    room = Room(ACROSS, DOWN, LEFT, TOP)
    at = {n: _spot(ax, scene, n) for n in scene.placed}
    room.dots = list(at.values())
    traffic = _traffic(ax, scene, at, room)
    ceilings = _draw_ceilings(ax, scene, room)
    parts = [*ceilings, *_whiskers(ax, scene, at), *_arrows(scene, at, room)]
    parts += [*traffic, point_marks(scene, scene.placed, at)]
    parts += warning_marks(scene, at, room)
    parts += [*_names(scene, at, room), *_ridge_names(ax, scene, room)]
    return figure_svg(fig, prefix, "Roofline", "".join(parts))


def _top(scene: Scene) -> float:
    """Return the upper limit in FLOP/s that leaves room for memory's labels above all lines."""
    high = [n.end[1] for n in scene.lines if not scene.off(n)]
    low, labels = scene.y[0], sum(not n.dtypes for n in scene.lines)
    room = min(0.5 * DOWN, LINE * labels + 14)
    needed = math.log10(max(high, default=low) / low) * DOWN / (DOWN - room)
    return max(scene.y[1], low * 10**needed)


def _spot(ax: Any, scene: Scene, n: int) -> tuple[float, float]:
    point = scene.sheet.points[n]
    return place(ax, point.load.intensity or 1.0, point.flops_rate)


def tokens(scene: Scene, point: Point) -> str:
    """Return the switches of a point."""
    device = scene.sheet.devices.index(point.device)
    return f"D{device} T-{point.record.case.dtype} K-{point.regime} S-{point.load.state}"


def line_tokens(scene: Scene, line: Line) -> str:
    """Return the switches of a ceiling."""
    c = line.ceiling
    device = scene.sheet.devices.index(c.device)
    level = "|".join(f"T-{d}" for d in line.dtypes) if line.dtypes else f"L-{c.level}"
    state = f" S-{c.state}" if line.paired else ""
    return f"D{device} {level} O-{'measured' if c.is_measured else 'stated'}{state}"


def group(words: str, body: str, off: bool = False, kind: str = "") -> str:
    """Return an SVG group with the switches `words`, hidden at first where `off`."""
    hidden = ' style="display:none"' if off else ""
    named = f' class="{kind}"' if kind else ""
    return f'<g data-t="{words}"{named}{hidden}>{body}</g>'


def ink_of(scene: Scene, line: Line) -> str:
    """Return the CSS class of a ceiling's colour: its device's where there are several."""
    if len(scene.sheet.devices) > 1:
        return f"d{scene.sheet.devices.index(line.ceiling.device) % 4}"
    return f"l-{line.ceiling.level}"


def _draw_ceilings(ax: Any, scene: Scene, room: Room) -> list[str]:
    """Return bands and lines; labels of arithmetic are at the right, of memory at the upper left,
    where no point can be."""
    parts = []
    right, beside = LEFT + ACROSS, _label_baselines(ax, scene)
    ridge_point = TOP + 14.0
    for line in scene.lines:
        ends = _cut(scene, line, line.ceiling.value)
        body = _band(ax, scene, line) + _stroke(ax, line, ends)
        if not scene.off(line):
            room.cross(*(v for end in ends for v in place(ax, *end)))
        if line.dtypes:
            px, py = place(ax, *line.end)
            y = beside[id(line)]
            body += f'<path class="lead" d="M{px:g} {py:g}L{right + 14:g} {y - 4:g}"/>'
            body += _text(scene, line, right + 28, y)
            if line.ridge and scene.x[0] < line.ridge < scene.x[1]:
                rx, ry = place(ax, line.ridge, line.ceiling.value)
                title = f"ridge of {line.words}: {line.ridge:.3g} FLOP/B"
                body += f'<circle class="ridge" cx="{rx:g}" cy="{ry:g}" r="3">'
                body += f"<title>{escape(title)}</title></circle>"
                room.dots.append((rx, ry))
        else:
            sample = f"M{LEFT + 10} {ridge_point - 4:g}h26"
            body += f'<path class="roof{dash(line)}" d="{sample}"/>'
            body += _text(scene, line, LEFT + 58, ridge_point)
            room.take(LEFT + 4, ridge_point, "x" * (12 + len(line_words(scene, line))))
            ridge_point += LINE
        parts.append(group(line_tokens(scene, line), body, scene.off(line), ink_of(scene, line)))
    return parts + _line_extensions(ax, scene)


def _line_extensions(ax: Any, scene: Scene) -> list[str]:
    """Return extensions of memory's lines up to the ceilings that are switched off at first."""
    parts = []
    for line in (n for n in scene.lines if not n.dtypes):
        c = line.ceiling
        for flat in (n for n in scene.lines if n.dtypes):
            end = flat.ceiling.value / c.value
            if not scene.off(flat) or flat.ceiling.device != c.device or end <= line.end[0]:
                continue
            body = _stroke(ax, line, (line.end, (end, flat.ceiling.value)))
            words = f"{line_tokens(scene, line)} {'|'.join(f'T-{d}' for d in flat.dtypes)}"
            words += f" S-{flat.ceiling.state}" if flat.paired else ""
            parts.append(group(words, body, True, ink_of(scene, line)))
    return parts


def _label_baselines(ax: Any, scene: Scene) -> dict[int, float]:
    """Return the baselines of the labels at the right: in the lines' order, a line apart."""
    flat = sorted((line for line in scene.lines if line.dtypes), key=lambda n: -n.ceiling.value)
    wanted = [place(ax, *line.end)[1] + 4 for line in flat]
    ys: list[float] = []
    for y in wanted:
        ys.append(max(y, ys[-1] + LINE) if ys else max(y, TOP + 8.0))
    for n in range(len(ys) - 2, -1, -1):  # those pushed down push the ones above up again
        slack = (ys[n + 1] - wanted[n + 1]) / 2
        lowest = ys[n - 1] + LINE if n else TOP + 8.0
        ys[n] = max(lowest, ys[n] - slack) if slack > 0 else ys[n]
    return {id(line): y for line, y in zip(flat, ys, strict=True)}


def line_words(scene: Scene, line: Line) -> str:
    """Return a ceiling's label, with its device where there are several."""
    several = f"{line.ceiling.device}: " if len(scene.sheet.devices) > 1 else ""
    return several + line.words


def _text(scene: Scene, line: Line, x: float, y: float) -> str:
    """Return a ceiling's label, after the mark of its device where there are several."""
    mark = ""
    if len(scene.sheet.devices) > 1:
        name = mark_of(scene.sheet.devices.index(line.ceiling.device))
        mark = f'<use class="dev" href="#s-{name}" x="{x - 9:g}" y="{y - 4:g}"/>'
    return f'{mark}<text x="{x:g}" y="{y:g}">{escape(line_words(scene, line))}</text>'


def dash(line: Line) -> str:
    """Return the CSS class of stated ceilings, which are dashed, and of those measured at the boost
    clock, which have dashes and dots; empty for other measured ones."""
    if not line.ceiling.is_measured:
        return " stated"
    return " boost" if line.ceiling.state == "boost" else ""


def _stroke(ax: Any, line: Line, ends: Ends) -> str:
    (x0, y0), (x1, y1) = (place(ax, *end) for end in ends)
    return f'<path class="roof{dash(line)}" d="M{x0:g} {y0:g}L{x1:g} {y1:g}"/>'


def _band(ax: Any, scene: Scene, line: Line) -> str:
    low, high = line.ceiling.low, line.ceiling.high
    if not line.ceiling.is_measured or not low or not high:
        return ""
    a, b = _cut(scene, line, low)
    d, c = _cut(scene, line, high)
    ridge_points = " ".join("{:g},{:g}".format(*place(ax, *at)) for at in (a, b, c, d))
    return f'<polygon class="band" points="{ridge_points}"/>'


def _cut(scene: Scene, line: Line, value: float) -> Ends:
    """Return a ceiling's ends at this value of it, clipped to the axes."""
    if line.dtypes:
        return (line.start[0], value), (line.end[0], value)
    first = max(scene.x[0], scene.y[0] / value)
    return (first, first * value), (line.end[0], line.end[0] * value)


def _whiskers(ax: Any, scene: Scene, at: Places) -> list[str]:
    results: dict[tuple[str, str], list[str]] = {}
    for n, (x, _) in at.items():
        point = scene.sheet.points[n]
        if point.bar_s is None or point.load.intensity is None:
            continue
        ends = [place(ax, point.load.intensity, point.load.flops / s)[1] for s in point.bar_s]
        drawn = f"M{x:g} {ends[0]:g}V{ends[1]:g}"
        if abs(ends[0] - ends[1]) > 2:
            drawn += f"M{x - 3:g} {ends[0]:g}h6M{x - 3:g} {ends[1]:g}h6"
        look = f"{tokens(scene, point)} W", f"i{scene.number(point) % 4}"
        results.setdefault(look, []).append(drawn)
    return [
        group(words, f'<path class="whisk" d="{"".join(paths)}"/>', kind=kind)
        for (words, kind), paths in results.items()
    ]


def _arrows(scene: Scene, at: Places, room: Room) -> list[str]:
    """Return arrows from baseline to candidate; the largest changes are labelled first."""
    points = scene.sheet.points
    drawn = [a for a in scene.sheet.arrows if a.start in at and a.end in at]
    drawn.sort(key=lambda a: -abs(a.change) * points[a.start].share_of_time)
    parts = []
    for number, arrow in enumerate(drawn):
        (x0, y0), (x1, y1) = at[arrow.start], at[arrow.end]
        long = math.hypot(x1 - x0, y1 - y0)
        body = arrow_to(x0, y0, x1, y1) if long >= 12 else ""
        words = f"{100 * arrow.change:+.0f} %".replace("-", "−")
        spot = room.find(x1, (y0 + y1) / 2 if long > 30 else y1, words) if long >= 5 else None
        if spot and number < MOST_CHANGES:
            body += f'<text class="change" x="{spot[0]:g}" y="{spot[1]:g}">{words}</text>'
        slower = "arrow slower" if arrow.change > 0 else "arrow"
        if body:
            parts.append(group(f"{tokens(scene, points[arrow.end])} A", body, kind=slower))
    return parts


def _traffic(ax: Any, scene: Scene, at: Places, room: Room) -> list[str]:
    """Return rings where a profiler's bytes and FLOPs put a point, each at the end of an arrow from
    where its declared ones do."""
    parts = []
    for n, (x0, y0) in at.items():
        point = scene.sheet.points[n]
        for each in point.traffic:
            x, y = place(ax, each.flops / each.bytes, each.flops / point.load.time_s)
            times = each.bytes / point.load.bytes
            words = f"profiled by {each.tool}: {quantity(each.bytes, 'B')} at {NAMES[each.level]}"
            title = f"<title>{escape(point.name)}: {words}, {times:.2f}x the declared</title>"
            body = arrow_to(x0, y0, x, y) if math.hypot(x - x0, y - y0) >= 14 else ""
            body += f'<circle cx="{x:g}" cy="{y:g}" r="4.5">{title}</circle>'
            off = each.level != "dram"
            if not off:
                room.ring((x0, y0), (x, y))
            parts.append(group(f"{tokens(scene, point)} P-{each.level}", body, off, "traffic"))
    return parts


def arrow_to(x0: float, y0: float, x1: float, y1: float) -> str:
    """Return a line with an arrow head just before the candidate's mark."""
    long = math.hypot(x1 - x0, y1 - y0)
    ux, uy = (x1 - x0) / long, (y1 - y0) / long
    tx, ty = x1 - 6 * ux, y1 - 6 * uy
    bx, by = tx - 6 * ux, ty - 6 * uy
    head = f"M{tx:.1f} {ty:.1f}L{bx - 3 * uy:.1f} {by + 3 * ux:.1f} {bx + 3 * uy:.1f}"
    return f'<path d="M{x0:g} {y0:g}L{bx:.1f} {by:.1f}"/><path d="{head} {by - 3 * ux:.1f}z"/>'


def point_marks(scene: Scene, numbers: Sequence[int], at: Places) -> str:
    """Return one `<use>` a point, its area by its share of time, small ones over large ones."""
    points = scene.sheet.points
    largest = max((points[n].share_of_time for n in numbers), default=1.0)
    groups: dict[tuple[str, str], list[str]] = {}
    for n in sorted(numbers, key=lambda n: -points[n].share_of_time):
        point = points[n]
        size = max(_SMALLEST, _LARGEST * math.sqrt(point.share_of_time / largest))
        x, y = at[n]
        use = f'<use href="#k-{scene.mark(point)}" x="{x:g}" y="{y:g}"'
        use += f' style="--s:{size:.2f};--o:{x:g}px {y:g}px"'
        key = (tokens(scene, point), look(scene, point))
        groups.setdefault(key, []).append(f'{use} data-r="{n}"/>')
    drawn = (group(words, "".join(uses), kind=kind) for (words, kind), uses in groups.items())
    body = "".join(drawn)
    name = "points: arrow keys go from one to the next, Enter to its row"
    return f'<g class="points" tabindex="0" role="group" aria-label="{name}">{body}</g>'


def look(scene: Scene, point: Point) -> str:
    """Return CSS classes: colour; filled when measured, hollow when predicted, pale when hot."""
    kind = {"cold": "m", "hot": "m hot", "predicted": "p"}[point.regime]
    return f"i{scene.number(point) % 4} {kind}"


def warning_marks(scene: Scene, at: Places, room: Room) -> list[str]:
    """Return a warning mark for each point above its ceiling."""
    parts = []
    for n, (x, y) in at.items():
        point = scene.sheet.points[n]
        if point.held.above:
            box = f"M{x:g} {y - 19:g}l6 10h-12z"
            body = f'<path class="warn" d="{box}"/><text class="warn" x="{x:g}" y="{y - 10.5:g}">!'
            parts.append(group(tokens(scene, point), f"{body}</text>"))
            room.take(x - 7, y - 9, "xx")
    return parts


def points_to_label(scene: Scene, numbers: Sequence[int], most: int) -> list[tuple[int, str]]:
    """Return index and kernel name of the points to label, at most `most`. Of each kernel it is the
    best of the problem that takes most time; kernels with most time first."""
    points, best = scene.sheet.points, set(bests(scene.sheet))
    order = [n for n in numbers if n in best]
    order.sort(key=lambda n: (points[n].regime != "cold", -points[n].share_of_time))
    first: dict[str, int] = {}
    for n in order:
        first.setdefault(points[n].record.case.kernel, n)
    chosen = sorted(first.values(), key=lambda n: -points[n].share_of_time)[:most]
    return [(n, points[n].record.case.kernel) for n in chosen]


def _names(scene: Scene, at: Places, room: Room) -> list[str]:
    parts = []
    for n, name in points_to_label(scene, scene.placed, MOST_LABELS):
        x, y = at[n]
        spot = room.find(x, y, name, 12, far=True)
        if spot:
            words = f"{tokens(scene, scene.sheet.points[n])} N"
            text = f'<text class="name" x="{spot[0]:g}" y="{spot[1]:g}">{escape(name)}</text>'
            nearest = min(max(x, spot[0]), spot[0] + CHAR * len(name)), spot[1] - 4
            if math.hypot(nearest[0] - x, nearest[1] - y) > 24:
                edge = spot[1] + (3 if spot[1] < y else -11)
                text = f'<path class="lead" d="M{x:g} {y:g}L{nearest[0]:g} {edge:g}"/>{text}'
            parts.append(group(words, text))
    return parts


def _ridge_names(ax: Any, scene: Scene, room: Room) -> list[str]:
    """Return FLOP/byte beside each ridge that has space; the labels at the right have all."""
    parts = []
    for line in sorted(scene.lines, key=lambda n: (not n.ceiling.is_measured, -n.ceiling.value)):
        if not line.ridge or not scene.x[0] < line.ridge < scene.x[1]:
            continue
        words = f"{line.ridge:.3g}"
        off = scene.off(line)
        x, y = place(ax, line.ridge, line.ceiling.value)
        spot = (x + 6, y - 6) if off else room.find(x, y, words, 6)
        if spot:
            text = f'<text x="{spot[0]:g}" y="{spot[1]:g}">{words}</text>'
            parts.append(group(line_tokens(scene, line), text, off, f"{ink_of(scene, line)} at"))
    return parts
