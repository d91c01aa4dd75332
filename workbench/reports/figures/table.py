"""Table of all configs: its columns, and one row an outcome."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.data.energy import energy_of, work_per_joule
from workbench.data.record import (
    CountedTraffic,
    Energy,
    Failure,
    Measured,
    Outcome,
    Predicted,
    Record,
    ResourceColumn,
    metrics,
)
from workbench.data.selection import Selection, bit_classes, interval_of
from workbench.reports.figures.detail import doubts
from workbench.reports.figures.energy import millijoules
from workbench.reports.figures.sweep import Board
from workbench.spec import label

PHASE_WORDS = {"final": "final", "first_pass": "first pass", "hot": "hot", "predict": "predicted"}


@dataclass(frozen=True)
class Column:
    """A column of the table; `cell` takes a Record, or the Resources, which a Failure may have."""

    head: str
    cell: Callable[[Record], Any]
    text: bool = False  # sorts as text; else as a number
    resource: bool = False  # read from the Resources, which a Failure may have too
    minor: bool = False  # left out on paper
    best_first: str = "ascending"  # the first click sorts this way


def columns(board: Board, records: Sequence[Record], emulated: bool = False) -> list[Column]:
    """Return the columns that these records can fill. With `emulated` what was counted takes the
    place of compiled code's resources."""
    unit = board.unit[1]
    spans = emulated or any(interval_of(r) for r in records)
    columns = [Column(f"{'predicted interval' if spans else 'time'}, {unit}", board.time_text)]
    if any(isinstance(r.timing, Measured) for r in records):
        columns.append(Column(f"95 % interval, {unit}", lambda r: _interval(board, r)))
    if any(r.flops for r in records) and not spans:
        columns.append(_falling("TFLOP/s", lambda r: _rate(r.flops / r.time_s / 1e12)))
    if not spans:
        columns.append(_falling("GB/s", lambda r: _rate(r.bytes / r.time_s / 1e9)))
    if board.members is None and not emulated:
        best = board.ratio_to_best
        columns.append(_falling("% of best", lambda r: f"{100 / o:.1f}" if (o := best(r)) else ""))
    if any(energy_of(r) for r in records):
        columns += _energies(any(r.flops for r in records))
    if any(isinstance(r.timing, Predicted) for r in records):
        columns += _terms(board, records)
    if emulated:
        return [*columns, *_traffic_columns(), *_provenance(records)]
    return [*columns, *_resource_columns(), *_provenance(records)]


def _traffic_columns() -> list[Column]:
    """Return the columns of what the emulator counted, in place of those of compiled code."""

    def column(head: str, cell: Callable[[CountedTraffic], str]) -> Column:
        return Column(head, lambda r: cell(r.traffic) if r.traffic else "")

    return [
        column("bytes moved, MB", lambda t: f"{t.bytes / 1e6:,.1f}"),
        column("threadgroups", lambda t: f"{t.threadgroups:,}"),
        column("threads", lambda t: str(t.threads)),
        column("threadgroup memory, B", lambda t: f"{t.threadgroup_bytes:,}"),
    ]


def _falling(head: str, cell: Callable[[Record], Any]) -> Column:
    return Column(head, cell, best_first="descending")


def _energies(flops: bool) -> list[Column]:
    """Return the columns of the energy of a call."""

    def column(head: str, cell: Callable[[Energy], str]) -> Column:
        return Column(head, lambda r: cell(e) if (e := energy_of(r)) else "")

    def work(memory: bool) -> Column:
        unit = "GB/J" if memory else "GFLOP/J"
        return _falling(unit, lambda r: _rate(w[0]) if (w := work_per_joule(r, memory)) else "")

    return [
        column("energy, mJ", lambda e: millijoules(e.joules)),
        column(
            "energy 95 % interval, mJ",
            lambda e: f"{millijoules(e.low_joules)}–{millijoules(e.high_joules)}",
        ),
        column("power, W", lambda e: f"{e.power_w:.0f}"),
        *([work(False)] if flops else []),
        work(True),
    ]


def _terms(board: Board, records: Sequence[Record]) -> list[Column]:
    """Return the model's terms, which explain a prediction: those that it has."""

    def term(name: str) -> Column:
        head = f"{name}, {board.unit[1]}"
        return Column(head, lambda r: board.text(getattr(r.timing, f"{name}_s", None)))

    bound = Column("bound by", lambda r: getattr(r.timing, "bound", ""), text=True)
    names = ("compute", "dram", "cache", "latency", "launch")

    def has_term(name: str) -> bool:
        return any(getattr(r.timing, f"{name}_s", None) is not None for r in records)

    return [bound, *(term(name) for name in names if has_term(name))]


def _resource_columns() -> list[Column]:
    """Return a column for each field of Resources that declares one."""
    return [
        Column(
            m.head, _reader(name, m), m.text, resource=True, minor=m.minor, best_first=m.best_first
        )
        for name, m in metrics().items()
    ]


def _reader(name: str, metric: ResourceColumn) -> Callable[[Any], str]:
    return lambda resources: metric.cell(getattr(resources, name))


def _provenance(records: Sequence[Record]) -> list[Column]:
    columns = [
        Column("checked by", lambda r: r.checked, text=True, minor=True),
        Column("error / tolerance", _error, minor=True),
    ]
    same = Column("same code as", _same, text=True, minor=True)
    classes = bit_classes(records)
    if classes:
        columns.append(
            Column("bits", lambda r: classes.get((r.seed, r.bits or ""), ""), text=True, minor=True)
        )
    return [*columns, same] if any(r.same_as for r in records) else columns


def _error(record: Record) -> str:
    return "" if record.error is None else f"{record.error:.2g}"


def _same(record: Record) -> str:
    return label(record.same_as) if record.same_as else ""


def row(n: int, o: Outcome, columns: Sequence[Column], board: Board, result: Selection) -> Any:
    """Return one outcome for the template: its cells, or the reason in their place."""
    record = o if isinstance(o, Record) else None
    tags = []
    if record is not None and record is result.winner:
        tags.append("winner" if result.is_ranked else ANY)
    elif record is not None and any(record is t for t in result.ties):
        tags.append(ANY if not result.is_ranked else "within 2 %" if result.is_predicted else "tie")
    tags += ["front"] if any(o is each for each in result.front) else []
    tags += [result.launch_kind] if o.default else []
    tags += ["baseline"] if o.case.is_baseline else []
    tags += doubts(record) if record else []
    span = next((i for i, c in enumerate(columns) if c.resource), len(columns))
    return {
        "n": n,
        "rank": n + 1 if record and result.is_ranked else "",
        "impl": o.case.impl,
        "config": label(o.case.config) if o.case.config else "library",
        "tags": tags,
        "state": PHASE_WORDS[record.phase] if record else _stage_word(o),
        "reason": o.reason if isinstance(o, Failure) else "",
        "span": span,
        "cells": [(_cell(c, o), c.minor) for c in columns if record or c.resource],
        "rest": 0 if record else sum(not c.resource for c in columns) - span,
        "bare": o.resources is None,
        "look": f"i{board.impls.index(o.case.impl) % 4}",
    }


def knob_names(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """Return each set of knobs that a Triton config of these has, by its names in order."""
    own = [o for o in outcomes if o.case.backend == "triton" and o.case.config]
    return list(dict.fromkeys(tuple(o.case.config) for o in own))


def knob_numbers(outcome: Outcome, names: Sequence[tuple[str, ...]]) -> str:
    """Return a config as numbers for the page's script: the place of its names, then its values;
    empty for what is not a Triton config."""
    config = outcome.case.config
    if outcome.case.backend != "triton" or not config:
        return ""
    return " ".join(map(str, (names.index(tuple(config)), *config.values())))


ANY = "any of these"  # the tag of a class whose members are not ranked


def _stage_word(outcome: Outcome) -> str:
    """Return the stage of a failure; a Metal kernel without a prediction was not to be timed."""
    assert isinstance(outcome, Failure)
    emulated = outcome.case.backend == "metal" and outcome.stage == "measure"
    return "no prediction" if emulated else outcome.stage


def _cell(column: Column, outcome: Outcome) -> Any:
    if column.resource:
        return "" if outcome.resources is None else column.cell(outcome.resources)  # type: ignore[arg-type]
    return column.cell(outcome) if isinstance(outcome, Record) else ""


def _interval(board: Board, record: Record) -> str:
    timing = record.timing
    if not isinstance(timing, Measured):
        return ""
    return f"{board.text(timing.low_s)}–{board.text(timing.high_s)}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3f}"
