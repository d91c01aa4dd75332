"""Page of a device's ceilings: measured, stated and library figures beside each other.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from workbench.data.record import Failure, Measured, Outcome, Record, Run, group_by
from workbench.data.units import span_text, text_of, unit_of
from workbench.device.ceilings import ALIKE, MEASURED, state_of, stem_of
from workbench.reports import render
from workbench.reports.figures.ceilings import Bar, Panel, bars
from workbench.reports.figures.timing import timings_of
from workbench.reports.tables import text_table
from workbench.spec import sizes_text

if TYPE_CHECKING:
    from rich.console import Console

Plain = Mapping[str, Any]

HEADS = (
    "ceiling", "sustained", "p5 to p95", "MHz", "boost", "p5 to p95", "MHz", "verdict",
    "% of stated", "library reference",
)  # fmt: skip
RIGHT = (*HEADS[1:7], "value")  # heads of numbers
NARROW = (0, 1, 3, 4, 6, 7)  # columns for a terminal of 100 columns
STATED_HEADS = ("ceiling", "value", "clock", "kind", "source")
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


@dataclass(frozen=True)
class StatePair:
    """A measured ceiling in both states of the clock. One without a state, such as a copy between
    host and device, is `steady`, and its `boost` is None, as is that of older runs."""

    steady: Plain | None
    boost: Plain | None

    @property
    def each(self) -> list[Plain]:
        """Return those that are there, the sustained one first."""
        return [one for one in (self.steady, self.boost) if one is not None]

    @property
    def title(self) -> str:
        """Return what is limited."""
        return str(self.each[0]["title"])

    @property
    def word(self) -> str:
        """Return the word of both, or `sound; boost failed`."""
        words = [word(one) for one in self.each]
        return words[0] if len(set(words)) == 1 else f"{words[0]}; boost {words[1]}"


def pairs_of(ceilings: Mapping[str, Plain]) -> list[StatePair]:
    """Return the measured ceilings by what they limit, in the order of first appearance."""
    named = [(stem_of(n), c) for n, c in ceilings.items() if n.endswith(MEASURED)]
    pairs = []
    for group in group_by(named, lambda pair: pair[0]).values():
        states = {c.get("state") == "boost": c for _, c in group}
        pairs.append(StatePair(states.get(False), states.get(True)))
    return pairs


def state_pairs(run: Run) -> list[StatePair]:
    """Return the run's measured ceilings in both states, level by level."""
    return pairs_of({c["name"]: c for c in measured_of(run)})


def measured_of(run: Run) -> list[dict[str, Any]]:
    """Return the run's measured ceilings, and those that failed, level by level."""
    results = [dict(c, name=n) for n, c in run.ceilings.items() if n.endswith(MEASURED)]
    order = list(LEVELS)
    return sorted(results, key=lambda c: order.index(c.get("level", "link")))


def stated_of(run: Run) -> list[dict[str, Any]]:
    """Return the ceilings of datasheets and arithmetic."""
    items = run.ceilings.items()
    return [dict(c, name=n) for n, c in items if not n.endswith(MEASURED) and "title" in c]


def page(run: Run, outcomes: Sequence[Outcome]) -> str:
    """Return the page as HTML. A run without records gives a page, too."""
    result, pairs = measured_of(run), state_pairs(run)
    shown = replace(run, kernel="Ceilings", engine="bandwidths, rates, launches", predicted=False)
    return render(
        "ceilings.html.j2",
        run=shown,
        env=run.environment,
        measured=bool(result),
        sentence=sentence(run),
        heads=HEADS,
        rows=[_cells(pair) for pair in pairs],
        both=any(pair.boost for pair in pairs),
        doubts=[(_title_with_clock(c), word(c), reason(c)) for c in result if word(c) != "sound"],
        sources=[(_title_with_clock(c), c["source"]) for c in result if "value" in c],
        stated_heads=STATED_HEADS,
        stated=[_stated_cells(c) for c in stated_of(run)],
        figure=bars(panels(pairs or [StatePair(c, None) for c in stated_of(run)]), "ceilings"),
        copies=_copies(outcomes),
        variants=[_variant(o) for o in outcomes if o.case.kernel != "host_copy"],
        how=_how(outcomes),
    )


def sentence(run: Run) -> str:
    """Return one sentence with the device's main measured ceilings."""
    device = run.environment.gpu or run.device
    rates = {c["name"]: c for c in measured_of(run) if word(c) in ("sound", "unchecked")}
    pairs = {stem_of(p.each[0]["name"]): p for p in pairs_of(rates)}
    parts = [f"{what} {_both(pairs[name])}" for name, what in WORDS.items() if name in pairs]
    one = rates.get("launch" + MEASURED)
    launch = f"a launch in a graph takes {amount(one['value'], one)}" if one else ""
    text = "; ".join(filter(None, (f"{device} {', '.join(parts)}" if parts else "", launch)))
    if text:
        return f"{text}."
    if measured_of(run):
        return f"No ceiling of {device} stands: see the reasons below."
    return f"What is stated of {device}. {NEEDS_GPU}"


def _both(pair: StatePair) -> str:
    """Return the values of a ceiling with their states, or the sustained one where the other is
    within ALIKE of it."""
    values = [c["value"] for c in pair.each]
    texts = [amount(c["value"], c) for c in pair.each]
    if len(values) == 2 and abs(values[1] / values[0] - 1) > ALIKE:
        return f"{texts[0]} sustained and {texts[1]} at the boost clock"
    state = pair.each[0].get("state")
    return texts[0] + (f" ({state})" if state and len(values) == 1 else "")


def _title_with_clock(one: Plain) -> str:
    """Return the title, with the boost clock where it is of that."""
    return f"{one['title']}, boost" if one.get("state") == "boost" else str(one["title"])


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


def digits_with_zeros(value: float) -> str:
    """Return a number as `digits` does, with trailing zeros: 4.400 beside 4.387."""
    return f"{value:.0f}" if value >= 1000 else f"{value:#.{4 if value >= 1 else 3}g}"


def _cells(pair: StatePair) -> list[str]:
    """Return the cells under HEADS."""
    spreads = [*_spread(pair.steady), *_spread(pair.boost)]
    return [pair.title, *spreads, pair.word, _stated_shares(pair), _libraries(pair)]


def _spread(one: Plain | None) -> list[str]:
    """Return the median with its unit, p5 to p95, and the clock in MHz."""
    if one is None:
        return ["", "", ""]
    if "value" not in one:
        return ["missing", "", ""]
    low, middle, high, unit = _values(one)
    clock = f"{one['clock_mhz']:.0f}" if one.get("clock_mhz") else ""
    return [f"{middle} {unit}", f"{low} to {high}", clock if one.get("state") else "any"]


def _values(one: Plain) -> tuple[str, str, str, str]:
    """Return p5, median, p95 and their unit."""
    scale, unit = scale_of(one)
    low, middle, high = (digits_with_zeros(one[end] / scale) for end in ("low", "value", "high"))
    return low, middle, high, unit


def _stated_shares(pair: StatePair) -> str:
    """Return the percent of the stated figure in each state: `81 / 107 of 989 TFLOP/s`."""
    one = pair.each[0]
    stated = one.get("stated")
    if not stated:
        return ""
    of = f"{amount(stated['value'], one)} ({kind_of(stated)})"
    shares = _state_texts(pair, lambda c: f"{100 * c['value'] / stated['value']:.0f}")
    return f"{shares} of {of}" if shares else of


def _libraries(pair: StatePair) -> str:
    """Return the library reference and its rate in each state."""
    libraries = [c["library"] for c in pair.each if c.get("library")]
    if not libraries:
        return ""
    scale, unit = scale_of(pair.each[0])
    rates = _state_texts(
        pair, lambda c: digits(c["library"]["value"] / scale) if c.get("library") else "none"
    )
    return f"{libraries[0]['name']}: {rates or 'none'} {unit}"


def _state_texts(pair: StatePair, text: Callable[[Plain], str]) -> str:
    """Return a text of each state that has a value, the sustained one's first."""
    return " / ".join(text(c) for c in pair.each if "value" in c)


def _stated_cells(one: Plain) -> list[str]:
    """Return the cells under STATED_HEADS."""
    clock = state_of(one["name"], one)
    return [one["title"], amount(one["value"], one), clock, kind_of(one), one["source"]]


def kind_of(stated: Plain) -> str:
    """Return the origin of a stated figure; older runs have `measured` for what others
    published."""
    return "published" if stated["kind"] == "measured" else str(stated["kind"])


def stated_lines(run: Run) -> list[str]:
    """Return each stated ceiling as a line for the terminal."""
    every = stated_of(run)
    return [f"{c['title']}: {amount(c['value'], c)}, {kind_of(c)}" for c in every]


def line(pair: StatePair) -> str:
    """Return one ceiling in its states as a line for the terminal."""
    return f"{pair.title}: " + "; ".join(map(_state_text, pair.each))


def _state_text(one: Plain) -> str:
    state = one.get("state", "")
    if "value" not in one:
        return f"{state} missing: {one['reason']}".strip()
    low, middle, high, unit = _values(one)
    clock = f", {one['clock_mhz']:.0f} MHz" if one.get("clock_mhz") else ""
    text = f"{state} {middle} {unit} (p5 to p95: {low} to {high}{clock})".strip()
    return text if word(one) == "sound" else f"{text}, {word(one)}: {reason(one)}"


def show(console: Console, run: Run) -> None:
    """Print the table of ceilings, and the reason of each that is not sound."""
    result = measured_of(run)
    heads = HEADS if result else STATED_HEADS
    lines = [_cells(c) for c in state_pairs(run)] or [_stated_cells(c) for c in stated_of(run)]
    wide = not result or not console.is_terminal or console.width >= 170
    shown = range(len(heads)) if wide else NARROW
    cells = ([line[n] for n in shown] for line in lines)
    console.print(text_table([heads[n] for n in shown], cells, RIGHT))
    for one in result:
        if word(one) != "sound":
            console.print(f"{_title_with_clock(one)}: {word(one)}: {reason(one)}", soft_wrap=True)


# The page's parts.


def panels(ceilings: Sequence[StatePair]) -> list[Panel]:
    """Return the bars by level, each level on an axis of its own unit; the boost clock's under the
    sustained one's."""
    drawn = []
    for level, title in LEVELS.items():
        some = [pair for pair in ceilings if pair.each[0].get("level") == level]
        if not some:
            continue
        units = list(dict.fromkeys(scale_of(c)[1] for pair in some for c in pair.each))
        rows = [_bar(c) for pair in some for c in pair.each]
        drawn.append(Panel(title, " or ".join(units), rows, level))
    return drawn


def _bar(one: Plain) -> Bar:
    scale, unit = scale_of(one)
    measured, boost = one["name"].endswith(MEASURED), one.get("state") == "boost"
    own, stated = one.get("value"), one.get("stated", {}).get("value")
    drawn = {
        "value": own if measured else None,
        "low": one.get("low"),
        "high": one.get("high"),
        "stated_value": own if stated is None and not measured else stated,
        "library": one.get("library", {}).get("value"),
    }
    scaled = {name: None if v is None else v / scale for name, v in drawn.items()}
    shown = digits_with_zeros if measured else digits
    text = f"{shown(own / scale)} {unit}" if own is not None else "missing"
    title = "at the boost clock" if boost and measured else one["title"]
    return Bar(title, text=text, word=word(one), boost=boost and measured, **scaled)


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
            row.append(f"{digits_with_zeros(rate)} ({digits_with_zeros(time)})" if r else "")
        rows.append(row)
    return {"heads": ["size", *map(_way, kinds)], "rows": rows}


def _way(kind: str) -> str:
    """Return `host to device, pinned` for `h2d_pinned`."""
    words = kind.replace("h2d", "host to device").replace("d2h", "device to host")
    return words.replace("_", ", ")


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
    regime = f"{t.regime}, {t.state}, {t.method}"
    return [*what, regime, f"{text_of(t.median_s, scale)} {unit}", interval, note]


def _how(outcomes: Sequence[Outcome]) -> list[tuple[str, str]]:
    timings = timings_of(outcomes)
    if not timings:
        return []
    methods = ", ".join(dict.fromkeys(t.method for t in timings))
    clocks = group_by((t for t in timings if t.sm_mhz), lambda t: t.state)
    spans = {s: [t.sm_mhz or 0.0 for t in some] for s, some in sorted(clocks.items())}
    each = [f"{s} {min(mhz):.0f} to {max(mhz):.0f} MHz" for s, mhz in spans.items()]
    clock = [("SM clock", "; ".join(each))] if each else []
    protocols = ", ".join(dict.fromkeys(t.protocol for t in timings))
    return [("Methods", methods), *clock, ("Protocols", protocols)]
