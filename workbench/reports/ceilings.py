"""Page of a device's ceilings: measured, stated and library figures beside each other.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from workbench.data.record import Failure, Measured, Outcome, Record, Run
from workbench.data.units import span_text, text_of, unit_of
from workbench.reports import render
from workbench.reports.figures.ceilings import Bar, Panel, bars
from workbench.reports.figures.timing import timings_of
from workbench.spec import sizes_text

if TYPE_CHECKING:
    from rich.console import Console

Plain = Mapping[str, Any]

MEASURED = "_measured"
HEADS = ("ceiling", "low", "median", "high", "share of stated", "library reference", "verdict")
STATED_HEADS = ("ceiling", "value", "kind", "source")
LEVELS = {
    "dram": "DRAM",
    "cache": "Last-level cache",
    "shared": "L1 and shared memory",
    "compute": "Arithmetic",
    "launch": "Launches",
    "link": "Host and device",
}
# display unit of each recorded unit: its size and its name
UNITS = {
    "B/s": (1e12, "TB/s"),
    "FLOP/s": (1e12, "TFLOP/s"),
    "OP/s": (1e12, "TOP/s"),
    "s": (1e-6, "µs"),
}
LINK = (1e9, "GB/s")
WORDS = {
    "dram_read": "reads DRAM at",
    "dram_copy": "copies at",
    "cache": "reads its cache at",
    "compute_bf16": "multiplies bf16 at",
}
NEEDS_GPU = "No GPU took part: nothing here was measured."


def measured_of(run: Run) -> list[dict[str, Any]]:
    """Return the run's measured ceilings, and those that failed, level by level."""
    results = [dict(c, name=n) for n, c in run.ceilings.items() if n.endswith(MEASURED)]
    order = list(LEVELS)
    return sorted(results, key=lambda c: order.index(c.get("level", "link")))


def stated_of(run: Run) -> list[dict[str, Any]]:
    """Return the ceilings of datasheets and arithmetic."""
    known = run.ceilings.items()
    return [dict(c, name=n) for n, c in known if not n.endswith(MEASURED) and "title" in c]


def page(run: Run, outcomes: Sequence[Outcome]) -> str:
    """Return the page as HTML. A run without records gives a page, too."""
    result = measured_of(run)
    shown = replace(run, kernel="Ceilings", engine="bandwidths, rates, launches", predicted=False)
    return render(
        "ceilings.html.j2",
        run=shown,
        env=run.environment,
        measured=bool(result),
        sentence=sentence(run),
        heads=HEADS,
        rows=[_cells(c) for c in result],
        doubts=[(c["title"], word(c), reason(c)) for c in result if word(c) != "sound"],
        sources=[(c["title"], c["source"]) for c in result if "value" in c],
        stated_heads=STATED_HEADS,
        stated=[_stated_cells(c) for c in stated_of(run)],
        figure=bars(panels(result or stated_of(run)), "ceilings"),
        copies=_copies(outcomes),
        variants=[_variant(o) for o in outcomes if o.case.kernel != "host_copy"],
        how=_how(outcomes),
    )


def sentence(run: Run) -> str:
    """Return one sentence with the device's main measured ceilings."""
    device = run.environment.gpu or run.device
    known = {c["name"]: c for c in measured_of(run) if word(c) in ("sound", "unchecked")}
    named = ((what, known.get(name + MEASURED)) for name, what in WORDS.items())
    parts = [f"{what} {amount(c['value'], c)}" for what, c in named if c]
    one = known.get("launch" + MEASURED)
    launch = f"a launch in a graph takes {amount(one['value'], one)}" if one else ""
    text = "; ".join(filter(None, (f"{device} {', '.join(parts)}" if parts else "", launch)))
    if text:
        return f"{text}."
    if measured_of(run):
        return f"No ceiling of {device} stands: see the reasons below."
    return f"What is stated of {device}. {NEEDS_GPU}"


def word(one: Plain) -> str:
    """Return `sound`, `unchecked` (the library reference has no time), `failed` or `missing`."""
    if "value" not in one:
        return "missing"
    if one.get("failed"):
        return "failed"
    return "unchecked" if one.get("unchecked") else "sound"


def reason(one: Plain) -> str:
    """Return why the ceiling is not sound; empty where it is."""
    return str(one.get("reason") or one.get("unchecked") or "")


def scale_of(one: Plain) -> tuple[float, str]:
    """Return the size of the display unit, in the record's unit, and its name."""
    return LINK if one.get("level") == "link" else UNITS[one["unit"]]


def amount(value: float, one: Plain) -> str:
    """Return a value with its unit: `4.29 TB/s`."""
    scale, unit = scale_of(one)
    return f"{digits(value / scale)} {unit}"


def digits(value: float) -> str:
    """Return a number with four significant digits from 1 on, three below."""
    if value >= 1000:
        return f"{value:.0f}"
    return f"{value:.4g}" if value >= 1 else f"{value:.3g}"


def with_zeros(value: float) -> str:
    """Return a number as `digits` does, with trailing zeros: 4.400 beside 4.387."""
    return f"{value:.0f}" if value >= 1000 else f"{value:#.{4 if value >= 1 else 3}g}"


def _cells(one: Plain) -> list[str]:
    """Return the cells under HEADS."""
    stated, other = one.get("stated"), one.get("library")
    of = f"{amount(stated['value'], one)} ({kind_of(stated)})" if stated else ""
    if "value" not in one:
        spread = ["", "missing", ""]
    else:
        spread = _spread(one)
        of = f"{100 * one['value'] / stated['value']:.0f} % of {of}" if stated else ""
    yard = f"{other['name']}: {amount(other['value'], one)}" if other else ""
    return [one["title"], *spread, of, yard, word(one)]


def _spread(one: Plain) -> list[str]:
    """Return p5, median with its unit, and p95."""
    scale, unit = scale_of(one)
    low, middle, high = (with_zeros(one[end] / scale) for end in ("low", "value", "high"))
    return [low, f"{middle} {unit}", high]


def _stated_cells(one: Plain) -> list[str]:
    """Return the cells under STATED_HEADS."""
    return [one["title"], amount(one["value"], one), kind_of(one), one["source"]]


def kind_of(stated: Plain) -> str:
    """Return the origin of a stated figure; `measured` means here, others' are `published`."""
    return "published" if stated["kind"] == "measured" else str(stated["kind"])


def line(one: Plain) -> str:
    """Return one ceiling as a line for the terminal."""
    if "value" not in one:
        return f"{one['title']}: missing: {one['reason']}"
    low, middle, high = _spread(one)
    text = f"{one['title']}: {middle} (p5 to p95: {low} to {high})"
    return text if word(one) == "sound" else f"{text}; {word(one)}: {reason(one)}"


def show(console: Console, run: Run) -> None:
    """Print the table of ceilings, and the reason of each that is not sound."""
    from rich.table import Table
    from rich.text import Text

    result = measured_of(run)
    heads = HEADS if result else STATED_HEADS
    lines = [_cells(c) for c in result] or [_stated_cells(c) for c in stated_of(run)]
    table = Table(box=None, pad_edge=False)
    for n, head in enumerate(heads):
        right = (bool(result) and 0 < n < 4) or n == 1
        table.add_column(head, justify="right" if right else "left")
    for cells in lines:
        table.add_row(*map(Text, cells))
    console.print(table)
    for one in result:
        if word(one) != "sound":
            console.print(f"{one['title']}: {word(one)}: {reason(one)}", soft_wrap=True)


# The page's parts.


def panels(ceilings: Sequence[Plain]) -> list[Panel]:
    """Return the bars by level, each level on an axis of its own unit."""
    drawn = []
    for level, title in LEVELS.items():
        some = [c for c in ceilings if c.get("level") == level]
        if not some:
            continue
        units = list(dict.fromkeys(scale_of(c)[1] for c in some))
        drawn.append(Panel(title, " or ".join(units), [_bar(c) for c in some], level))
    return drawn


def _bar(one: Plain) -> Bar:
    scale, unit = scale_of(one)
    measured = one["name"].endswith(MEASURED)
    own, stated = one.get("value"), one.get("stated", {}).get("value")
    drawn = {
        "value": own if measured else None,
        "low": one.get("low"),
        "high": one.get("high"),
        "stated": own if stated is None and not measured else stated,
        "library": one.get("library", {}).get("value"),
    }
    scaled = {name: None if v is None else v / scale for name, v in drawn.items()}
    shown = with_zeros if measured else digits
    text = f"{shown(own / scale)} {unit}" if own is not None else "missing"
    return Bar(one["title"], text=text, word=word(one), **scaled)


def _copies(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    """Return copies between host and device by size: GB/s of each kind."""
    results = [o for o in outcomes if o.case.kernel == "host_copy" and isinstance(o, Record)]
    if not results:
        return None
    kinds = list(dict.fromkeys(r.case.impl for r in results))
    sizes = sorted({r.case.sizes["B"] for r in results})
    at = {(r.case.impl, r.case.sizes["B"]): r for r in results}
    rows = []
    for size in sizes:
        row = [f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"]
        for kind in kinds:
            r = at.get((kind, size))
            rate, time = (size / r.time_s / 1e9, r.time_s * 1e6) if r else (0.0, 0.0)
            row.append(f"{with_zeros(rate)} ({with_zeros(time)})" if r else "")
        rows.append(row)
    return {"heads": ["size", *map(_way, kinds)], "rows": rows}


def _way(kind: str) -> str:
    """Return `host to device, pinned` for `h2d_pinned`."""
    known = kind.replace("h2d", "host to device").replace("d2h", "device to host")
    return known.replace("_", ", ")


def _variant(outcome: Outcome) -> list[str]:
    """Return kernel, sizes, regime, median and 95 % interval; or the stage and the reason."""
    case = outcome.case
    what = [f"{case.kernel}.{case.label}", f"{sizes_text(case.sizes, ' ')} {case.dtype}"]
    if isinstance(outcome, Failure):
        return [*what, outcome.stage, "", "", outcome.reason]
    t = outcome.timing
    scale, unit = unit_of(outcome.time_s)
    if not isinstance(t, Measured):
        return [*what, "predicted", f"~{text_of(outcome.time_s, scale)} {unit}", "", ""]
    interval = span_text(t.low_s, t.high_s, scale)
    note = "" if t.stable else "the interval is wider than the protocol requires"
    regime = f"{t.regime}, {t.method}"
    return [*what, regime, f"{text_of(t.median_s, scale)} {unit}", interval, note]


def _how(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    timings = timings_of(outcomes)
    if not timings:
        return []
    methods = ", ".join(dict.fromkeys(t.method for t in timings))
    clocks = [t.sm_mhz for t in timings if t.sm_mhz]
    text = f"{min(clocks):.0f} to {max(clocks):.0f} MHz" if clocks else "unknown"
    protocols = ", ".join(dict.fromkeys(t.protocol for t in timings))
    return [("Methods", methods), ("SM clock", text), ("Protocols", protocols)]
