"""Page of a measurement: each Impl beside its baselines, for every size and dtype.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from workbench.data import stats
from workbench.data.record import Measured, Outcome, Predicted, Profile, Record, Run
from workbench.data.selection import interval_of, memory_bound, rate, ridge_of
from workbench.data.units import (
    four_digits,
    microseconds,
    rough,
    span_text,
    text_of,
    unit_of,
    whole_percent,
)
from workbench.device import apple_model
from workbench.device.error_band import EXPECTED, band_words, expected_words, factor_words
from workbench.reports import render, table_of_profiles
from workbench.reports.figures import energy, sweep
from workbench.reports.figures.curve import curve_svg
from workbench.reports.figures.curve_data import curves_of
from workbench.reports.figures.drawing import LIBRARY_MARKS
from workbench.reports.figures.measure import Share, shares
from workbench.reports.figures.size_groups import Group, groups_of
from workbench.reports.figures.sweep import Board
from workbench.reports.figures.timing import timing_facts, timings_of
from workbench.reports.figures.traffic import (
    assumptions,
    emulated_words,
    is_emulated,
    traffic_table,
)
from workbench.reports.sweep import Look, legend_of
from workbench.reports.tables import text_table

if TYPE_CHECKING:
    from rich.console import Console

# heads of `spread_cells`
SPREAD = ("median", "95 % interval", "mean", "std", "min", "p5", "p95", "max", "n")
COSTS = ("to issue, µs", "read, MB", "written, MB")  # the host's time; least bytes
NAMED = ("impl", "regime", "predicted interval")
RATES = (EXPECTED, "rate", "of ceiling", "vs baseline")
HEADS = (*NAMED, *SPREAD, *RATES, *COSTS, *energy.HEADS)
# for 100 columns
NARROW = (*NAMED, "median", *RATES, energy.HEADS[0])
NARROWEST = ("impl", "median", "rate", "of ceiling", "vs baseline", energy.HEADS[0])  # for 80
NAME_WIDTHS = (42, 30)  # of an Impl with its config in 80 columns, without and with baselines
MINOR = ("mean", "std", "max", *COSTS)  # left out of terminals under 200 columns


def page(run: Run, outcomes: Sequence[Outcome], profiles: Sequence[Profile] = ()) -> str:
    """Return the page as HTML. A run without records gives a page, too. `profiles` are those of its
    configs."""
    groups = groups_of(run, outcomes)
    impls = list(dict.fromkeys(o.case.impl for o in outcomes))
    marks = legend_of(impls, outcomes)
    near = _shares(groups, marks)
    return render(
        "measure.html.j2",
        run=run,
        env=run.environment,
        sentence=sentence(run, groups),
        emulated=emulated_words(run, outcomes),
        model=apple_model.MODEL,
        intervals=interval_origin(outcomes),
        traffic=traffic_table(outcomes),
        curves=[(c, curve_svg(c, f"curve{n}")) for n, c in enumerate(curves_of(run, outcomes))],
        groups=[_group_fields(n, g, marks) for n, g in enumerate(groups)],
        shares=shares(near, "shares") if near else None,
        share_bars=any(share.expected_percent for share in near),
        profiled=table_of_profiles(profiles, outcomes),
        marks=marks,
        band=factor_words(r for g in groups for r in g.records if not interval_of(r)),
        how=[
            *timing_facts(outcomes),
            *energy.energy_how(outcomes),
            *(assumptions() if is_emulated(run, outcomes) else ()),
        ],
    )


def sentence(run: Run, groups: Sequence[Group]) -> str:
    """Return one sentence that compares the best of each size with the best baseline."""
    ratios = []
    for group in groups:
        own = [r for r in group.records if r.phase == "final" and not r.case.is_baseline]
        known = [ratio for r in own if (ratio := group.library_ratio(r))]
        ratios += [max(known)] if known else []
    one = len(groups) == 1
    many = groups[0].name if one else f"{len(groups)} combinations of sizes and dtype"
    if not any(g.records for g in groups):
        return f"No Impl of {run.kernel} gave a time."
    if run.predicted:
        unranked = any(interval_of(r) for g in groups for r in g.records)
        order = "; times whose intervals overlap are not ranked" if unranked else ""
        bands = {band_words(r): None for g in groups for r in g.records if not r.is_measured}
        error = "; ".join(bands)
        return f"Predicted for {run.device}: {run.kernel} at {many}{order}; {error}."
    if not ratios:
        return f"{run.kernel} at {many}; no baseline to compare with."
    spread = f" ({min(ratios):.2f}x to {max(ratios):.2f}x)" if len(ratios) > 1 else ""
    mean = stats.geomean(ratios)
    return f"{run.kernel} runs at {mean:.2f}x the speed of its best baseline{spread}, at {many}."


def rows(group: Group, origins: Mapping[str, str] | None = None) -> list[list[str]]:
    """Return the cells under `HEADS`, cold before hot, the fastest first; by name where the model
    states intervals."""
    if any(interval_of(r) for r in group.records):
        named = sorted(group.records, key=lambda r: r.case.label)
        return [_row(group, r, (origins or {}).get(r.key, "")) for r in named]
    order = {"final": 0, "predict": 0, "hot": 1}
    ranked = sorted(group.records, key=lambda r: (order.get(r.phase, 2), r.time_s))
    return [_row(group, r, (origins or {}).get(r.key, "")) for r in ranked]


def _row(group: Group, record: Record, origin: str) -> list[str]:
    scale, unit = unit_of(record.time_s)
    mark = origin or ("default" if record.default else "")
    case = record.case
    name = f"{case.label} ({mark})" if mark and case.config else case.label
    ceiling = None if interval_of(record) else group.ceiling(record)
    against = group.library_ratio(record)
    t = record.timing
    span = interval_of(record)
    if span:
        spread = ["predicted", span_words(record), *[""] * 9]
    elif isinstance(t, Predicted):
        spread = ["predicted", "", f"~{text_of(t.predicted_s, scale)} {unit}", *[""] * 8]
    else:
        spread = [t.regime, "", *spread_cells(t, scale, unit)]
    tilde = "" if record.is_measured else "~"
    speed = tilde + rate(record, ridge_of(group.run))
    speed = "" if span or not (record.bytes or record.flops) else speed
    share = tilde + whole_percent(ceiling[0]) if ceiling else ""
    energies = energy.energy_cells(record, memory_bound(record, ridge_of(group.run)))
    ratio = f"{against:.3f}x" if against else ""
    expected = "" if span else expected_words(record)
    return [name, *spread, expected, speed, share, ratio, *cost_cells(record), *energies]


def span_words(record: Record) -> str:
    """Return the interval that a model states: `72 µs to 3.4 ms`; empty where it states none."""
    return " to ".join(rough(seconds) for seconds in interval_of(record) or ())


def cost_cells(record: Record) -> list[str]:
    """Return the cells under `COSTS`: the host's time to issue a call, and its least bytes, read
    and written. Empty where unknown."""
    host_s = record.timing.host_s if isinstance(record.timing, Measured) else None
    parts = record.bytes_read, record.bytes_written
    megabytes = ["" if n is None else four_digits(n / 1e6) for n in parts]
    return ["" if host_s is None else microseconds(host_s), *megabytes]


def spread_cells(t: Measured, scale: float, unit: str) -> list[str]:
    """Return the cells under `SPREAD`; the median of an unstable time has a star."""
    p5, p95 = (stats.quantile(t.samples_s, q) for q in (0.05, 0.95))
    rest = (t.mean_s, t.std_s, t.min_s, p5, p95, t.max_s)
    median = f"{text_of(t.median_s, scale)} {unit}" + ("" if t.stable else " *")
    cells = [text_of(seconds, scale) for seconds in rest]
    return [median, span_text(t.low_s, t.high_s, scale), *cells, str(len(t.samples_s))]


def details_last(heads: Sequence[str], columns: Sequence[int]) -> list[int]:
    """Return columns of a page's table, the distribution of a time after its rate and its ceiling:
    the last ones of a wide table need scrolling."""
    return sorted(columns, key=lambda n: heads[n] in SPREAD[2:])


def nonempty_columns(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices of columns that are not empty; a prediction has no interval."""
    return [n for n in range(len(heads)) if any(line[n] for line in lines)]


def head_words(head: str, group: Group) -> str:
    """Return a head as it is shown: a predicted time is not a median."""
    predicted = head == "median" and not any(r.is_measured for r in group.records)
    return "predicted" if predicted else head


def shown_heads(width: int | None) -> Sequence[str]:
    """Return the heads for a terminal of this width; all where no width limits them."""
    if width is None or width >= 200:
        return HEADS
    if width < 120:
        return NARROWEST
    return [head for head in HEADS if head not in MINOR] if width >= 150 else NARROW


def result_line(group: Group) -> str:
    """Return the fastest Impl of one size and dtype with its time, beside the best baseline."""
    own = [r for r in group.records if r.phase in ("final", "predict") and not r.case.is_baseline]
    if not own:
        return f"{group.run.kernel}, {group.name}: no Impl gave a time"
    if any(interval_of(r) for r in own):
        each = ", ".join(f"{r.case.label} {span_words(r)}" for r in own)
        return f"{group.run.kernel}, {group.name}: predicted and not ranked: {each}"
    best = min(own, key=lambda r: r.time_s)
    scale, unit = unit_of(best.time_s)
    tilde, kind = ("", "measured") if best.is_measured else ("~", "predicted")
    error = "" if best.is_measured else f" ({factor_words([best])})"
    time = f"{tilde}{text_of(best.time_s, scale)} {unit} {kind}{error}"
    against = group.library_ratio(best)
    ratio = f", {against:.3f}x the speed of the best baseline" if against else ""
    return f"{group.run.kernel}, {group.name}: {best.case.label} {time}{ratio}"


def interval_origin(outcomes: Sequence[Outcome]) -> str:
    """Return the sentence that says where intervals come from; empty where there are none."""
    spans = (interval_of(o) for o in outcomes if isinstance(o, Record))
    return apple_model.INTERVALS if any(spans) else ""


def show_group(
    console: Console,
    run: Run,
    outcomes: Sequence[Outcome],
    origins: Mapping[str, str],
    wide: bool = False,
) -> None:
    """Print each size and dtype as a table: in 80 columns where no terminal is wider, or `wide`."""
    for group in groups_of(run, outcomes):
        console.print(f"\n{run.kernel}, {group.name}", style="bold")
        lines = rows(group, origins)
        heads = shown_heads(None if wide else console.width if console.is_terminal else 80)
        shown = [n for n in nonempty_columns(HEADS, lines) if HEADS[n] in heads]
        named = {n: head_words(HEADS[n], group) for n in shown}
        cells = ([row[n] for n in shown] for row in lines)
        right = [named[n] for n in shown if n > 1]
        table = text_table(list(named.values()), cells, right, [named[n] for n in shown if n])
        if heads is NARROWEST and 0 in named:
            table.columns[0].max_width = NAME_WIDTHS[len(shown) > 4]
        if lines:
            console.print(table)
        for words in energy.energy_notes(group.outcomes, run.environment):
            console.print(words)
        for failure in group.failures:
            console.print(f"{failure.case.label}: {failure.stage}: {failure.reason}")


# The page.


def _group_fields(n: int, group: Group, marks: Sequence[Look]) -> dict[str, Any]:
    plain = [r for r in group.records if not interval_of(r)]
    ceilings = [result for r in plain if (result := group.ceiling(r))]
    lines = rows(group)
    columns = details_last(HEADS, nonempty_columns(HEADS, lines))
    return {
        "name": group.name,
        "heads": [head_words(HEADS[c], group) for c in columns],
        "rows": [[line[c] for c in columns] for line in lines],
        "unstable": any(not t.stable for t in timings_of(group.records)),
        "failures": [(f.case.label, f.stage, f.reason) for f in group.failures],
        "notes": [*energy.energy_notes(group.outcomes, group.run.environment)],
        "ceiling": ", ".join(dict.fromkeys(name for _, name in ceilings)),
        "figure": _figure(n, group, marks),
    }


def _figure(n: int, group: Group, marks: Sequence[Look]) -> Markup | None:
    """Return medians, intervals and samples of the cold times."""
    finals = sorted((r for r in group.records if r.phase == "final"), key=lambda r: r.time_s)
    if not finals:
        return None
    unit = unit_of(finals[0].time_s)
    numbers = {id(r): row for row, r in enumerate(finals)}
    libraries = [i for i, _, mark in marks if mark in LIBRARY_MARKS]
    impls = [i for i, _, _ in marks]
    times = {finals[0].phase: finals[0].time_s}
    board = Board(numbers, impls, unit, finals[0], times, baselines=libraries)
    return sweep.finals(board, finals, f"g{n}")


def _shares(groups: Sequence[Group], marks: Sequence[Look]) -> list[Share]:
    number, mark = {i: n for n, (i, _, _) in enumerate(marks)}, {i: m for i, _, m in marks}
    return [
        Share(group.name, r, number[r.case.impl], mark[r.case.impl], 100 * ceiling[0])
        for group in groups
        for r in group.records
        if r.phase in ("final", "predict") and not interval_of(r) and (ceiling := group.ceiling(r))
    ]
