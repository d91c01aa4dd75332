"""Lay out a roofline and a strip: axes by matplotlib, all else as shapes over them.

A legend of the page switches parts of them, and each point is linked with its row. The switches of
a group are words separated by spaces, each of which is one or more switches joined by `|`: it is
hidden where all switches of one of its words are off.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from markupsafe import Markup

from workbench.data.record import group_by
from workbench.data.units import quantity
from workbench.reports import figure, figure_svg, place
from workbench.reports.figures.drawing import axes, decades, frame, plain_ticks
from workbench.reports.figures.profiled_traffic import NAMES
from workbench.reports.figures.roofline_points import Point
from workbench.reports.figures.room import CHAR, Place, Room
from workbench.reports.figures.scene import Line, Scene, mark_of, points_to_label
from workbench.reports.figures.shapes import Label, Path, PointMark, Ring, ShapeGroup, segment, svg

LINE, ROW = 14, 30  # px, of a label and of a kernel in the strip
_SMALLEST = 0.62  # scale of the smallest marks: smaller ones are hard to hit with a pointer
Ends = tuple[Place, Place]  # of a line: FLOP/B, FLOP/s


class Form(NamedTuple):
    """Places of the axes in px, and how many points and changes are named."""

    width: float
    left: float
    top: float
    plot_width: float
    plot_height: float
    aside: float  # of the strip's axes from the left
    names: int
    changes: int
    largest: float  # scale of the mark with the largest share of time
    scale: float = 1.0  # points of a px
    has_key: bool = False  # ceilings are named below the picture


# A chart is up to 1/4 wider where its labels are long.
PAGE = Form(1120, 78, 14, 770, 548, 190, 14, 12, 2.3)


@dataclass(frozen=True)
class Picture:
    """A picture under way, of points by their index; in a strip they lie on the lines of rows."""

    scene: Scene
    form: Form
    ax: Any
    room: Room
    numbers: Sequence[int]
    strip: bool = False

    def point(self, n: int) -> Point:
        """Return a point by its index."""
        return self.scene.sheet.points[n]

    def place(self, x: float, y: float) -> Place:
        """Return the place of data."""
        return place(self.ax, x, y, self.form.scale)

    def spot(self, point: Point, seconds: float) -> Place:
        """Return the place of a point that takes so many seconds."""
        if self.strip:
            row = self.scene.strip_kernels.index(point.record.case.kernel)
            return self.place(point.load.bytes / seconds / 1e9, row)
        return self.place(point.load.intensity or 1.0, point.load.flops / seconds)

    @cached_property
    def places(self) -> dict[int, Place]:
        """Return the places of its points."""
        points = ((n, self.point(n)) for n in self.numbers)
        return {n: self.spot(p, p.load.time_s) for n, p in points}


def chart(scene: Scene, prefix: str) -> Markup:
    """Return rate against arithmetic intensity, log-log, under the ceilings of every device."""
    scene = replace(scene, y=(scene.y[0], _top(scene)))
    longest = max((len(scene.label(n)) for n in scene.lines if n.dtypes), default=0)
    width = PAGE.left + PAGE.plot_width + 40 + CHAR * longest
    fig = figure(round(min(1.25 * PAGE.width, max(PAGE.width, width))), 620)
    return figure_svg(fig, prefix, "Roofline", svg(chart_shapes(fig, scene, PAGE)))


def strip(scene: Scene, prefix: str) -> Markup:
    """Return the rate of least bytes of kernels without arithmetic, a row for each."""
    top = 18 + LINE * min(4, len(_bandwidths(scene)))
    fig = figure(PAGE.width, top + ROW * len(scene.strip_kernels) + 52)
    return figure_svg(fig, prefix, "Bandwidth", svg(strip_shapes(fig, scene, PAGE, top)))


def chart_shapes(fig: Any, scene: Scene, form: Form) -> list[Any]:
    """Draw the axes of a roofline; returns the shapes over them."""
    ax = axes(fig, *form[1:5], scale=form.scale)
    ax.set(xscale="log", yscale="log", xlim=scene.x, ylim=scene.y)
    ax.set(xlabel="arithmetic intensity, FLOP per byte of least traffic", ylabel="rate, FLOP/s")
    decades(ax, form.scale)
    ax.set_axisbelow(True)
    room = Room(form.plot_width, form.plot_height, form.left, form.top)
    picture = Picture(scene, form, ax, room, scene.placed_points)
    room.dots = list(picture.places.values())
    traffic = _traffic(picture)
    parts = [*_ceilings(picture), *_whiskers(picture), *_arrows(picture), *traffic]
    parts += [points_group(picture), *_warnings(picture), *_names(picture)]
    return parts if form.has_key else [*parts, *_ridge_names(picture)]


def _top(scene: Scene) -> float:
    """Return the upper limit in FLOP/s that leaves room for memory's labels above all lines."""
    high = [n.end[1] for n in scene.lines if not scene.is_off(n)]
    low, labels = scene.y[0], sum(not n.dtypes for n in scene.lines)
    room = min(0.5 * PAGE.plot_height, LINE * labels + 14)
    needed = math.log10(max(high, default=low) / low) * PAGE.plot_height / (PAGE.plot_height - room)
    return max(scene.y[1], low * 10**needed)


# Ceilings.


def _ceilings(picture: Picture) -> list[ShapeGroup]:
    """Return bands and lines; labels of arithmetic are at the right, of memory at the upper left,
    where no point can be."""
    scene, room, form, at = picture.scene, picture.room, picture.form, picture.place
    right = form.left + form.plot_width
    beside = _label_baselines(picture)
    parts, sample = [], form.top + 14.0
    for line in scene.lines:
        value, off = line.ceiling.value, scene.is_off(line)
        ends = [at(*end) for end in _cut(scene, line, value)]
        shapes: list[Any] = [*_band(picture, line), segment(*ends, look=line.look)]
        if not off:
            room.cross(ends[0], ends[1])
        if line.dtypes and not form.has_key:
            y = beside[id(line)]
            shapes.append(segment(at(*line.end), (right + 14, y - 4), look="lead"))
            shapes += label_shapes(scene, line, right + 28, y)
        elif not form.has_key:
            shapes += key_shapes(scene, line, form.left + 10, sample)
            room.take(form.left + 4, sample, "x" * (12 + len(scene.label(line))))
            sample += LINE
        if scene.has_ridge(line):
            title = f"ridge of {line.words()}: {line.ridge:.3g} FLOP/B"
            room.dots.append(ridge := at(line.ridge or 0.0, value))
            shapes.append(Ring(ridge, 3, title, "ridge"))
        parts.append(_line_group(scene, line, shapes))
    return parts if form.has_key else [*parts, *_line_extensions(picture)]


def _line_group(scene: Scene, line: Line, shapes: Sequence[Any], more: str = "") -> ShapeGroup:
    look = scene.line_colour(line) + more
    return ShapeGroup(scene.line_switches(line), shapes, look, scene.is_off(line))


def _line_extensions(picture: Picture) -> list[ShapeGroup]:
    """Return extensions of memory's lines up to the ceilings that are switched off at first."""
    parts, scene, at = [], picture.scene, picture.place
    for line in (n for n in scene.lines if not n.dtypes):
        c = line.ceiling
        for flat in (n for n in scene.lines if n.dtypes and scene.is_off(n)):
            end = flat.ceiling.value / c.value
            if flat.ceiling.device != c.device or end <= line.end[0]:
                continue
            words = f"{scene.line_switches(line)} {'|'.join(f'T-{d}' for d in flat.dtypes)}"
            words += f" S-{flat.ceiling.state}" if flat.has_pair else ""
            rest = segment(at(*line.end), at(end, flat.ceiling.value), look=line.look)
            parts.append(ShapeGroup(words, [rest], scene.line_colour(line), True))
    return parts


def _label_baselines(picture: Picture) -> dict[int, float]:
    """Return the baselines of the labels at the right: in the lines' order, a line apart."""
    flat = [line for line in picture.scene.lines if line.dtypes]
    flat.sort(key=lambda line: -line.ceiling.value)
    wanted = [picture.place(*line.end)[1] + 4 for line in flat]
    highest = PAGE.top + 8.0
    ys: list[float] = []
    for y in wanted:
        ys.append(max(y, ys[-1] + LINE if ys else highest))
    for n in range(len(ys) - 2, -1, -1):  # those pushed down push the ones above up again
        slack = (ys[n + 1] - wanted[n + 1]) / 2
        lowest = ys[n - 1] + LINE if n else highest
        ys[n] = max(lowest, ys[n] - slack) if slack > 0 else ys[n]
    return {id(line): y for line, y in zip(flat, ys, strict=True)}


def label_shapes(
    scene: Scene, line: Line, x: float, y: float, brief: bool = False, look: str = ""
) -> list[Any]:
    """Return a ceiling's label, after the mark of its device where there are several."""
    number = scene.sheet.devices.index(line.ceiling.device)
    mark = [PointMark((x - 9, y - 4), mark_of(number))] if scene.several and not look else []
    return [*mark, Label((x, y), scene.label(line, brief), look)]


def key_shapes(scene: Scene, line: Line, x: float, y: float, brief: bool = False) -> list[Any]:
    """Return a sample of a ceiling's line and its label."""
    sample = segment((x, y - 4), (x + 26, y - 4), look=line.look)
    return [sample, *label_shapes(scene, line, x + 48, y, brief)]


def _band(picture: Picture, line: Line) -> list[Path]:
    low, high = line.ceiling.low, line.ceiling.high
    if not line.ceiling.is_measured or not low or not high:
        return []
    (a, b), (d, c) = (_cut(picture.scene, line, value) for value in (low, high))
    return [Path([[picture.place(*each) for each in (a, b, c, d)]], "band", is_closed=True)]


def _cut(scene: Scene, line: Line, value: float) -> Ends:
    """Return a ceiling's ends at this value of it, clipped to the axes."""
    if line.dtypes:
        return (line.start[0], value), (line.end[0], value)
    first = max(scene.x[0], scene.y[0] / value)
    return (first, first * value), (line.end[0], line.end[0] * value)


def _ridge_names(picture: Picture) -> list[ShapeGroup]:
    """Return FLOP/byte beside each ridge that has space; the labels at the right have all."""
    scene, parts = picture.scene, []
    for line in sorted(scene.lines, key=lambda n: (not n.ceiling.is_measured, -n.ceiling.value)):
        if scene.has_ridge(line):
            words = f"{line.ridge:.3g}"
            x, y = picture.place(line.ridge or 0.0, line.ceiling.value)
            spot = (x + 6, y - 6) if scene.is_off(line) else picture.room.find((x, y), words, 6)
            if spot:
                parts.append(_line_group(scene, line, [Label(spot, words)], " at"))
    return parts


# Points.


def points_group(picture: Picture) -> ShapeGroup:
    """Return a mark for each point, its area by its share of time, small ones over large ones."""
    scene = picture.scene
    largest = max((picture.point(n).share_of_time for n in picture.places), default=1.0)

    def mark(n: int) -> PointMark:
        share = math.sqrt(picture.point(n).share_of_time / largest)
        size = max(_SMALLEST, picture.form.largest * share)
        return PointMark(picture.places[n], scene.mark(picture.point(n)), size, n)

    ordered = sorted(picture.places, key=lambda n: -picture.point(n).share_of_time)
    groups = group_by(ordered, lambda n: _looks(scene, picture.point(n)))
    parts = [ShapeGroup(words, [*map(mark, some)], look) for (words, look), some in groups.items()]
    return ShapeGroup("", parts, "points")


def _looks(scene: Scene, point: Point) -> tuple[str, str]:
    """Return switches and CSS classes: colour; filled when measured, hollow when predicted, pale
    when hot."""
    kind = {"cold": "m", "hot": "m hot", "predicted": "p"}[point.regime]
    return scene.switches(point), f"i{scene.number(point) % 4} {kind}"


def _whiskers(picture: Picture) -> list[ShapeGroup]:
    """Return the intervals of points, with caps where they are long enough to be seen."""
    lines: dict[tuple[str, str], list[Sequence[Place]]] = {}
    for n in picture.places:
        point = picture.point(n)
        if point.bar_s is None:
            continue
        a, b = (picture.spot(point, seconds) for seconds in point.bar_s)
        long = math.dist(a, b)
        look = f"{picture.scene.switches(point)} W", f"i{picture.scene.number(point) % 4}"
        drawn = lines.setdefault(look, [])
        drawn.append((a, b))
        if long > 2:
            x, y = 3 * (b[1] - a[1]) / long, 3 * (b[0] - a[0]) / long
            drawn += [((ex - x, ey - y), (ex + x, ey + y)) for ex, ey in (a, b)]
    return [ShapeGroup(words, [Path(some, "whisk")], look) for (words, look), some in lines.items()]


def _arrows(picture: Picture) -> list[ShapeGroup]:
    """Return arrows from baseline to candidate; the largest changes are labelled first."""
    at = picture.places
    drawn = [a for a in picture.scene.sheet.arrows if a.start in at and a.end in at]
    drawn.sort(key=lambda a: -abs(a.change) * picture.point(a.start).share_of_time)
    parts = []
    for number, arrow in enumerate(drawn):
        start, (x, y) = at[arrow.start], at[arrow.end]
        long = math.dist(start, (x, y))
        shapes: list[Any] = [*_arrow(start, (x, y), 12)]
        words = f"{100 * arrow.change:+.{int(picture.strip)}f} %".replace("-", "−")
        beside = (start[1] + y) / 2 if long > 30 else y
        gap = 14 if picture.strip else 8
        spot = picture.room.find((x, beside), words, gap) if long >= 5 or picture.strip else None
        if spot and number < picture.form.changes:
            shapes.append(Label(spot, words, "change"))
        slower = "arrow slower" if arrow.change > 0 else "arrow"
        if shapes:
            switches = f"{picture.scene.switches(picture.point(arrow.end))} A"
            parts.append(ShapeGroup(switches, shapes, slower))
    return parts


def _arrow(start: Place, end: Place, least: float) -> list[Path]:
    """Return a line with an arrow head just before a mark; empty where it is shorter than the
    least."""
    long = math.dist(start, end)
    if long < least:
        return []
    ux, uy = (end[0] - start[0]) / long, (end[1] - start[1]) / long
    tip = end[0] - 6 * ux, end[1] - 6 * uy
    x, y = tip[0] - 6 * ux, tip[1] - 6 * uy
    head = tip, (x - 3 * uy, y + 3 * ux), (x + 3 * uy, y - 3 * ux)
    return [segment(start, (x, y)), Path([head], is_closed=True)]


def _traffic(picture: Picture) -> list[ShapeGroup]:
    """Return rings where a profiler's bytes and FLOPs put a point, each at the end of an arrow from
    where its declared ones do."""
    parts = []
    for n, start in picture.places.items():
        point = picture.point(n)
        for each in point.traffic:
            end = picture.place(each.flops / each.bytes, each.flops / point.load.time_s)
            times = each.bytes / point.load.bytes
            words = f"profiled by {each.tool}: {quantity(each.bytes, 'B')} at {NAMES[each.level]}"
            ring = Ring(end, 4.5, f"{point.name}: {words}, {times:.2f}x the declared")
            off = each.level != "dram"
            if not off:
                picture.room.ring(start, end)
            switches = f"{picture.scene.switches(point)} P-{each.level}"
            parts.append(ShapeGroup(switches, [*_arrow(start, end, 14), ring], "traffic", off))
    return parts


def _warnings(picture: Picture) -> list[ShapeGroup]:
    """Return a warning mark for each point above its ceiling."""
    parts = []
    for n, (x, y) in picture.places.items():
        point = picture.point(n)
        if point.limit.excess_reason:
            box = Path([[(x, y - 19), (x + 6, y - 9), (x - 6, y - 9)]], "warn", is_closed=True)
            shapes = [box, Label((x, y - 10.5), "!", "warn")]
            parts.append(ShapeGroup(picture.scene.switches(point), shapes))
            picture.room.take(x - 7, y - 9, "xx")
    return parts


def _names(picture: Picture) -> list[ShapeGroup]:
    """Return the names of the main points, with a line to the point where they are off it."""
    parts = []
    for n, name in points_to_label(picture.scene, picture.scene.placed_points, picture.form.names):
        x, y = picture.places[n]
        if spot := picture.room.find((x, y), name, 12, far=True):
            shapes: list[Any] = [Label(spot, name, "name")]
            nearest = min(max(x, spot[0]), spot[0] + CHAR * len(name)), spot[1] - 4
            if math.dist(nearest, (x, y)) > 24:
                edge = spot[1] + (3 if spot[1] < y else -11)
                shapes.insert(0, segment((x, y), (nearest[0], edge), look="lead"))
            parts.append(ShapeGroup(f"{picture.scene.switches(picture.point(n))} N", shapes))
    return parts


# The strip: kernels that declare no FLOPs, under the bandwidths.


def strip_shapes(fig: Any, scene: Scene, form: Form, top: float) -> list[Any]:
    """Draw the axes of a strip below `top`; returns the shapes over them."""
    points, kernels = scene.sheet.points, scene.strip_kernels
    down = ROW * len(kernels)
    ax = axes(fig, form.aside, top, form.width - form.aside - 24, down, scale=form.scale)
    lines = _bandwidths(scene)
    values = [points[n].bytes_rate / 1e9 for n in scene.strip]
    values += [line.ceiling.value / 1e9 for line in lines]
    low, high = min(values), max(values)
    if high > 10 * low:
        ax.set(xscale="log")
        low, high = low / 1.5, high * 1.5
    else:
        low, high = max(0.0, low - 0.1 * (high - low)), high + 0.06 * (high - low)
    if low == high:
        low, high = 0.9 * low, 1.1 * high
    ax.set(xlim=(low, high), ylim=(len(kernels) - 0.5, -0.5))
    ax.set(xlabel="least bytes over time, GB/s")
    ax.set_yticks(range(len(kernels)), kernels)
    ax.tick_params(axis="y", length=0)
    plain_ticks(ax.xaxis)
    frame(ax, ("bottom",), form.scale)

    room = Room(form.width, top + down, 0, 0)
    picture = Picture(scene, form, ax, room, scene.strip, strip=True)
    room.dots = list(picture.places.values())
    parts = [*_uprights(picture, lines, top), *_whiskers(picture), *_arrows(picture)]
    return [*parts, points_group(picture), *_warnings(picture)]


def _bandwidths(scene: Scene) -> list[Line]:
    """Return DRAM's lines, and the cache's where a point is near: it would compress the range."""
    reach = 1.3 * max(scene.sheet.points[n].bytes_rate for n in scene.strip)
    memory = [line for line in scene.lines if not line.dtypes]
    return [n for n in memory if n.ceiling.level == "dram" or n.ceiling.value <= reach]


def _uprights(picture: Picture, lines: Sequence[Line], top: float) -> list[ShapeGroup]:
    """Return the bandwidths as upright lines, each with its label above."""
    scene, parts, ends = picture.scene, [], [1e9] * 4
    bottom = picture.place(1.0, picture.ax.get_ylim()[0])[1]
    for line in sorted(lines, key=lambda n: -n.ceiling.value):
        c = line.ceiling
        known = [v for v in (c.low, c.high) if v and c.is_measured]
        x, *band = (picture.place(v / 1e9, 0)[0] for v in (c.value, *known))
        row = next((n for n, end in enumerate(ends) if x <= end), 3)
        ends[row] = x - CHAR * len(scene.label(line)) - 26
        y = top if picture.form.has_key else top - 6 - LINE * row
        shapes: list[Any] = [segment((x, y + 3), (x, bottom), look=line.look)]
        picture.room.cross((x, y), (x, bottom))
        if not picture.form.has_key:
            shapes += label_shapes(scene, line, x, y, look="end")
        if len(band) == 2:
            box = [(band[n], high) for n, high in ((0, top), (1, top), (1, bottom), (0, bottom))]
            shapes.append(Path([box], "band", is_closed=True))
        parts.append(_line_group(scene, line, shapes))
    return parts
