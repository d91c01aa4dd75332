"""The scene of a roofline: a sheet's limits and lines, and how its parts look and are switched."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.data.record import group_by
from workbench.data.units import quantity
from workbench.device.ceilings import LEVELS, Ceiling, clock_words
from workbench.reports.figures.drawing import MARKS
from workbench.reports.figures.roofline_points import Point, Sheet, bests


@dataclass(frozen=True)
class Line:
    """A ceiling as drawn; dtypes of equal value share one line."""

    ceiling: Ceiling
    dtypes: tuple[str, ...]
    start: tuple[float, float]  # FLOP/B, FLOP/s
    end: tuple[float, float]
    ridge: float | None = None
    has_pair: bool = False  # also measured in the other state, and switched with its own
    alike: bool = False  # in the other state it is the same, and not drawn again

    def words(self, brief: bool = False) -> str:
        """Return the label: `bf16, fp16 989 TFLOP/s, datasheet, boost clock`. A brief one has no
        origin."""
        what, c = ", ".join(self.dtypes) or LEVELS[self.ceiling.level], self.ceiling
        clock = "both clocks" if self.alike else clock_words(c.state)
        parts = f"{what} {quantity(c.value, c.unit)}", "" if brief else c.origin, clock
        words = ", ".join(filter(None, parts))
        return f"{words}; ridge {self.ridge:.3g}" if self.ridge else words

    @property
    def look(self) -> str:
        """Return its CSS classes: stated ceilings have dashes, those measured at the boost clock
        dashes and dots."""
        kind = "" if self.ceiling.is_measured else " stated"
        boost = self.ceiling.is_measured and self.ceiling.state == "boost"
        return f"roof{' boost' if boost else kind}"


@dataclass(frozen=True)
class Scene:
    """Contents and limits of a picture of a sheet: for pages and for papers."""

    sheet: Sheet
    x: tuple[float, float]
    y: tuple[float, float]
    lines: tuple[Line, ...]
    placed_points: tuple[int, ...]  # indices of points with an intensity in the sheet
    strip: tuple[int, ...]  # indices of those without FLOPs
    dtypes: tuple[str, ...]  # of points and of their ceilings: switched on at first
    states: tuple[str, ...]  # of the points' clocks: switched on at first

    def is_off(self, line: Line) -> bool:
        """Return whether a ceiling is switched off at first: no point computes in its dtype, or
        none has a time of its state and the other state is drawn."""
        if line.dtypes and not set(line.dtypes) & set(self.dtypes):
            return True
        return line.has_pair and line.ceiling.state not in self.states

    def number(self, point: Point) -> int:
        """Return the number of a point's look: by device where there are several, else by dtype."""
        if self.several:
            return self.sheet.devices.index(point.device)
        own = list(dict.fromkeys(p.record.case.dtype for p in self.sheet.points))
        return own.index(point.record.case.dtype)

    def mark(self, point: Point) -> str:
        """Return the name of a point's marker."""
        return "cross" if point.record.case.is_baseline else mark_of(self.number(point))

    @property
    def several(self) -> bool:
        """Return whether there are several devices, which then have the colours and marks."""
        return len(self.sheet.devices) > 1

    @property
    def strip_kernels(self) -> list[str]:
        """Return the names of the kernels without FLOPs, in the order of their points."""
        return list(dict.fromkeys(self.sheet.points[n].record.case.kernel for n in self.strip))

    def looks(self) -> list[tuple[str, int, str]]:
        """Return the legend of colours and marks: name, colour, mark."""
        points = self.sheet.points
        dtypes = dict.fromkeys(p.record.case.dtype for p in points)
        names = self.sheet.devices if self.several else list(dtypes)
        results = [(name, n % 4, mark_of(n)) for n, name in enumerate(names)]
        if any(p.record.case.is_baseline for p in points):
            results.append(("library, in the same colour", 0, "cross"))
        return results

    def label(self, line: Line, brief: bool = False) -> str:
        """Return a ceiling's label, with its device where there are several."""
        return (f"{line.ceiling.device}: " if self.several else "") + line.words(brief)

    def switches(self, point: Point) -> str:
        """Return the switches of a point."""
        device = self.sheet.devices.index(point.device)
        return f"D{device} T-{point.record.case.dtype} K-{point.regime} S-{point.load.state}"

    def line_switches(self, line: Line) -> str:
        """Return the switches of a ceiling."""
        c = line.ceiling
        device = self.sheet.devices.index(c.device)
        level = "|".join(f"T-{d}" for d in line.dtypes) if line.dtypes else f"L-{c.level}"
        state = f" S-{c.state}" if line.has_pair else ""
        return f"D{device} {level} O-{'measured' if c.is_measured else 'stated'}{state}"

    def line_colour(self, line: Line) -> str:
        """Return the CSS class of a ceiling's colour: its device's where there are several."""
        if self.several:
            return f"d{self.sheet.devices.index(line.ceiling.device) % 4}"
        return f"l-{line.ceiling.level}"

    def has_ridge(self, line: Line) -> bool:
        """Return whether a ceiling's ridge is within the axes."""
        return bool(line.ridge) and self.x[0] < (line.ridge or 0.0) < self.x[1]


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
    return replace(scene, lines=tuple(sorted(lines, key=scene.is_off)))


def _lines(drawn: Sequence[Ceiling], scene: Scene) -> list[Line]:
    x, dtypes = scene.x, set(scene.dtypes)
    memory = [c for c in drawn if c.level in ("dram", "cache", "shared")]
    both = Counter[tuple[str, str]]((c.level, c.dtype) for c in drawn if c.is_measured)
    compute = [c for c in drawn if c.level == "compute"]
    merged = group_by(compute, lambda c: (c.value, c.is_measured, c.state))
    widest = max((c.value for c in memory), default=None)
    flat = []
    for alike in merged.values():
        c = next((c for c in alike if c.dtype in dtypes), alike[0])
        start = max(x[0], c.value / widest) if widest else x[0]
        names = tuple(sorted(a.dtype for a in alike))
        ridge = scene.sheet.ceilings[c.device].ridge(c)
        ends = (start, c.value), (x[1], c.value)
        flat.append(_line(Line(c, names, *ends, ridge), both, scene))
    top = max((n.ceiling.value for n in flat if not scene.is_off(n)), default=math.inf)
    lines = []
    for c in memory:
        reach = min(x[1], top / c.value)
        ends = (x[0], x[0] * c.value), (reach, reach * c.value)
        lines.append(_line(Line(c, (), *ends), both, scene))
    return [*lines, *flat]


def _line(line: Line, both: Mapping[tuple[str, str], int], scene: Scene) -> Line:
    """Return the line with its relation to the other state; `both` counts measured limits."""
    c = line.ceiling
    paired = c.is_measured and both[c.level, c.dtype] > 1
    return replace(line, has_pair=paired, alike=scene.sheet.ceilings[c.device].alike(c))


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
