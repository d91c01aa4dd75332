"""Figures of a sweep's page: pure functions of records that return inline SVG.

matplotlib draws the axes; the points are laid over them as one `<use>` each, which keeps three
hundred configs in four figures small and links each point with its row.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup, escape

from workbench.data.record import Failure, LaunchKind, Measured, Outcome, Phase, Record
from workbench.data.selection import ConfigKey, best_per_group, config_key, interval_of
from workbench.data.units import digits
from workbench.reports import colour, figure, figure_svg, place
from workbench.reports.figures.drawing import (
    LIBRARY_MARKS,
    MARKS,
    ROW,
    SMALL,
    axes,
    bar,
    frame,
    note,
    one_two_five,
    plain_ticks,
    short_name,
)
from workbench.spec import knob_text, label

HEAT_STEPS = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0)  # a cell's time over the best; above: the last step
CHARACTER = 6.4  # px of one in a cell
FAR = 1.12  # a finalist's time over the fastest's, above which it is outside the axis


@dataclass(frozen=True)
class Board:
    """Context that the figures of one page share: rows of outcomes, looks of Impls, the unit."""

    rows: Mapping[int, int]  # id(outcome) -> row of the table
    impls: Sequence[str]  # swept ones in order, then baselines
    unit: tuple[float, str]  # of times: seconds in one, and its symbol
    best: Record | None
    libraries: Mapping[Phase, float]  # the best config's seconds in each phase that timed it
    # configs that the model does not tell from the shortest time; None where configs are ranked
    members: frozenset[ConfigKey] | None = None
    baselines: Sequence[str] = ()  # those of `impls` that are libraries
    launch_kind: LaunchKind = "default"  # see `Run.launch_kind`

    def row(self, outcome: Outcome) -> int:
        """Return the number of the table row that shows this outcome."""
        return self.rows[id(outcome)]

    def time(self, seconds: float) -> float:
        """Return seconds in the unit of this page."""
        return seconds / self.unit[0]

    def text(self, seconds: float | None) -> str:
        """Return a time without its unit, to four or five digits; empty for None."""
        if seconds is None:
            return ""
        value = self.time(seconds)
        digits = 0 if value >= 10000 else 1 if value >= 100 else 2 if value >= 1 else 3
        return f"{value:.{digits}f}"

    def time_text(self, record: Record) -> str:
        """Return a record's time as `text` does; the ends where a model states an interval."""
        if span := interval_of(record):
            return "–".join(digits(self.time(s), 2) for s in span)
        return self.text(record.time_s)

    def ratio_to_best(self, record: Record) -> float | None:
        """Return a time over the best's in its phase; None where that has none of the best. Of an
        unranked class it is 1, and infinite for all others."""
        if self.members is not None:
            return 1.0 if config_key(record.case) in self.members else math.inf
        if record.winner_s is not None:  # in the rounds of a final of its own
            return record.time_s / record.winner_s
        library = self.libraries.get(record.phase)
        return record.time_s / library if library else None

    def look(self, record: Record) -> str:
        """Return the CSS classes of a record's points: hollow when predicted."""
        number = self.impls.index(record.case.impl)
        kind = "m" if record.is_measured else "p"
        return f"i{number % 4} {kind}"

    def mark(self, record: Record) -> str:
        """Return the name of the marker of a record's Impl."""
        return marks_of(self.impls, self.baselines)[record.case.impl]


def marks_of(impls: Sequence[str], baselines: Collection[str]) -> dict[str, str]:
    """Return the name of the marker of each Impl by its name: one of its own for each of twelve
    Impls and four libraries."""
    own = [impl for impl in impls if impl not in baselines]
    others = [impl for impl in impls if impl in baselines]
    marks = {impl: MARKS[n % len(MARKS)] for n, impl in enumerate(own)}
    return marks | {impl: LIBRARY_MARKS[n % len(LIBRARY_MARKS)] for n, impl in enumerate(others)}


def heat_map(
    board: Board, outcomes: Sequence[Outcome], fields: tuple[str, str], impl: str, prefix: str
) -> Markup:
    """Return the best time for each pair of values over all other fields; one Impl."""
    down, across = fields
    mine = [o for o in outcomes if o.case.impl == impl and {*fields} <= o.case.config.keys()]
    ys = sorted({o.case.config[down] for o in mine})
    xs = sorted({o.case.config[across] for o in mine})
    best = best_per_group(mine, (down, across))
    others = _differing([r.case.config for r in best.values()], fields)
    cell_w, left, top = max(74, min(124, 480 // len(xs))), 62, 8
    words = {key: _terse(record.case.config, others, cell_w) for key, record in best.items()}
    cell_h = 66 if max(map(len, words.values()), default=0) > 1 else 56
    width, height = left + cell_w * len(xs) + 10, top + cell_h * len(ys) + 44
    fig = figure(width, height)
    ax = axes(fig, left, top, cell_w * len(xs), cell_h * len(ys))
    ax.set(xlim=(0, len(xs)), ylim=(0, len(ys)))
    ax.set(xlabel=_field_label(across, mine), ylabel=_field_label(down, mine))
    ax.set_xticks([i + 0.5 for i in range(len(xs))], [knob_text(across, x) for x in xs])
    ax.set_yticks([i + 0.5 for i in range(len(ys))], [knob_text(down, y) for y in ys])
    ax.tick_params(length=0)
    frame(ax, ())
    own = min(best.values(), key=lambda r: (r.phase != "final", r.time_s), default=None)
    targets = []
    for j, y in enumerate(ys):
        for i, x in enumerate(xs):
            here = [o for o in mine if (o.case.config[down], o.case.config[across]) == (y, x)]
            record = best.get((y, x))
            _cell(ax, i, j, board, record, here, words.get((y, x), []))
            if record is own and record is not None and board.members is None:
                look = {"facecolor": "none", "edgecolor": colour("accent"), "linewidth": 3}
                ax.add_patch(_box(i, j, zorder=4, **look))
            targets.append(_target(ax, i, j, board, record, here))
    title = f"Best time for each {down} and {across}, {impl}"
    return figure_svg(fig, prefix, title, "".join(("<g class='cells'>", *targets, "</g>")))


def blanks(outcomes: Sequence[Outcome], fields: tuple[str, str]) -> set[str]:
    """Return the kinds of cells without a time in the heat map of one Impl: `failed`, `untried`."""
    own = [o for o in outcomes if {*fields} <= o.case.config.keys()]
    pairs = {tuple(o.case.config[f] for f in fields) for o in own}
    ways = math.prod(len({pair[n] for pair in pairs}) for n in (0, 1))
    failed = {"failed"} if pairs - best_per_group(own, fields).keys() else set()
    return failed | ({"untried"} if len(pairs) < ways else set())


def heat_step(ratio: float) -> int:
    """Return the step of the ramp for a time over the best time: 0 is best."""
    return sum(ratio > limit for limit in HEAT_STEPS)


def _field_label(field: str, outcomes: Sequence[Outcome]) -> str:
    """Return a field's label; warps are given with their number of threads."""
    if field == "num_warps":
        for o in outcomes:
            warps = o.case.config[field]
            if o.resources is not None and warps:  # 0 in older records: chosen from the sizes
                return f"{field}, {o.resources.threads // warps} threads each"
    return field


def one_field(
    board: Board,
    records: Sequence[Record],
    field: str,
    prefix: str,
    name: Callable[[int], str] = str,
) -> Markup:
    """Return the time of every config against the only field that varies, with the best joined."""
    values = sorted({r.case.config[field] for r in records})
    fig = figure(560, 300)
    ax = axes(fig, 62, 14, 484, 230, "y")
    ax.set(xlim=(-0.5, len(values) - 0.5), xlabel=field, ylabel=f"time, {board.unit[1]}")
    ax.set_xticks(range(len(values)), [name(v) for v in values])
    _time_scale(ax, board, records)
    for impl in board.impls:
        best = best_per_group([r for r in records if r.case.impl == impl], (field,))
        steps = [(i, best[(v,)]) for i, v in enumerate(values) if (v,) in best]
        times = [board.time(r.time_s) for _, r in steps]
        if board.members is None:
            ax.plot([i for i, _ in steps], times, color=colour("muted"), linewidth=1, zorder=1)
        for i, record in steps:
            if span := interval_of(record):
                ends = [board.time(s) for s in span]
                ax.plot([i, i], ends, color=colour("muted"), linewidth=2, zorder=1)
    points = [(r, float(values.index(r.case.config[field])), board.time(r.time_s)) for r in records]
    return figure_svg(fig, prefix, f"Time for each {field}", place_points(ax, board, points))


def resource_figure(
    board: Board, records: Sequence[Record], value: Callable[[Any], float], axis: str, prefix: str
) -> Markup:
    """Return the time against one number of the compiled code; `value` takes the Resources."""
    known = [r for r in records if r.resources is not None]
    numbers = [value(r.resources) for r in known]
    fig = figure(372, 290)
    ax = axes(fig, 72, 14, 288, 226, "y")
    low, high = min(numbers, default=0.0), max(numbers, default=1.0)
    room = (high - low) * 0.06 or 1.0
    ax.set(xlim=(low - room, high + room), xlabel=axis, ylabel=f"time, {board.unit[1]}")
    ax.xaxis.get_major_locator().set_params(nbins=6, integer=True)
    plain_ticks(ax.xaxis)
    ticks = [t for t in ax.get_xticks() if low - room / 2 <= t <= high + room / 2]
    ax.set_xticks(ticks)
    _time_scale(ax, board, known)
    beside = [n + room / 4 * jitter(board.row(r)) for r, n in zip(known, numbers, strict=True)]
    points = [(r, x, board.time(r.time_s)) for r, x in zip(known, beside, strict=True)]
    return figure_svg(fig, prefix, f"Time against {axis}", place_points(ax, board, points))


def finals(
    board: Board, records: Sequence[Record], prefix: str, words: Mapping[int, str] | None = None
) -> Markup:
    """Return median, 95 % interval and window medians of each finalist and baseline, in order.
    `words` holds a tag for records by id; a tagged row has a bar at its left, too."""
    best = min(r.time_s for r in records)
    # A slow config would compress the rest into one line: it gets an arrow and its number.
    near = [r for r in records if r.time_s <= best * FAR]
    spans = [t for r in near for t in _spread(r)]
    lo, hi = min(spans), max(spans)
    margin = (hi - lo) * 0.04 or best * 0.01
    left, line, width = 14, 40, 590
    fig = figure(width, 50 + line * len(records))
    ax = axes(fig, left, 4, width - left - 12, line * len(records))
    ax.set(xlim=(board.time(lo - margin), board.time(hi + margin)), ylim=(len(records) - 0.5, -0.5))
    ax.set(xlabel=f"time of one call, {board.unit[1]}")
    ax.set_yticks([])
    ax.grid(axis="x", color=colour("rule"), linewidth=0.8)
    ax.xaxis.get_major_locator().set_params(nbins=7)
    frame(ax, ("bottom",))
    points = []
    for y, record in enumerate(records):
        word = (words or {}).get(id(record), "")
        _label_row(ax, board, record, y, word)
        if record in near:
            _interval(ax, board, record, y + _LOWER)
            points.append((record, board.time(record.time_s), y + _LOWER))
        else:
            beyond, at = "beyond this axis →", (1, y + _LOWER)
            note(ax, beyond, at, (-4, -4), "muted", ha="right", xycoords=ROW)
    return figure_svg(fig, prefix, "Finalists", place_points(ax, board, points))


_LOWER = 0.18  # offset of the times below a row's middle, as a share of its height


def _label_row(ax: Any, board: Board, record: Record, y: int, word: str) -> None:
    """Draw a row's name and, at the right, its median; a bar at the left where `word` is set."""
    over = board.ratio_to_best(record)
    text = f"{board.text(record.time_s)} {board.unit[1]}" + (f" · {over:.3f}x" if over else "")
    text = f"{word} · {text}" if word else text
    bold = "bold" if word == "winner" else "normal"
    for x, align, words in ((0, "left", _short(board, record)), (1, "right", text)):
        note(ax, words, (x, y), (0, 5), size=SMALL, ha=align, xycoords=ROW, weight=bold)
    if word:
        look = {"color": colour("accent" if word == "winner" else "muted"), "linewidth": 4}
        look |= {"transform": ax.get_yaxis_transform(), "clip_on": False}
        ax.plot([-0.014] * 2, [y - 0.36, y + 0.42], solid_capstyle="butt", **look)


def _time_scale(ax: Any, board: Board, records: Sequence[Record]) -> None:
    """Set a logarithmic scale where the slowest takes over three times as long as the fastest."""
    times = [board.time(s) for r in records for s in (interval_of(r) or (r.time_s,))] or [1.0]
    low, high = min(times), max(times)
    if high <= 3 * low:
        room = (high - low) * 0.08 or 0.1 * high
        ax.set_ylim(max(0.0, low - room), high + room)
        ax.yaxis.get_major_locator().set_params(nbins=6)
        plain_ticks(ax.yaxis)
        return
    ax.set_yscale("log")
    ax.set_ylim(low / 1.15, high * 1.15)
    ax.set_yticks(one_two_five(low / 1.15, high * 1.15), minor=False)
    plain_ticks(ax.yaxis)
    ax.yaxis.minorticks_off()
    ax.set_ylabel(ax.get_ylabel() + " (log)")


def place_points(
    ax: Any, board: Board, points: Sequence[tuple[Record, float, float]], size: str = "k"
) -> str:
    """Return a `<use>` for each record over the axes, by look; the best last and ringed."""
    groups: dict[str, list[str]] = {}
    top = ""
    for record, x, y in sorted(points, key=lambda p: -p[0].time_s):
        px, py = place(ax, x, y)
        mark, row = board.mark(record), board.row(record)
        use = f'<use href="#{size}-{mark}" x="{px:g}" y="{py:g}" data-r="{row}"/>'
        if record is not board.best:
            groups.setdefault(board.look(record), []).append(use)
        else:  # over all others, so that the pointer reaches it
            top = f'<g class="{board.look(record)}">{use}</g>'
            top += f'<circle class="best" cx="{px:g}" cy="{py:g}" r="8"/>'
            right, _ = place(ax, ax.get_xlim()[1], y)
            at, anchor = (px + 12, "") if px + 42 < right else (px - 12, ' text-anchor="end"')
            top += f'<text class="best" x="{at:g}" y="{py + 4:g}"{anchor}>best</text>'
    ordered = sorted(groups.items(), key=lambda g: -len(g[1]))  # small groups over large ones
    drawn = "".join(f'<g class="{look}">{"".join(uses)}</g>' for look, uses in ordered)
    return f'<g class="points" tabindex="0" role="group" aria-label="points">{drawn}{top}</g>'


def jitter(row: int) -> float:
    """Return a number from -1 to 1: multiples of the golden ratio, so neighbours are far apart."""
    return 2 * ((row * 0.6180339887498949) % 1) - 1


def _cell(
    ax: Any,
    i: int,
    j: int,
    board: Board,
    record: Record | None,
    here: Sequence[Outcome],
    lines: Sequence[str],
) -> None:
    box = _box(i, j)
    ax.add_patch(box)
    if record is None:
        box.set(facecolor="none", edgecolor=colour("hatch"), hatch="////" if here else None)
        if here:
            stages = {o.stage for o in here if isinstance(o, Failure)}
            word = "refused" if stages == {"refused"} else "failed"
            _write_cell(ax, i, j, word if len(here) == 1 else f"{len(here)} {word}", "muted")
        return
    step = heat_step(board.ratio_to_best(record) or 1.0)
    box.set(facecolor=colour(f"heat-{step}"), edgecolor="none")
    ink = f"heat-ink-{step}"
    size = 14 if interval_of(record) is None else 11
    _write_cell(ax, i, j + 0.15 * len(lines), board.time_text(record), ink, size, True)
    for n, line in enumerate(lines):
        _write_cell(ax, i, j + (-0.2 if len(lines) == 1 else -0.04 - 0.25 * n), line, ink, 11)


def _write_cell(
    ax: Any, i: float, j: float, text: str, ink: str, size: float = 11, bold: bool = False
) -> None:
    # The baseline is set explicitly: `va="center"` uses metrics of a font that the page lacks.
    look = {"ha": "center", "va": "baseline", "weight": "bold" if bold else "normal"}
    note(ax, text, (i + 0.5, j + 0.5), (0, -size * 0.35), ink, size, **look)


def _differing(configs: Sequence[Mapping[str, int]], fields: Collection[str]) -> list[str]:
    """Return the other fields that differ between these configs."""
    names = dict.fromkeys(name for config in configs for name in config if name not in fields)
    return [name for name in names if len({config.get(name) for config in configs}) > 1]


def _terse(config: Mapping[str, int], names: Sequence[str], width: float) -> list[str]:
    """Return these fields of a config in at most two lines of the width of a cell: `block_k 64`,
    `8 warps`. What does not fit is in the cell's tooltip."""
    units = {"num_warps": "warps", "num_stages": "stages"}
    lines: list[str] = []
    for name in (name for name in names if name in config):
        value = knob_text(name, config[name])
        words = f"{value} {units[name]}" if name in units else f"{name} {value}"
        words = words[:-1] if value == "1" and name in units else words
        if lines and len(lines[-1]) + len(words) + 2 <= width / CHARACTER:
            lines[-1] += f", {words}"
        elif len(lines) < 2 and len(words) <= width / CHARACTER:
            lines.append(words)
    return lines


def _box(i: int, j: int, **look: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((i + 0.02, j + 0.03), 0.96, 0.94, **look)


def _target(
    ax: Any, i: int, j: int, board: Board, record: Record | None, here: Sequence[Outcome]
) -> str:
    """Return the pointer's target of a cell: the row of its best, or why it has none."""
    (x, y), (x2, y2) = place(ax, i, j + 1), place(ax, i + 1, j)
    box = f'x="{x:g}" y="{y:g}" width="{x2 - x:g}" height="{y2 - y:g}"'
    if record is not None:
        return f'<rect {box} data-r="{board.row(record)}" data-n="{len(here)}"/>'
    if not here:
        return ""
    reasons = dict.fromkeys(f"{o.stage}: {o.reason}" for o in here if isinstance(o, Failure))
    listed = " | ".join([*reasons][:3]) + (" | …" if len(reasons) > 3 else "")
    about = f'data-r="{board.row(here[0])}" data-n="{len(here)}" data-why="{escape(listed)}"'
    return f"<rect {box} {about}/>"


def _interval(ax: Any, board: Board, record: Record, y: float) -> None:
    """Draw the 95 % interval as a bar, and the windows' medians as one light path of ticks; where
    there is one window, its samples."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    timing = record.timing
    if not isinstance(timing, Measured):
        return
    low, high = ax.get_xlim()
    shown = [t for t in map(board.time, _ticks(timing)) if low <= t <= high]
    ends = [(x, y + d) for x in shown for d in (-0.17, 0.17)]
    if ends:
        path = Path(ends, [Path.MOVETO, Path.LINETO] * len(shown))
        ax.add_patch(PathPatch(path, fill=False, edgecolor=colour("muted"), lw=0.9, alpha=0.55))
    bar(ax, board.time(timing.low_s), board.time(timing.high_s), y, "ink", 3)


def _ticks(timing: Measured) -> Sequence[float]:
    """Return the seconds of the ticks, at most about 120: more would take 100 kB."""
    medians = timing.window_medians
    result: Sequence[float] = medians if len(medians) > 1 else timing.samples_s
    return result[:: max(1, len(result) // 60)]


def _spread(record: Record) -> tuple[float, ...]:
    """Return the seconds that the axis must hold: the interval, and the ticks without tails."""
    timing = record.timing
    if not isinstance(timing, Measured):
        return (record.time_s,)
    ordered = sorted(_ticks(timing))
    tail = len(ordered) // 20
    inner = ordered[tail : len(ordered) - tail] or [timing.median_s]
    return timing.low_s, timing.high_s, inner[0], inner[-1]


def _short(board: Board, record: Record) -> str:
    case = record.case
    name = f"{case.impl} {label(case.config)}" if case.config else case.impl
    name += f" ({board.launch_kind})" if record.default else ""
    return short_name(name, 54)
