"""Roofline report: kernels of any stored runs under the ceilings of their devices.

Everything here is a pure function of records, and runs without torch and Triton.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from markupsafe import Markup

from workbench.data.record import Measured, group_by
from workbench.data.units import (
    amount,
    duration,
    four_digits,
    microseconds,
    percent,
    quantity,
    rough,
)
from workbench.device.apple_model import EMULATED, INTERVALS
from workbench.device.ceilings import LEVELS, Ceiling, CeilingSet, Level, clock_words
from workbench.device.error_band import EXPECTED, expected_words
from workbench.reports import render
from workbench.reports.figures import roofline as draw
from workbench.reports.figures.profiled_traffic import NAMES, excess
from workbench.reports.figures.roofline_points import (
    COLUMNS,
    Point,
    Sheet,
    bests,
    plain_ceilings,
    rows,
)
from workbench.reports.figures.scene import Scene, scene_of
from workbench.reports.figures.table import knob_names, knob_numbers

ENGINES: tuple[str, ...] = ()  # it draws runs of all engines, but is no engine's own page

_SHOWN: tuple[Level, ...] = ("dram", "cache", "shared")
_PLURAL = {
    "below its ceilings": "below their ceilings",
    "above its ceiling": "above their ceilings",
    "unknown": "without a ceiling",
}
_CLOCKS = {"sustained": "sustained", "boost": "boost (dash-dotted)"}
_KINDS = {"cold": "cold, measured", "hot": "hot, measured", "predicted": "predicted"}


def page(sheet: Sheet) -> str:
    """Return the page as HTML. A sheet without points gives a page, too."""
    scene, heads = scene_of(sheet), _heads(sheet)
    knobs = knob_names([p.record for p in sheet.points])
    return render(
        "roofline.html.j2",
        sheet=sheet,
        title=_title(sheet),
        scope=_scope(sheet),
        sentence=sentence(sheet),
        predicted=[d for d in sheet.devices if _is_predicted(sheet, d)],
        emulated=EMULATED if _is_emulated(sheet) else "",
        intervals=INTERVALS,
        chart=draw.chart(scene, "roof") if scene.placed_points else None,
        strip=draw.strip(scene, "strip") if scene.strip else None,
        switches=_switches(scene),
        marks=scene.looks(),
        ceilings=_ceilings(sheet),
        failed=[
            (d, name, reason.rstrip("."))
            for d, ceiling_set in sheet.ceilings.items()
            for name, reason in ceiling_set.failures
        ],
        held=_kernel_diagnoses(sheet),
        warned=[
            (p.record.case.kernel, p.name, p.sizes, p.limit.sentence)
            for p in sheet.points
            if p.limit.excess_reason
        ],
        pair=_pair(sheet),
        heads=heads,
        knobs=knobs,
        rows=[
            _row(n, p, heads) | {"numbers": knob_numbers(p.record, knobs)}
            for n, p in enumerate(sheet.points)
        ],
        kernels=sorted({p.record.case.kernel for p in sheet.points}),
        data=Markup(_data(sheet)),
        protocols=_protocols(sheet),
    )


# The head of the page.


def _is_emulated(sheet: Sheet) -> bool:
    """Return whether every point is a prediction of a Metal kernel."""
    records = [point.record for point in sheet.points]
    return bool(records) and all(r.case.backend == "metal" and not r.is_measured for r in records)


def sentence(sheet: Sheet) -> str:
    """Return in a sentence what limits the best of each problem, and where most is to gain."""
    if not sheet.points:
        return "No record with a time is among these runs, so there is nothing to draw."
    best = [sheet.points[n] for n in bests(sheet)]
    order = Counter(p.limit.word for p in best).most_common()
    each = [f"{n} {word if n == 1 else _PLURAL.get(word, word)}" for word, n in order]
    if all(p.load.span_s for p in best):
        return f"{amount(len(best), 'problem')}, each predicted as an interval, so none is ranked."
    start = f"{amount(len(best), 'problem')}: {', '.join(each)}"
    able = [p for p in best if p.limit.gain_s]
    able = [p for p in able if p.regime != "predicted"] or able
    if not able:
        return f"{start}."
    most = max(able, key=lambda p: p.limit.gain_s or 0.0)
    gain = duration(most.limit.gain_s or 0.0)
    about = "is predicted to have" if most.regime == "predicted" else "has"
    case = most.record.case
    at = f" at {most.sizes}" if most.sizes else ""
    at += f" on {case.device}" if len({p.record.case.device for p in best}) > 1 else ""
    whole = duration(most.load.time_s)
    return f"{start}. {case.kernel}{at} {about} most to gain: {gain} of {whole}."


def _title(sheet: Sheet) -> str:
    kernels = list(dict.fromkeys(p.record.case.kernel for p in sheet.points))
    if len(kernels) == 1:
        return kernels[0]
    return f"{len(kernels)} kernels" if kernels else "nothing"


def _scope(sheet: Sheet) -> list[tuple[str, str]]:
    measured = sum(p.regime != "predicted" for p in sheet.points)
    counts = {"measured": measured, "predicted": len(sheet.points) - measured}
    days = sorted({run.started[:10] for run in sheet.runs})
    span = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    shown = [
        ("Devices", ", ".join(sheet.devices) or "none"),
        ("Points", ", ".join(f"{n} {kind}" for kind, n in counts.items() if n) or "none"),
        ("Runs", f"{len(sheet.runs)}" + (f", {span}" if span else "")),
    ]
    if sheet.silent:
        count = sum(sheet.silent.values())
        kernels = ", ".join(sorted({what.split()[0] for what in sheet.silent}))
        shown.append(("Gave no time", f"{count} of {kernels}; the pages of their runs say why"))
    if sheet.apart:
        text = (
            f"{amount(sheet.apart, 'time')} of parts of kernels, from experiments; --all has them"
        )
        shown.append(("Left out", text))
    return shown


def _is_predicted(sheet: Sheet, device: str) -> bool:
    points = [p for p in sheet.points if p.device == device]
    return bool(points) and all(p.regime == "predicted" for p in points)


# The legend.


def _switches(scene: Scene) -> list[dict[str, Any]]:
    """Return groups of switches: the word that elements carry, its name, whether it is on."""
    sheet, points = scene.sheet, scene.sheet.points
    levels = [level for level in _SHOWN if any(n.ceiling.level == level for n in scene.lines)]
    dtypes = {d for n in scene.lines for d in n.dtypes}
    dtypes |= {p.record.case.dtype for p in points}
    kinds = [kind for kind in _KINDS if any(p.regime == kind for p in points)]
    names = {True: ("O-measured", "measured (solid)"), False: ("O-stated", "stated (dashed)")}
    there = {n.ceiling.is_measured for n in scene.lines}
    origins = [switch for measured, switch in names.items() if measured in there]
    profiled = {t.level for p in points for t in p.traffic}
    paired = {n.ceiling.state for n in scene.lines if n.has_pair}
    clocks = [(f"S-{s}", n, s in scene.states) for s, n in _CLOCKS.items() if s in paired]
    groups = [
        ("Memory", [(f"L-{level}", LEVELS[level], True) for level in levels]),
        ("Dtypes", [(f"T-{d}", d, d in scene.dtypes) for d in sorted(dtypes)]),
        ("Ceilings", [(word, name, True) for word, name in origins]),
        ("Clock", clocks),
        ("Points", [(f"K-{kind}", _KINDS[kind], True) for kind in kinds]),
        ("Profiled", [(f"P-{k}", name, k == "dram") for k, name in NAMES.items() if k in profiled]),
        ("Shown", [("W", "intervals", True), ("A", "arrows", True), ("N", "names", True)]),
    ]
    if len(sheet.devices) > 1:
        groups.insert(0, ("Devices", [(f"D{n}", d, True) for n, d in enumerate(sheet.devices)]))
    return [{"name": name, "switches": each} for name, each in groups if each]


# Tables.


def _ceilings(sheet: Sheet) -> list[dict[str, Any]]:
    return [
        {
            "device": c.device,
            "what": c.what,
            "name": c.name,
            "origin": c.origin,
            "clock": c.state + (f", {c.clock_mhz:.0f} MHz" if c.clock_mhz else ""),
            "value": quantity(c.value, c.unit),
            "low": "" if c.low is None else quantity(c.low, c.unit),
            "high": "" if c.high is None else quantity(c.high, c.unit),
            "ridge": _ridge(c, ceiling_set),
            "source": c.source + (f"; {c.run}" if c.run and c.is_measured else ""),
            "drawn": "drawn" if c in ceiling_set.lines() else "",
        }
        for ceiling_set in sheet.ceilings.values()
        for c in sorted(ceiling_set.ceilings, key=_table_order)
    ]


def _table_order(c: Ceiling) -> tuple[int, str, str, bool, str]:
    """Return the order of a ceiling in the table: both states of one limit lie together."""
    return list(LEVELS).index(c.level), c.dtype, c.stem, not c.is_measured, c.name


def _ridge(c: Ceiling, ceilings: CeilingSet) -> str:
    ridge = ceilings.ridge(c) if c.level == "compute" else None
    return f"{ridge:.3g}" if ridge else ""


def _kernel_diagnoses(sheet: Sheet) -> list[dict[str, str]]:
    """Return, for each kernel of each device, the diagnosis of the problem with most to gain."""
    kernels = [(p.device, p.record.case.kernel) for p in sheet.points]
    text = []
    for (device, kernel), numbers in group_by(bests(sheet), lambda n: kernels[n]).items():
        cold = [n for n in numbers if sheet.points[n].regime != "hot"] or numbers
        row = max(cold, key=lambda n: _weight(sheet.points[n]))
        most = sheet.points[row]
        which = "the longest" if most.load.span_s else "the most to gain"
        rest = "" if len(cold) == 1 else f"{which} of {len(cold)} problems"
        at = ", ".join(filter(None, (most.sizes, most.record.case.dtype)))
        about = {"device": device, "kernel": kernel, "at": at, "rest": rest}
        text.append({**about, "words": most.limit.sentence, "row": str(row)})
    return text


def _weight(p: Point) -> float:
    """Return the seconds that a point may gain, or of an interval its upper end."""
    return p.load.span_s[1] if p.load.span_s else p.limit.gain_s or 0.0


def _pair(sheet: Sheet) -> dict[str, Any]:
    """Return two devices side by side: their ceilings, and the problems that both have timed."""
    if len(sheet.devices) != 2:
        return {}
    one, other = sheet.devices
    return {
        "names": (one, other),
        "ceilings": _pair_of_ceilings(sheet.ceilings[one], sheet.ceilings[other]),
        "times": _pair_of_times(sheet, one, other),
    }


def _pair_of_ceilings(one: CeilingSet, other: CeilingSet) -> list[list[str]]:
    """Return a row for each ceiling that both have from the same kind of source."""
    lines = []
    theirs = {(d.level, d.dtype, d.is_measured, d.state): d for d in reversed(other.lines())}
    for c in one.lines():
        if d := theirs.get((c.level, c.dtype, c.is_measured, c.state)):
            origin = c.origin if c.origin == d.origin else f"{c.origin}; {d.origin}"
            origin += f", {clock_words(c.state)}" if c.state else ""
            values = [quantity(each.value, each.unit) for each in (c, d)]
            lines.append([c.what, origin, *values, f"{d.value / c.value:.2f}x"])
    return lines


def _pair_of_times(sheet: Sheet, one: str, other: str) -> list[list[str]]:
    """Return a row for each problem and regime; predicted times stand in for cold ones, marked."""
    best: dict[Any, dict[str, Point]] = {}
    for p in (sheet.points[n] for n in bests(sheet)):
        if p.record.case.is_baseline:
            continue
        case, regime = p.record.case, "hot" if p.regime == "hot" else "cold"
        regime += ", by the host's clock" if p.load.host else ""
        here = best.setdefault((case.kernel, p.sizes, case.dtype, regime), {})
        before = here.get(p.device)
        if before is None or before.regime == "predicted":  # a measured time has precedence
            here[p.device] = p
    lines = []
    for (kernel, sizes, dtype, regime), result in best.items():
        if {one, other} <= result.keys():
            a, b = result[one], result[other]
            ratio = a.load.time_s / b.load.time_s
            unsure = "~" if "predicted" in (a.regime, b.regime) else ""
            has_times = not (a.load.span_s or b.load.span_s)
            times = [time_text(a), time_text(b), f"{unsure}{ratio:.2f}x" if has_times else ""]
            lines.append([kernel, sizes, dtype, regime, *times, _share(a), _share(b)])
    return lines


def time_text(p: Point) -> str:
    """Return `12.3 µs`, `~12.3 µs` where it is predicted, or the interval that a model states."""
    if p.load.span_s:
        return " to ".join(map(rough, p.load.span_s))
    return ("~" if p.regime == "predicted" else "") + duration(p.load.time_s)


def _share(p: Point) -> str:
    about = "~" if p.regime == "predicted" else ""
    return about + percent(p.limit.share) if p.limit.share is not None else ""


class Head(NamedTuple):
    """A column of the table of all points: its name, and the text of a point's cell."""

    name: str
    cell: Callable[[Point], str]
    text: bool = False
    falls: bool = False  # sorts the highest first
    minor: bool = False  # left out in print
    exact: bool = False  # independent of time, so exact for a prediction, too

    @property
    def css(self) -> str:
        """Return the CSS classes of its cells."""
        words = self.name == "diagnosis"
        names = {"say": words, "t": self.text and not words, "x": self.minor, "e": self.exact}
        return " ".join(name for name, present in names.items() if present)


def _heads(sheet: Sheet) -> list[Head]:
    changes = {a.end: a.change for a in reversed(sheet.arrows)}
    change = {id(sheet.points[n]): f"{100 * change:+.1f}" for n, change in changes.items()}
    rate, work = partial(Head, falls=True), partial(Head, falls=True, exact=True)
    every = (
        Head("sizes", lambda p: p.sizes, text=True),
        Head("dtype", lambda p: p.record.case.dtype, text=True),
        Head("device", lambda p: p.device, text=True),
        Head("time, µs", lambda p: "" if p.load.span_s else microseconds(p.load.time_s)),
        Head("predicted interval, µs", _predicted_text, text=True),
        rate("of ceiling, %", lambda p: _or_nothing(p.limit.share, _hundred)),
        rate("to gain, µs", lambda p: _or_nothing(p.limit.gain_s, microseconds)),
        Head("diagnosis", lambda p: p.limit.sentence, text=True),
        Head(EXPECTED, lambda p: expected_words(p.record), text=True),
        Head("vs baseline, %", lambda p: change.get(id(p), "")),
        rate("share of time, %", lambda p: _hundred(p.share_of_time)),
        work("FLOP/B", lambda p: _or_nothing(p.load.intensity, four_digits)),
        work(
            "DRAM traffic, x declared",
            lambda p: _or_nothing(excess(p.record, p.traffic), four_digits),
        ),
        rate("TFLOP/s", lambda p: _rate(p, p.flops_rate / 1e12) if p.load.flops else ""),
        rate("GB/s", lambda p: _rate(p, p.bytes_rate / 1e9)),
        Head("95 % interval, µs", _interval, minor=True),
        Head("p5 to p95, µs", lambda p: "–".join(map(microseconds, p.whisker_s or ())), minor=True),
        rate("n", lambda p: str(len(p.timing.samples_s)) if p.timing else "", minor=True),
        work("MFLOP", lambda p: four_digits(p.load.flops / 1e6), minor=True),
        work("MB", lambda p: four_digits(p.load.bytes / 1e6), minor=True),
        Head("run", lambda p: p.record.run, text=True, minor=True),
    )
    sizes, dtype, device, *rest = every
    begin = [sizes, dtype, *([device] if len(sheet.devices) > 1 else [])]
    return [*begin, *(h for h in rest if any(map(h.cell, sheet.points)))]


def _rate(p: Point, value: float) -> str:
    """Return a rate; empty where the time is an interval."""
    return "" if p.load.span_s else four_digits(value)


def _predicted_text(p: Point) -> str:
    return "–".join(map(microseconds, p.load.span_s or ()))


def _interval(p: Point) -> str:
    t = p.timing
    return f"{microseconds(t.low_s)}–{microseconds(t.high_s)}" if t else ""


def _hundred(share: float) -> str:
    return four_digits(100 * share)


def _or_nothing(value: float | None, write: Callable[[float], str]) -> str:
    return "" if value is None else write(value)


def _row(n: int, p: Point, heads: Sequence[Head]) -> dict[str, Any]:
    """Return a point's cells under `heads`. The style sheet puts `~` before predicted values, so
    that a column still sorts by its numbers."""
    predicted = p.regime == "predicted"
    return {
        "n": n,
        "rank": n + 1,
        "kernel": p.record.case.kernel,
        "name": p.name,
        "tags": [p.role] if p.role else [],
        "state": "predicted" if predicted else f"{p.record.phase}, {p.regime}, {p.load.state}",
        "predicted": predicted,
        "above": bool(p.limit.excess_reason),
        "cells": [head.cell(p) for head in heads],
    }


def _data(sheet: Sheet) -> str:
    """Return every number drawn, for the page's downloads, as JSON that is safe inside a script. It
    is stored by column; in text columns each word is listed once, and the cells are indices."""
    lines = rows(sheet)
    columns = []
    for name in COLUMNS:
        cells = [line[name] for line in lines]
        words = list(dict.fromkeys(c for c in cells if isinstance(c, str)))
        place = {word: n for n, word in enumerate(words)}
        if words:
            cells = [place.get(c) for c in cells]
        columns.append([name, words, cells])
    text = {
        "columns": columns,
        "arrows": [[a.start, a.end, a.change, a.what] for a in sheet.arrows],
        "ceilings": plain_ceilings(sheet),
    }
    return json.dumps(text, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _protocols(sheet: Sheet) -> Sequence[str]:
    result = dict.fromkeys(
        f"{t.protocol}, {t.state} clock" if isinstance(t, Measured) else f"model {t.model}"
        for t in (p.record.timing for p in sheet.points)
    )
    return list(result)
