"""Page of an experiment: for each kernel the verdict, the sentence, the numbers and the charts.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from workbench.data.record import (
    Evidence,
    Failure,
    Finding,
    Measured,
    Outcome,
    Record,
    Run,
    group_by,
)
from workbench.data.selection import rate, ridge_of
from workbench.data.units import reading, span_text, text_of, unit_of
from workbench.device.apple_model import EMULATED, MODEL
from workbench.device.hardware import METAL, backend_of
from workbench.reports import render
from workbench.reports.figures.curve import chart
from workbench.reports.figures.rows import times
from workbench.reports.figures.timing import regime_of, timing_facts
from workbench.reports.figures.traffic import assumptions, traffic_table
from workbench.reports.measure import interval_origin
from workbench.reports.tables import text_table
from workbench.spec import sizes_text

if TYPE_CHECKING:
    from rich.console import Console

HEADS = ("", "value", "interval", "target", "from")
SHARE = re.compile(r"\bshares?\b")
# a space between a number and its unit, where no line may break
UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMGTP]?(?:FLOP|B)(?:/[sB])?)(?!\w))")
VARIANTS = ("kernel", "impl", "sizes", "regime", "median", "95 % interval", "rate")
EMULATED_VARIANTS = (*VARIANTS[:4], "no cache", "interval", "rate")  # of the model `apple-2`


def page(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> str:
    """Return the page as HTML. A run without records gives a page, too."""
    records = [o for o in outcomes if isinstance(o, Record)]
    shared = _shared_caveats(findings)
    emulated = EMULATED if run.predicted and backend_of(run.device) == METAL and outcomes else ""
    return render(
        "experiment.html.j2",
        run=run,
        env=run.environment,
        worked_out=bool(findings) and not outcomes,
        findings=[_finding_fields(n, f, shared) for n, f in enumerate(findings)],
        shared=shared,
        emulated=emulated,
        model=MODEL,
        intervals=interval_origin(outcomes),
        traffic=traffic_table(_distinct_outcomes(outcomes)),
        variant_heads=EMULATED_VARIANTS if emulated else VARIANTS,
        variants=[variant_row(r, run) for r in records],
        failures=failure_lines(_untold(run, outcomes, findings)),
        figure=times(records, "arms") if records else None,
        heads=HEADS,
        how=[*timing_facts(records), *(assumptions() if emulated else ())],
    )


def _distinct_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return one outcome of each config and size: those of hot calls count the same bytes."""
    first: dict[tuple[str, ...], Outcome] = {}
    for outcome in sorted(outcomes, key=lambda o: isinstance(o, Failure)):
        case = outcome.case
        first.setdefault((case.kernel, case.label, sizes_text(case.sizes), case.dtype), outcome)
    return list(first.values())


def problem_text(finding: Finding) -> str:
    """Return the finding's problem: `matmul, M=64 N=64, bf16`, or the experiment's name."""
    parts = (finding.kernel or finding.experiment, sizes_text(finding.sizes, " "), finding.dtype)
    return ", ".join(part for part in parts if part)


def is_share(result: Evidence) -> bool:
    """Return whether a bare number is a share: by its target in percent, its name or group."""
    named = SHARE.search(result.name) or SHARE.search(result.group)
    return result.unit == "1" and ("%" in result.target or named is not None)


def evidence_row(result: Evidence) -> list[str]:
    """Return the cells under `HEADS`. Predicted values have a tilde."""
    unit = "%" if is_share(result) else result.unit
    about = "~" if result.kind == "predicted" else ""
    figures, between = 3, ""
    if result.low is not None and result.high is not None:
        low, high = reading(result.low, unit), reading(result.high, unit)
        if low == high:  # a narrow interval needs one more figure
            figures = 4
            low, high = reading(result.low, unit, figures), reading(result.high, unit, figures)
        between = f"{_drop_shared_unit(low, high)} to {high}"
    met = {True: "met", False: "missed", None: "undecided"}[result.met]
    target = f"{result.target}, {met}" if result.target else ""
    value = about + reading(result.value, unit, figures)
    return [result.name, value, between, target, result.kind]


def _drop_shared_unit(low: str, high: str) -> str:
    """Return `33.90` of `33.90 µs` before `33.94 µs`, and the whole text where the units differ."""
    number, _, unit = low.rpartition(" ")
    return number if number and high.endswith(f" {unit}") else low


def variant_row(record: Record, run: Run) -> list[str]:
    """Return the cells under `VARIANTS`."""
    case, timing = record.case, record.timing
    scale, unit = unit_of(record.time_s)
    tilde = "" if record.is_measured else "~"
    sized = ", ".join(filter(None, (sizes_text(case.sizes, " "), case.dtype)))
    between = ""
    if isinstance(timing, Measured):
        between = span_text(timing.low_s, timing.high_s, scale)
    elif ends := timing.interval_s:
        between = span_text(*ends, scale)
    time = f"{tilde}{text_of(record.time_s, scale)} {unit}"
    speed = tilde + rate(record, ridge_of(run))
    return [case.kernel, case.label, sized, regime_of(record), time, between, speed]


def _untold(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> list[Failure]:
    """Return the failures, without those of predicted runs that a caveat already explains."""
    text = " ".join(c for finding in findings for c in finding.caveats) if run.predicted else ""
    failures = [o for o in outcomes if isinstance(o, Failure)]
    return [f for f in failures if f.reason.rstrip(".") not in text]


def failure_lines(failures: Sequence[Failure]) -> list[tuple[str, str]]:
    """Return name and reason of failures; those alike but for sizes or regime are merged."""
    many = Counter((f"{f.case.kernel} {f.case.label}", f.stage, f.reason) for f in failures)
    return [
        (f"{name} ({count} variants)" if count > 1 else name, f"{stage}: {reason}")
        for (name, stage, reason), count in many.items()
    ]


def groups_of(evidence: Sequence[Evidence]) -> list[tuple[str, list[Evidence]]]:
    """Return the evidence by group, in the order of first appearance."""
    return list(group_by(evidence, lambda each: each.group).items())


def show(console: Console, finding: Finding, message: set[str] | None = None) -> None:
    """Print one finding. Caveats in `message` are skipped; those printed are added to it."""
    whole = not console.is_terminal  # a sentence in a pipe is one line
    console.print(f"\n{problem_text(finding) or finding.experiment}", style="bold")
    console.print(f"{finding.word}. {finding.sentence}", soft_wrap=whole)
    for group, rows in groups_of(finding.evidence):
        cells = [evidence_row(e) for e in rows]
        wide = [n for n in range(1, len(HEADS)) if any(row[n] for row in cells)]
        heads = [HEADS[n] for n in wide]
        right = [head for head in heads if head not in ("target", "from")]
        shown = ([row[0], *(row[n] for n in wide)] for row in cells)
        table = text_table(("", *heads), shown, right)
        table.title, table.title_justify, table.columns[0].max_width = group or None, "left", 44
        console.print(table)
    message = set() if message is None else message
    for caveat in finding.caveats:
        if caveat not in message:
            console.print(caveat, style="dim", soft_wrap=whole)
    message.update(finding.caveats)


def _shared_caveats(findings: Sequence[Finding]) -> list[str]:
    """Return the caveats that several findings all have, which the page states once."""
    first, *rest = (f.caveats for f in findings) if len(findings) > 1 else ((),)
    return [caveat for caveat in first if all(caveat in other for other in rest)]


def _finding_fields(n: int, finding: Finding, shared: Sequence[str]) -> dict[str, Any]:
    groups = []
    for name, rows in groups_of(finding.evidence):
        cells = [(evidence_row(e), e.met) for e in rows]
        wide = [c for c in range(len(HEADS)) if c == 0 or any(row[c] for row, _ in cells)]
        shown = [([row[c] for c in wide], met) for row, met in cells]
        groups.append({"name": name, "heads": [HEADS[c] for c in wide], "rows": shown})
    return {
        "id": f"f{n}",
        "about": problem_text(finding),
        "word": finding.word,
        "sentence": UNIT.sub("\u00a0", finding.sentence),
        "groups": groups,
        "charts": [(c.title, chart(c, f"f{n}c{m}")) for m, c in enumerate(finding.charts)],
        "caveats": [c for c in finding.caveats if c not in shared],
    }
