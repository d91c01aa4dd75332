"""Detailed figures of each time: the table of the final, and the data for CSV."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from workbench.data.record import Measured, Outcome, Record, Run
from workbench.data.selection import config_key
from workbench.data.stats import Summary, summary
from workbench.data.units import amount
from workbench.device.ceilings import clock_words, origin_of, state_of
from workbench.reports.figures.limit_lines import shares_of, what_of
from workbench.reports.figures.sweep import Board

_SPREAD = ("min", "p5", "p25", "p75", "p95", "mean", "stddev")  # fields of a Summary
_SHOWN = ("GB/s", "TFLOP/s")  # already in the table of all configs, to three digits or four
SAME = "="  # in the data: equal to the cell before it


@dataclass(frozen=True)
class SampleTimes:
    """One measured record with statistics of its samples."""

    run: Run
    record: Record
    timing: Measured
    spread: Summary  # of the samples, seconds

    def share(self, kind: str) -> tuple[float, str] | None:
        """Return the share of the nearest ceiling of this kind ("measured" or "datasheet"), and its
        name with its state.

        None where there is none. Memory ceilings do not bound a hot call, as its inputs may come
        from the cache.
        """
        results = []
        for share, name, ceiling in shares_of(self.run.ceilings, self.record):
            memory = ceiling["unit"] == "B/s"
            clock = clock_words(state_of(name, ceiling))
            what = ", ".join(filter(None, (what_of(name, ceiling), clock)))
            if origin_of(name, ceiling) == kind and share > 0:
                results += [] if memory and self.timing.regime == "hot" else [(share, what)]
        return max(results, default=None)


def times_of(run: Run, record: Record) -> SampleTimes | None:
    """Return the record with its statistics; None for a predicted time, which has no samples."""
    timing = record.timing
    if not isinstance(timing, Measured) or not timing.samples_s:
        return None
    return SampleTimes(run, record, timing, summary(timing.samples_s))


@dataclass(frozen=True)
class Field:
    """One figure of a time, as text; empty where it is unknown."""

    head: str
    cell: Callable[[SampleTimes], str]
    group: str
    short: str = ""  # shorter head below the group's name


def fields(board: Board) -> list[Field]:
    """Return all fields in reading order. SampleTimes are in the page's unit."""
    return [
        Field("regime", lambda t: t.timing.regime, "how"),
        Field("clock state", lambda t: t.timing.state, "how"),
        Field("method", lambda t: t.timing.method, "how"),
        *_times(board),
        *_sample_fields(),
        *_work_fields(),
    ]


def _times(board: Board) -> list[Field]:
    unit = board.unit[1]
    group = f"time of one call, {unit}"
    best = board.time(board.best.time_s) if board.best else 1.0
    digits = max(0, 4 - math.floor(math.log10(best)))  # five of the best's

    def time_field(head: str, value: Callable[[SampleTimes], float]) -> Field:
        return Field(f"{head}, {unit}", lambda t: f"{board.time(value(t)):.{digits}f}", group, head)

    def spread(name: str) -> Field:
        return time_field(name, lambda t: getattr(t.spread, name))

    return [
        time_field("median", lambda t: t.timing.median_s),
        time_field("95 % low", lambda t: t.timing.low_s),
        time_field("95 % high", lambda t: t.timing.high_s),
        *(spread(name) for name in _SPREAD),
    ]


def _sample_fields() -> list[Field]:
    group = "samples"
    machine = "while it ran"
    return [
        Field("n", lambda t: str(t.spread.n), group),
        Field("left out", lambda t: str(t.timing.left_out), group),
        Field("windows", lambda t: str(t.timing.rounds), group),
        Field("stable", lambda t: "yes" if t.timing.stable else "no", group),
        Field("SM clock, MHz", lambda t: _whole(t.timing.sm_mhz), machine),
        Field("cycles", lambda t: _whole(t.timing.cycles), machine),
        Field("°C", lambda t: _whole(t.timing.temperature_c), machine),
        Field("W", lambda t: _whole(t.timing.power_w), machine),
        Field("throttled by", lambda t: "; ".join(t.timing.throttle), machine),
    ]


def _work_fields() -> list[Field]:
    work, ceiling = "work and rate", "of the nearest ceiling, %"
    return [
        Field("least bytes", lambda t: str(t.record.bytes), work),
        Field("FLOPs", lambda t: str(t.record.flops), work),
        Field("GB/s", lambda t: f"{t.record.bytes / t.record.time_s / 1e9:.4g}", work),
        Field("TFLOP/s", lambda t: f"{t.record.flops / t.record.time_s / 1e12:.4g}", work),
        Field("of measured ceiling, %", lambda t: _share(t.share("measured")), ceiling, "measured"),
        Field("measured ceiling", lambda t: _which(t.share("measured")), ceiling, "which"),
        Field("of datasheet, %", lambda t: _share(t.share("datasheet")), ceiling, "datasheet"),
        Field("datasheet's ceiling", lambda t: _which(t.share("datasheet")), ceiling, "which"),
    ]


def final_table(run: Run, board: Board, records: Sequence[Record], words: Mapping[int, str]) -> Any:
    """Return the table of the final: groups, heads and rows; {} where none was measured."""
    results = [t for r in records if (t := times_of(run, r)) is not None]
    if not results:
        return {}
    known = fields(board)
    return {
        "groups": list(Counter(field.group for field in known).items()),
        "heads": [f.short or f.head for f in known],
        "rows": [
            {
                "name": _name(board, t.record),
                "tags": [w for w in (words.get(id(t.record), ""), *doubts(t.record)) if w],
                "winner": words.get(id(t.record)) == "winner",
                "cells": [f.cell(t) for f in known],
            }
            for t in results
        ],
    }


def doubts(record: Record) -> list[str]:
    """Return warnings about a time, in a word or two each."""
    timing = record.timing
    if not isinstance(timing, Measured):
        return []
    result = ["two modes"] if timing.modes else [] if timing.stable else ["unstable"]
    result += ["bits vary"] if record.repeats is False else []
    result += ["shared GPU"] if timing.others_on_gpu else []
    result += ["throttled"] if timing.throttle else []
    return [*result, f"{timing.left_out} left out"] if timing.left_out else result


def csv_data(run: Run, board: Board, stand: Sequence[Outcome]) -> Any:
    """Return the data for the page's files that the table of all configs does not show.

    Heads, cells that all rows share, and the rest as one line a row with tabs between cells: a page
    of 1,000 configs stays under 700 kB. The lines are empty where no time was measured.
    """
    records = [times_of(run, o) if isinstance(o, Record) else None for o in stand]
    timed = [t for t in records if t is not None]
    known = [f for f in fields(board) if timed and f.head not in _SHOWN]
    seen = {field.head: {field.cell(t) for t in timed} for field in known}
    shared = {head: cells.pop() for head, cells in seen.items() if len(cells) == 1}
    rest = [f for f in known if f.head not in shared]
    lines = ["" if t is None else _line([f.cell(t) for f in rest]) for t in records]
    wanted = {"kernel": run.kernel, **run.sizes, "dtype": run.dtype, "device": run.device}
    if timed:
        wanted["protocol"] = "; ".join(sorted({t.timing.protocol for t in timed}))
    return {
        "problem": {name: str(value) for name, value in wanted.items()},
        "shared": shared,
        "heads": [f.head for f in rest],
        "lines": "\n".join(lines),
        "name": run.id,
    }


def _line(cells: Sequence[str]) -> str:
    flat = [" ".join(cell.split()) for cell in cells]
    before = [None, *flat]
    short = [SAME if c and c == b else c for b, c in zip(before, flat, strict=False)]
    return "\t".join(short).rstrip("\t")


def _name(board: Board, record: Record) -> str:
    return record.case.label + (f" ({board.launch_kind})" if record.default else "")


def _whole(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}"


def _share(result: tuple[float, str] | None) -> str:
    return "" if result is None else f"{100 * result[0]:.1f}"


def _which(result: tuple[float, str] | None) -> str:
    return "" if result is None else result[1]


# Wall time of the whole sweep by part.

_STEPS: Mapping[str, str] = {
    "start": "made ready, until the first config could be tried",
    "wait": "waiting for the compilers",
    "check": "each result compared with the reference",
    "timed": "inside timed samples",
    "flush": "inputs made ready, the cache flushed, the clock settled",
    "idle": "the rest, in which outcomes were stored",
}


def time_parts(run: Run, outcomes: Sequence[Outcome], seconds: Mapping[str, float] | None) -> Any:
    """Return each part of the wall time in seconds and percent, and the rate in configs a minute.
    {} where the run did not record it."""
    whole = sum((seconds or {}).values())
    if seconds is None or whole <= 0:
        return {}
    parts = []
    for name, s in seconds.items():
        share = 100 * s / whole
        shown = {"name": name, "s": f"{s:.1f}", "percent": f"{share:.1f}", "share": round(share, 2)}
        parts.append({**shown, "words": _STEPS.get(name, "")})
    return {"parts": parts, "words": _pace(run, outcomes, whole)}


def _was_tried(o: Outcome) -> bool:
    return o.phase in ("first_pass", "predict") if isinstance(o, Record) else o.stage != "refused"


def _pace(run: Run, outcomes: Sequence[Outcome], whole_s: float) -> str:
    """Return the configs a minute that this run itself obtained, without libraries and repeats."""
    begun = datetime.fromisoformat(run.started)
    own = [o for o in outcomes if datetime.fromisoformat(o.at) >= begun and not o.case.is_baseline]
    new = {config_key(o.case) for o in own if _was_tried(o)}
    if not new:
        return f"{whole_s:.1f} s in all; every outcome was known from earlier runs."
    many = amount(len(new), "config")
    pace = 60 * len(new) / whole_s
    final = "" if run.predicted else ", the final included"
    return f"{whole_s:.1f} s for {many}: {pace:.0f} configs a minute{final}."
