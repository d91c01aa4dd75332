"""Page of an experiment: for each kernel the verdict, the sentence, the numbers and the charts.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from workbench.data.record import Evidence, Failure, Finding, Measured, Outcome, Record, Run
from workbench.reports import render
from workbench.reports.figures.compare import text_of, unit_of
from workbench.reports.figures.experiment import chart, times
from workbench.spec import brief, sizes_text
from workbench.tuner.selection import rate, ridge_of

if TYPE_CHECKING:
    from rich.console import Console

HEADS = ("", "value", "interval", "target", "from")
SHARE = re.compile(r"\bshares?\b")
# a space between a number and its unit, where no line may break
UNIT = re.compile(r"(?<=\d) (?=(?:%|[nµm]?s|[kMGTP]?(?:FLOP|B)(?:/[sB])?)(?!\w))")
VARIANTS = ("kernel", "impl", "sizes", "regime", "median", "95 % interval", "rate")


def page(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> str:
    """Return the page as HTML. A run without records gives a page, too."""
    records = [o for o in outcomes if isinstance(o, Record)]
    shared = _shared(findings)
    return render(
        "experiment.html.j2",
        run=run,
        env=run.environment,
        worked_out=bool(findings) and not outcomes,
        findings=[_shown(n, f, shared) for n, f in enumerate(findings)],
        shared=shared,
        variant_heads=VARIANTS,
        variants=[variant_row(r, run) for r in records],
        failures=failure_lines(_untold(run, outcomes, findings)),
        figure=times(records, "arms") if records else None,
        heads=HEADS,
        how=_how(records),
    )


def about(finding: Finding) -> str:
    """Return the finding's problem: `matmul, M=4096 N=4096 K=4096, bf16`, or the experiment's
    name."""
    parts = (finding.kernel or finding.experiment, sizes_text(finding.sizes, " "), finding.dtype)
    return ", ".join(part for part in parts if part)


def quantity(value: float, unit: str, figures: int = 3) -> str:
    """Return a number with its unit: seconds in a unit of their size, rates with a prefix. Numbers
    have `figures` significant digits; shares of 1 are bare, or in percent with unit "%"."""
    if unit == "%":
        return f"{100 * value:.{figures}g} %"
    if unit == "s":
        if 0 < abs(value) < 1e-7:  # hundredths of a microsecond would be lost
            return f"{digits(value * 1e9)} ns"
        scale, symbol = (1.0, "s") if abs(value) >= 1 else unit_of(abs(value))
        return f"{text_of(value, scale)} {symbol}"
    if unit in ("1", "kernels"):
        return f"{value:.0f}" if unit == "kernels" else digits(value, figures)
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size and unit != "FLOP/B":
            return f"{value / size:.{figures}g} {prefix}{unit}"
    return f"{value:.{figures}g} {unit}"


def is_share(result: Evidence) -> bool:
    """Return whether a bare number is shown as percent: its target is in percent, or its name or
    group calls it a share."""
    named = SHARE.search(result.name) or SHARE.search(result.group)
    return result.unit == "1" and ("%" in result.target or named is not None)


def digits(value: float, figures: int = 3) -> str:
    """Return significant digits without an exponent: 0.000145, 1.07, 23500. Numbers near 1 keep
    their zeros (1.00); a count is 1."""
    rounded = f"{value:.{figures}g}"
    if rounded.lstrip("-").isdigit() and abs(value) < 10 and value != round(value):
        return f"{value:.{figures - 1}f}"
    return rounded if "e" not in rounded else f"{Decimal(rounded):f}"


def evidence_row(result: Evidence) -> list[str]:
    """Return the cells under `HEADS`. Predicted values have a tilde."""
    unit = "%" if is_share(result) else result.unit
    about = "~" if result.kind == "predicted" else ""
    figures, between = 3, ""
    if result.low is not None and result.high is not None:
        low, high = quantity(result.low, unit), quantity(result.high, unit)
        if low == high:  # a narrow interval needs one more figure
            figures = 4
            low, high = quantity(result.low, unit, figures), quantity(result.high, unit, figures)
        between = f"{_without_unit(low, high)} to {high}"
    met = {True: "met", False: "missed", None: "undecided"}[result.met]
    target = f"{result.target}, {met}" if result.target else ""
    value = about + quantity(result.value, unit, figures)
    return [result.name, value, between, target, result.kind]


def _without_unit(low: str, high: str) -> str:
    """Return `33.90` of `33.90 µs` before `33.94 µs`, and the whole text where the units differ."""
    number, _, unit = low.rpartition(" ")
    return number if number and high.endswith(f" {unit}") else low


def variant_row(record: Record, run: Run) -> list[str]:
    """Return the cells under `VARIANTS`."""
    case, timing = record.case, record.timing
    scale, unit = unit_of(record.time_s)
    name = f"{case.impl} {brief(case.config)}" if case.config else case.impl
    tilde = "" if record.measured else "~"
    regime, between = "predicted", ""
    sized = ", ".join(filter(None, (sizes_text(case.sizes, " "), case.dtype)))
    if isinstance(timing, Measured):
        regime = f"{timing.regime}, host clock" if timing.method == "host" else timing.regime
        between = f"{text_of(timing.low_s, scale)} to {text_of(timing.high_s, scale)}"
    return [
        case.kernel,
        name,
        sized,
        regime,
        f"{tilde}{text_of(record.time_s, scale)} {unit}",
        between,
        tilde + rate(record, ridge_of(run)),
    ]


def _untold(run: Run, outcomes: Sequence[Outcome], findings: Sequence[Finding]) -> list[Failure]:
    """Return the failures, without those of predicted runs that a caveat already explains."""
    text = " ".join(c for finding in findings for c in finding.caveats) if run.predicted else ""
    failures = [o for o in outcomes if isinstance(o, Failure)]
    return [f for f in failures if f.reason.rstrip(".") not in text]


def failure_lines(failures: Sequence[Failure]) -> list[tuple[str, str]]:
    """Return name and reason of the failures; variants that differ in sizes or regime alone are
    merged."""
    many = Counter((f"{f.case.kernel} {f.case.label}", f.stage, f.reason) for f in failures)
    return [
        (f"{name} ({count} variants)" if count > 1 else name, f"{stage}: {reason}")
        for (name, stage, reason), count in many.items()
    ]


def groups_of(evidence: Sequence[Evidence]) -> list[tuple[str, list[Evidence]]]:
    """Return the evidence by group, in the order of first appearance."""
    groups: dict[str, list[Evidence]] = {}
    for each in evidence:
        groups.setdefault(each.group, []).append(each)
    return list(groups.items())


def show(console: Console, finding: Finding, message: set[str] | None = None) -> None:
    """Print one finding. Caveats in `message` are skipped; those printed are added to it."""
    from rich.table import Table
    from rich.text import Text

    whole = not console.is_terminal  # a sentence in a pipe is one line
    console.print(f"\n{about(finding) or finding.experiment}", style="bold")
    console.print(f"{finding.word}. {finding.sentence}", soft_wrap=whole)
    for group, rows in groups_of(finding.evidence):
        cells = [evidence_row(e) for e in rows]
        wide = [n for n in range(1, len(HEADS)) if any(row[n] for row in cells)]
        table = Table(box=None, pad_edge=False, title=group or None, title_justify="left")
        table.add_column("", no_wrap=False, max_width=44)
        for n in wide:
            table.add_column(
                HEADS[n], justify="left" if HEADS[n] in ("target", "from") else "right"
            )
        for row in cells:
            table.add_row(Text(row[0]), *(Text(row[n]) for n in wide))
        console.print(table)
    message = set() if message is None else message
    for caveat in finding.caveats:
        if caveat not in message:
            console.print(caveat, style="dim", soft_wrap=whole)
    message.update(finding.caveats)


def _shared(findings: Sequence[Finding]) -> list[str]:
    """Return the caveats of all findings, which the page states once; none where there is one
    finding."""
    first, *rest = (f.caveats for f in findings) if len(findings) > 1 else ((),)
    return [caveat for caveat in first if all(caveat in other for other in rest)]


def _shown(n: int, finding: Finding, shared: Sequence[str]) -> dict[str, Any]:
    groups = []
    for name, rows in groups_of(finding.evidence):
        cells = [(evidence_row(e), e.met) for e in rows]
        wide = [c for c in range(len(HEADS)) if c == 0 or any(row[c] for row, _ in cells)]
        groups.append(
            {
                "name": name,
                "heads": [HEADS[c] for c in wide],
                "rows": [([row[c] for c in wide], met) for row, met in cells],
            }
        )
    return {
        "id": f"f{n}",
        "about": about(finding),
        "word": finding.word,
        "sentence": UNIT.sub("\u00a0", finding.sentence),
        "groups": groups,
        "charts": [(c.title, chart(c, f"f{n}c{m}")) for m, c in enumerate(finding.charts)],
        "caveats": [c for c in finding.caveats if c not in shared],
    }


def _how(records: Sequence[Record]) -> list[tuple[str, str]]:
    timings = [r.timing for r in records]
    measured = [t for t in timings if isinstance(t, Measured)]
    if not measured:
        models = [t.model for t in timings if not isinstance(t, Measured)]
        return [("Model", models[0])] if models else []
    states = "; ".join(dict.fromkeys(f"{t.regime}, {t.state} clock" for t in measured))
    methods = ", ".join(dict.fromkeys(t.method for t in measured))
    return [("Regimes", states), ("Methods", methods), ("Protocol", measured[0].protocol)]
