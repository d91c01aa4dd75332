"""The page of a sweep: what was asked, the answer, four kinds of figure, every config in a table.

Everything here is a pure function of records, and runs where neither torch nor Triton is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from markupsafe import Markup

from workbench.answer import (
    Answer,
    ConfigKey,
    answer,
    config_key,
    memory_bound,
    on_one_footing,
    rate,
    relevant,
    sentence,
    standing,
)
from workbench.record import Failure, Measured, Outcome, Predicted, Record, Run
from workbench.report import render
from workbench.reports import sweep_figures as draw
from workbench.reports.sweep_figures import Board
from workbench.spec import brief

_NEAR_ROOF = 0.6  # share of a roof from which on the roof is called the limit
_HEAT_LEGEND = ("≤ 1.02x", "1.05x", "1.1x", "1.2x", "1.5x", "2x", "> 2x")


@dataclass(frozen=True)
class Column:
    """One column of the table. `cell` takes a Record; a Failure has only what `made` says."""

    head: str
    cell: Callable[[Record], Any]
    text: bool = False  # sorts as text; else as a number
    made: bool = False  # read from the Resources, which a Failure may have too
    minor: bool = False  # left out on paper
    best_first: str = "ascending"  # the first click sorts this way


def page(run: Run, outcomes: Sequence[Outcome]) -> str:
    """The whole page as HTML. Never raises for want of records: a page can say that too."""
    stand = standing(relevant(run, outcomes))
    found = answer(run, outcomes)
    board = _board(run, stand, found)
    records = [o for o in stand if isinstance(o, Record)]
    even, pictured = _evened(board, stand, on_one_footing(relevant(run, outcomes)))
    compared = [o for o in pictured if isinstance(o, Record)]
    hot = [o for o in relevant(run, outcomes) if isinstance(o, Record) and o.phase == "hot"]
    columns = _columns(board, records)
    return render(
        "sweep.html.j2",
        run=run,
        unit=board.unit[1],
        env=run.environment,
        problem=", ".join(f"{k} {v}" for k, v in run.sizes.items()),
        model=next(
            (r.timing.model for r in records if isinstance(r.timing, Predicted)), "analytic"
        ),
        sentence=sentence(found),
        found=found,
        facts=_facts(run, board, found, hot),
        counts=_counts(found),
        maps=_maps(run, even, pictured),
        legend=_HEAT_LEGEND,
        roof=_roof(run, even, compared),
        roof_words=_roof_words(run, found.winner),
        scatter=_scatter(even, compared),
        finals=_finals(board, records),
        marks=[(name, i % 4, _mark(board, name, stand)) for i, name in enumerate(board.impls)],
        columns=columns,
        rows=[_row(n, o, columns, board, found) for n, o in enumerate(stand)],
        impls=board.impls,
        baselines=[i for i in board.impls if _mark(board, i, stand) == "cross"],
        ceilings=[_ceiling(k, c) for k, c in _rates(run).items()],
        how=_how(run, found, records),
    )


def _board(run: Run, stand: Sequence[Outcome], found: Answer) -> Board:
    swept = [o.case.impl for o in stand if not o.case.is_baseline]
    extra = sorted({o.case.impl for o in stand if o.case.is_baseline} - {*swept})
    order = [i for i in run.impls if i in swept]
    order += sorted({*swept} - {*order})
    scale = found.winner.time_s if found.winner else 1e-6
    unit = (1e-3, "ms") if scale >= 10e-3 else (1e-6, "µs")
    numbers = {id(o): n for n, o in enumerate(stand)}
    return Board(numbers, [*order, *extra], unit, found.winner, found.times)


def _evened(
    board: Board, stand: Sequence[Outcome], first: Mapping[ConfigKey, Record]
) -> tuple[Board, list[Outcome]]:
    """What the pictures compare: each config's screen time, also where it has a final one. The
    points keep the rows that they belong to."""
    pictured = [first.get(config_key(o.case), o) if isinstance(o, Record) else o for o in stand]
    rows = {id(shown): board.rows[id(o)] for o, shown in zip(stand, pictured, strict=True)}
    best = first.get(config_key(board.best.case), board.best) if board.best else None
    return replace(board, rows=rows, best=best), pictured


def _mark(board: Board, impl: str, stand: Sequence[Outcome]) -> str:
    if any(o.case.is_baseline for o in stand if o.case.impl == impl):
        return "cross"
    return draw.MARKS[board.impls.index(impl) % len(draw.MARKS)]


# The head of the page.


def _facts(
    run: Run, board: Board, found: Answer, hot: Sequence[Record]
) -> list[tuple[str, str, str]]:
    """The answer's numbers: a value, what it is, and what it rests on."""
    winner = found.winner
    if winner is None:
        return []
    unit = board.unit[1]
    facts = [(f"{board.text(winner.time_s)} {unit}", "one call", _interval_words(board, winner))]
    facts.append(
        (
            rate(winner, found.ridge),
            "rate",
            "from least bytes" if memory_bound(winner, found.ridge) else "from FLOPs",
        )
    )
    for rival in found.baselines[:2]:
        theirs = f"{board.text(rival.record.time_s)} {unit}"
        name = rival.record.case.impl
        if rival.ratio < 1:
            facts.append((_percent(rival.ratio), f"of {name}", theirs))
        else:
            facts.append((f"{rival.ratio:.2f}x", f"vs {name}", theirs))
    if found.default is not None and not winner.default:
        theirs = (
            f"{board.text(found.default.record.time_s)} {unit}, {_PHASE_WORDS[found.default.phase]}"
        )
        facts.append((f"{found.default.ratio:.2f}x", "vs the default", theirs))
    nearest = _nearest_roof(run, winner)
    if nearest:
        share, name, _ = nearest
        facts.append((_percent(share), "of the roof", name))
    for record in hot[:1]:
        facts.append((f"{board.text(record.time_s)} {unit}", "hot", "inputs left in the cache"))
    return facts


def _interval_words(board: Board, record: Record) -> str:
    timing = record.timing
    if isinstance(timing, Predicted):
        return f"predicted, bound by {timing.bound}"
    low, high = board.text(timing.low_s), board.text(timing.high_s)
    return f"{record.phase}; 95 %: {low} to {high}"


def _counts(found: Answer) -> str:
    words = f"{_many(found.configs, 'config')}, {found.binaries} distinct "
    words += "binary" if found.binaries == 1 else "binaries"
    stages = {**found.failed}
    refused = stages.pop("refused", 0)
    if refused:
        words += f"; {refused} refused beforehand"
    if stages:
        words += f"; {sum(stages.values())} failed "
        words += "(" + ", ".join(f"{n} {stage}" for stage, n in stages.items()) + ")"
    return words


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _how(run: Run, found: Answer, records: Sequence[Record]) -> list[tuple[str, str]]:
    """How the winner's time was obtained, term by term."""
    winner = found.winner
    if winner is None:
        return []
    timing = winner.timing
    if isinstance(timing, Predicted):
        return [("Model", timing.model), ("Winner bound by", timing.bound)]
    shown = [
        ("Regime", f"{timing.regime}: {_REGIMES[timing.regime]}"),
        ("Method", f"{timing.method}: {_METHODS[timing.method]}"),
        ("Protocol", timing.protocol),
        ("Winner's samples", f"{len(timing.samples_s)} in {_many(timing.rounds, 'window')}"),
        ("SM clock", _with_unit(timing.sm_mhz, "MHz")),
        ("Temperature", _with_unit(timing.temperature_c, "°C")),
        ("Power", _with_unit(timing.power_w, "W")),
    ]
    if launch := run.ceilings.get("launch_measured"):
        shown.append(("Launch floor", f"{launch['value'] * 1e6:.2f} µs, {launch['source']}"))
    phases = {p: sum(r.phase == p for r in records) for p in ("final", "screen")}
    words = ", ".join(f"{n} by {phase} time" for phase, n in phases.items() if n)
    return [*shown, ("Ranked", words + ", finals first" if phases["final"] else words)]


_PHASE_WORDS = {"final": "final", "screen": "screen", "hot": "hot", "predict": "predicted"}
_REGIMES = {
    "cold": "the last-level cache holds none of the inputs when a call begins",
    "hot": "the same buffers back to back",
}
_METHODS = {
    "events": "device events around each call",
    "graph": "a graph of calls, divided by their number",
    "host": "the host's clock, launch included",
}


def _with_unit(value: float | None, unit: str) -> str:
    return "not recorded" if value is None else f"{value:.0f} {unit}"


# The figures.


def _maps(run: Run, board: Board, stand: Sequence[Outcome]) -> dict[str, Any]:
    """The picture of what was varied: for each Impl a heat map, or dots where one field varies."""
    panels = []
    for n, impl in enumerate(board.impls):
        swept = [o for o in stand if o.case.impl == impl and not o.case.is_baseline]
        fields = _varied(run, swept)
        if not fields or not any(isinstance(o, Record) for o in swept):
            continue
        if len(fields) == 1:
            records = [o for o in swept if isinstance(o, Record)]
            namer = _namer(fields[0], swept)
            svg = draw.one_field(board, records, fields[0], f"one{n}", namer)
        else:
            svg = draw.heat_map(board, swept, (fields[0], fields[1]), impl, f"heat{n}")
        panels.append(_panel(impl, fields, svg))
    if not panels:
        return {}
    title = " and ".join(dict.fromkeys(f for p in panels for f in p["fields"]))
    alike = len({p["fields"] for p in panels}) == 1
    for panel in panels:
        panel["caption"] = panel["impl"]
        if not alike:
            panel["caption"] += f": {' and '.join(panel['fields'])}"
    rest = list(dict.fromkeys(f for p in panels for f in p["rest"]))
    heat = any(len(p["fields"]) > 1 for p in panels)
    return {"title": f"Best time for each {title}", "heat": heat, "panels": panels, "rest": rest}


def _panel(impl: str, fields: Sequence[str], svg: Markup) -> dict[str, Any]:
    return {"impl": impl, "fields": tuple(fields[:2]), "rest": fields[2:], "svg": svg}


def _varied(run: Run, swept: Sequence[Outcome]) -> list[str]:
    """Fields that took several values: those asked for first, then those that were tuned, and
    `block_m`, `block_n` before all."""
    values: dict[str, set[int]] = {}
    for outcome in swept:
        for name, value in outcome.case.config.items():
            values.setdefault(name, set()).add(value)
    moving = [name for name, seen in values.items() if len(seen) > 1]
    knobs = {f: k for impl in run.impls.values() for f, k in impl.get("knobs", {}).items()}
    asked = [f for f in moving if knobs.get(f) in run.vary]
    ordered = asked + [f for f in moving if f not in asked]
    if {"block_m", "block_n"} <= {*asked}:
        first = ["block_m", "block_n"]
        ordered = first + [f for f in ordered if f not in first]
    return ordered


def _namer(field: str, swept: Sequence[Outcome]) -> Callable[[int], str]:
    """Ticks of warps say threads too, as the compiler counted them."""
    threads = {
        o.case.config[field]: o.resources.threads
        for o in swept
        if o.resources and field in o.case.config
    }
    if field != "num_warps" or not threads:
        return str
    return lambda v: f"{v}\n{threads[v]} threads" if v in threads else str(v)


def _roof(run: Run, board: Board, records: Sequence[Record]) -> dict[str, Any]:
    if not records:
        return {}
    if any(r.flops for r in records):
        some = [r for r in records if r.flops and r.bytes]
        return {"kind": "roofline", "svg": draw.roofline(board, some, _rates(run), "roof")}
    return {"kind": "bandwidth", "svg": draw.bandwidth(board, records, _rates(run), "roof")}


def _roofs(run: Run, record: Record) -> list[tuple[float, str, bool]]:
    """Share of each roof over this record, which one, and whether it is memory's."""
    found = []
    for name, c in run.ceilings.items():
        if c.get("value", 0) <= 0 or name.startswith("cache"):
            continue
        if c.get("unit") == "FLOP/s" and record.flops:
            share = record.flops / record.time_s / c["value"]
        elif c.get("unit") == "B/s":
            share = record.bytes / record.time_s / c["value"]
        else:
            continue
        found.append((share, _ceiling(name, c)[2], c["unit"] == "B/s"))
    return found


def _nearest_roof(run: Run, record: Record) -> tuple[float, str, bool] | None:
    """The lowest roof over this record: the one that it can least pass."""
    return max(_roofs(run, record), default=None)


def _roof_words(run: Run, winner: Record | None) -> str:
    nearest = _nearest_roof(run, winner) if winner else None
    if winner is None or nearest is None:
        return ""
    share, name, memory = nearest
    verb = "is predicted to reach" if not winner.measured else "reaches"
    words = f"The winner {verb} {_percent(share)} of its nearest roof, {name}"
    others = [(s, n) for s, n, m in _roofs(run, winner) if m == memory and n != name]
    words += "".join(f", and {_percent(s)} of {n}" for s, n in others)
    if share > 1:
        return f"{words}: more than the ceiling allows, so a cache served it or the ceiling is low."
    if share < _NEAR_ROOF:
        return f"{words}: that roof is not what limits it yet."
    if isinstance(winner.timing, Predicted):
        return f"{words}. The model's longest term is {winner.timing.bound}."
    return f"{words}: {'memory' if memory else 'arithmetic'} is what limits it."


def _rates(run: Run) -> dict[str, Any]:
    """The ceilings that are rates: a launch floor is a time, and stands elsewhere."""
    return {k: dict(c) for k, c in run.ceilings.items() if c.get("unit") != "s"}


def _ceiling(name: str, ceiling: Any) -> tuple[str, bool, str, str]:
    """How a ceiling is drawn (what limits, whether dashed), its words and its source."""
    what = {"dram": "DRAM", "cache": "last-level cache"}.get(name.removesuffix("_measured"), name)
    if "dtype" in ceiling:
        what = f"{ceiling['dtype']} {what}"
    kind = ceiling.get("kind", "datasheet")
    value, unit = ceiling.get("value", 0), ceiling.get("unit", "")
    shown = f"{value / 1e12:.4g} T{unit}" if value >= 1e11 else f"{value / 1e9:.4g} G{unit}"
    drawn = "compute" if unit == "FLOP/s" else "cache" if name.startswith("cache") else "memory"
    words = f"{what} at {shown} ({kind})"
    return drawn, kind != "measured", words, ceiling.get("source", "source not stated")


def _scatter(board: Board, records: Sequence[Record]) -> list[Markup]:
    known = [r for r in records if r.resources is not None]
    if not known:
        return []
    return [
        draw.against(board, known, lambda m: m.occupancy * 100, "occupancy, %", "occ"),
        draw.against(board, known, lambda m: m.registers, "registers per thread", "reg"),
        draw.against(board, known, lambda m: m.spill_bytes, "spilled bytes per thread", "spill"),
    ]


def _finals(board: Board, records: Sequence[Record]) -> Markup | None:
    last = [r for r in records if r.phase == "final"]
    return draw.finals(board, last, "finals") if last else None


# The table.


def _columns(board: Board, records: Sequence[Record]) -> list[Column]:
    unit = board.unit[1]
    columns = [Column(f"time, {unit}", lambda r: board.text(r.time_s))]
    if any(isinstance(r.timing, Measured) for r in records):
        columns.append(Column(f"95 % interval, {unit}", lambda r: _interval(board, r)))
    if any(r.flops for r in records):
        columns.append(_falling("TFLOP/s", lambda r: _rate(r.flops / r.time_s / 1e12)))
    columns.append(_falling("GB/s", lambda r: _rate(r.bytes / r.time_s / 1e9)))
    columns.append(_falling("% of best", lambda r: _of_best(board, r)))
    if any(isinstance(r.timing, Predicted) for r in records):
        columns += _terms(board)
    return [*columns, *_made(), *_provenance()]


def _of_best(board: Board, record: Record) -> str:
    over = board.over_best(record)
    return f"{100 / over:.1f}" if over else ""


def _falling(head: str, cell: Callable[[Record], Any]) -> Column:
    return Column(head, cell, best_first="descending")


def _terms(board: Board) -> list[Column]:
    """The model's terms, which is what a prediction can be doubted by."""

    def term(name: str) -> Column:
        return Column(
            f"{name}, {board.unit[1]}", lambda r: board.text(getattr(r.timing, f"{name}_s", None))
        )

    bound = Column("bound by", lambda r: getattr(r.timing, "bound", ""), text=True)
    return [bound, *(term(t) for t in ("compute", "dram", "cache", "latency", "launch"))]


def _made() -> list[Column]:
    """What the compiler made, in the order in which it explains a time."""

    def of(head: str, cell: Callable[[Any], Any], **more: Any) -> Column:
        return Column(head, cell, made=True, **more)

    return [
        of("registers", lambda m: m.registers),
        of("spills, B", lambda m: m.spill_bytes),
        of("shared, KiB", lambda m: f"{m.shared_bytes / 1024:.3g}"),
        of("occupancy, %", lambda m: f"{m.occupancy * 100:.0f}", best_first="descending"),
        of("limited by", lambda m: m.limiter, text=True),
        of("waves", lambda m: f"{m.waves:.2f}"),
        of("idle tail, %", lambda m: f"{m.tail * 100:.0f}"),
        of("load, bits", lambda m: m.load_bits or "", minor=True, best_first="descending"),
        of("matrix unit", lambda m: m.matrix_unit or "none", text=True, minor=True),
        of("compile, s", lambda m: f"{m.compile_s:.1f}", minor=True),
    ]


def _provenance() -> list[Column]:
    return [
        Column("checked by", lambda r: r.checked, text=True, minor=True),
        Column("error / tolerance", lambda r: f"{r.error:.2g}", minor=True),
        Column("same code as", _same, text=True, minor=True),
    ]


def _same(record: Record) -> str:
    return brief(record.same_as) if record.same_as else ""


def _row(n: int, o: Outcome, columns: Sequence[Column], board: Board, found: Answer) -> Any:
    record = o if isinstance(o, Record) else None
    tags = []
    if record is not None and record is found.winner:
        tags.append("winner")
    elif record is not None and any(record is t for t in found.ties):
        tags.append("within 2 %" if found.predicted else "tie")
    tags += ["default"] if o.default else []
    tags += ["baseline"] if o.case.is_baseline else []
    own = [c for c in columns if not c.made]
    return {
        "n": n,
        "rank": n + 1 if record else "",
        "impl": o.case.impl,
        "config": brief(o.case.config) if o.case.config else "library",
        "tags": tags,
        "state": _PHASE_WORDS[record.phase] if record else o.stage,  # type: ignore[union-attr]
        "reason": o.reason if isinstance(o, Failure) else "",
        "span": columns.index(next(c for c in columns if c.made)),
        "cells": [(_cell(c, o), c.minor) for c in columns if record or c.made],
        "rest": 0 if record else len(own) - columns.index(next(c for c in columns if c.made)),
        "bare": o.resources is None,
        "look": f"i{board.impls.index(o.case.impl) % 4}",
    }


def _cell(column: Column, outcome: Outcome) -> Any:
    if column.made:
        return "" if outcome.resources is None else column.cell(outcome.resources)  # type: ignore[arg-type]
    return column.cell(outcome) if isinstance(outcome, Record) else ""


def _interval(board: Board, record: Record) -> str:
    timing = record.timing
    if not isinstance(timing, Measured):
        return ""
    return f"{board.text(timing.low_s)}–{board.text(timing.high_s)}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"
