"""Page of one comparison, or of a gate's many: verdict, operands and their distributions.

Everything here is a pure function of records, and runs without torch and Triton.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.code.compared_pair import ComparedPair, compared_pairs, prediction_of
from workbench.data import verdict
from workbench.data.energy import energy_of, energy_ratio
from workbench.data.record import (
    Comparison,
    Measured,
    Outcome,
    Profile,
    Record,
    Run,
    Verdict,
    metrics,
)
from workbench.data.selection import memory_bound, rate, ridge_of
from workbench.data.units import quantity, unit_of
from workbench.reports import render, table_of_profiles
from workbench.reports.figures import compare as draw
from workbench.reports.figures import energy
from workbench.reports.figures.curve import Curve, curve_svg
from workbench.reports.figures.timing import timing_facts
from workbench.reports.measure import SPREAD, details_last, spread_cells
from workbench.reports.pair_texts import problem_name, reasons, troubles
from workbench.spec import sizes_text

ENGINES = ("compare", "gate", "bisect")  # engines whose runs this page can draw

HEADS = ("operand", *SPREAD, "SM clock, MHz", "cycles", "rate", *energy.HEADS)


def page(
    run: Run,
    outcomes: Sequence[Outcome],
    comparisons: Sequence[Comparison] = (),
    text: str = "",
    profiles: Sequence[Profile] = (),
    curves: Sequence[Curve] = (),
) -> str:
    """Return the page as HTML. `text` replaces the sentence where there is no verdict; `profiles`
    are those of the operands, `curves` those of two whole runs."""
    shown_pairs = compared_pairs(run, outcomes, comparisons)
    one = shown_pairs[0].verdict if len(shown_pairs) == 1 else None
    decided = [pair for pair in shown_pairs if pair.verdict is not None]
    return render(
        "compare.html.j2",
        run=run,
        env=run.environment,
        sentence=text or conclusion(shown_pairs),
        word=one.word if one else "",
        facts=[*_facts(one), *(_energy_facts(shown_pairs[0]) if len(shown_pairs) == 1 else ())],
        shown_pairs=[_pair_fields(n, b, run) for n, b in enumerate(shown_pairs)],
        forest=draw.forest(decided) if len(shown_pairs) > 1 and decided else None,
        curves=[(c.title, curve_svg(c, f"curve{n}")) for n, c in enumerate(curves)],
        profiled=table_of_profiles(profiles, outcomes, operand_titles(comparisons)),
        verdicts=[line(b) for b in shown_pairs] if len(shown_pairs) > 1 else [],
        verdict_heads=LINE_HEADS,
        how=_how(run, shown_pairs),
    )


def operand_titles(comparisons: Sequence[Comparison]) -> dict[str, str]:
    """Return the names of the operands by the keys of their outcomes."""
    pairs = [((c.left_key, c.left), (c.right_key, c.right)) for c in comparisons]
    return dict(each for pair in pairs for each in pair)


def conclusion(shown_pairs: Sequence[ComparedPair]) -> str:
    """Return one sentence: the verdict of one comparison, or the number of each verdict."""
    if not shown_pairs:
        return "Nothing was compared."
    if len(shown_pairs) == 1:
        pair = shown_pairs[0]
        missing = f"No verdict: {troubles(pair) or 'an operand has no time'}."
        return verdict.sentence(pair.verdict, *pair.names) if pair.verdict else missing
    words = [pair.word or "no verdict" for pair in shown_pairs]
    counted = ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
    kernels = ", ".join(dict.fromkeys(b.comparison.kernel for b in shown_pairs))
    return f"{len(shown_pairs)} comparisons of {kernels}: {counted}."


# Rows, for the terminal too.


def operand_rows(pair: ComparedPair, run: Run) -> list[list[str]]:
    """Return the cells under `HEADS`, left then right; an operand without a time has its reason."""
    rows = []
    for name, outcome in zip(pair.names, (pair.before, pair.after), strict=True):
        if isinstance(outcome, Record) and isinstance(outcome.timing, Measured):
            rows.append([name, *_cells(outcome, outcome.timing, run)])
        elif outcome is not None and not isinstance(outcome, Record):
            rows.append([name, f"{outcome.stage}: {outcome.reason}"])
        elif outcome is not None and (known := prediction_of(outcome)):
            time = f"~{quantity(known.predicted_s, 's')} predicted"
            rows.append([name, time, *[""] * (len(HEADS) - 2)])
        else:
            rows.append([name, "was not measured"])
    return rows


def _cells(record: Record, t: Measured, run: Run) -> list[str]:
    clock = [f"{value:.0f}" if value else "unknown" for value in (t.sm_mhz, t.cycles)]
    ridge = ridge_of(run)
    energies = energy.energy_cells(record, memory_bound(record, ridge))
    return [*spread_cells(t, *unit_of(t.median_s)), *clock, rate(record, ridge), *energies]


def filled_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the indices in HEADS of the columns that some operand fills."""
    whole = [row for row in rows if len(row) == len(HEADS)]
    return [n for n in range(len(HEADS)) if not whole or any(row[n] for row in whole)]


def energy_lines(pair: ComparedPair, run: Run) -> list[str]:
    """Return the ratio in energy, and why an energy is absent, as lines for the terminal."""
    ratio = energy_ratio(*map(energy_of, (pair.before, pair.after)))
    lines = [f"energy  {ratio.middle:.4f}  {energy.span(ratio)}"] if ratio else []
    return [*lines, *energy.energy_notes(pair.outcomes, run.environment)]


def ratio_lines(v: Verdict) -> list[str]:
    """Return the verdict's numbers as lines for the terminal."""
    cycles = f"{v.cycles.middle:.4f}  {energy.span(v.cycles)}" if v.cycles else "clock unknown"
    return [
        f"time    {v.time.middle:.4f}  {energy.span(v.time)}",
        f"cycles  {cycles}",
        f"threshold {_percent(v.threshold)}, noise floor {_percent(v.noise)}, {v.rounds} rounds",
    ]


_PROBLEM = ("kernel", "impl", "sizes", "dtype")
LINE_HEADS = (*_PROBLEM, "ratio", "95 % interval", "in cycles", "threshold", "verdict")


def line(pair: ComparedPair) -> list[str]:
    """Return the cells of one comparison under `LINE_HEADS`."""
    c, v = pair.comparison, pair.verdict
    impl = pair.after.case.impl if pair.after else ""
    at = [c.kernel, impl, sizes_text(c.sizes, " "), c.dtype]
    if v is None:
        ratio = f"~{pair.predicted_ratio:.4f}" if pair.predicted_ratio else ""
        return [*at, ratio, "", "", "", troubles(pair) or "no verdict"]
    cycles = f"{v.cycles.middle:.4f}" if v.cycles else "unknown"
    return [*at, f"{v.time.middle:.4f}", energy.span(v.time), cycles, _percent(v.threshold), v.word]


# The page.


def _facts(v: Verdict | None) -> list[tuple[str, str, str]]:
    """Return the verdict's numbers: a value, its name, and its basis."""
    if v is None:
        return []
    cycles = ("unknown", "the SM clock could not be read")
    if v.cycles is not None:
        cycles = (f"{v.cycles.middle:.4f}", f"95 %: {energy.span(v.cycles)}")
    floor = f"the noise floor; requested {_percent(v.requested_threshold)}"
    rests = floor if v.noise > v.requested_threshold else "as requested"
    return [
        (f"{v.time.middle:.4f}", "ratio in time", f"95 %: {energy.span(v.time)}"),
        (cycles[0], "ratio in cycles", cycles[1]),
        (_percent(v.threshold), "threshold", rests),
        (_percent(v.noise), "noise floor", "the left operand against itself"),
        (str(v.rounds), "rounds", "order reversed each time"),
    ]


def _energy_facts(pair: ComparedPair) -> list[tuple[str, str, str]]:
    ratio = energy_ratio(*map(energy_of, (pair.before, pair.after)))
    name = "ratio in energy"
    return [(f"{ratio.middle:.4f}", name, f"95 %: {energy.span(ratio)}")] if ratio else []


def _pair_fields(n: int, pair: ComparedPair, run: Run) -> dict[str, Any]:
    rows = operand_rows(pair, run)
    columns = details_last(HEADS, filled_columns(rows))
    figures: Mapping[str, Any] = {}
    if pair.timings:
        figures = {
            "samples": draw.distribution(pair, f"d{n}"),
            "time": draw.round_figure(pair, f"t{n}"),
            "cycles": draw.round_figure(pair, f"c{n}", cycles=True),
            "clock": draw.clocks(pair, f"f{n}"),
        }
    return {
        "name": problem_name(pair),
        "word": pair.word or "no verdict",
        "reason": reasons(pair),
        "heads": [HEADS[c] if pair.timings or c != 1 else "time" for c in columns],
        "rows": [
            ([row[c] for c in columns], False) if len(row) == len(HEADS) else (row, True)
            for row in rows  # cells, or a reason in their place
        ],
        "unstable": not all(t.stable for t in pair.timings),
        "figures": figures,
        "names": pair.names,
        "notes": [*_notes(pair), *energy.energy_notes(pair.outcomes, run.environment)],
        "made": _resources(pair),
    }


def _notes(pair: ComparedPair) -> list[str]:
    """Return notes on throttling, left-out samples and equal machine code."""
    notes = []
    for name, t in zip(pair.names, pair.timings, strict=True) if pair.timings else ():
        if t.throttle:
            notes.append(f"{name}: the driver lowered the clock ({', '.join(t.throttle)}).")
        if t.left_out:
            notes.append(f"{name}: {t.left_out} samples under 3/4 of the usual clock left out.")
    binaries = [o.resources.binary for o in pair.outcomes if o.resources]
    if len(binaries) == 2 and binaries[0] == binaries[1]:
        notes.append("Both operands are the same machine code.")
    return notes


def _resources(pair: ComparedPair) -> list[tuple[str, str, str]]:
    """Return the compiled resources of both operands, where they differ."""
    a, b = (o.resources if o else None for o in (pair.before, pair.after))
    if a is None or b is None:
        return []
    shown = {name: m for name, m in metrics().items() if name != "compile_s"}  # differs always
    results = [(m.head, m.cell(getattr(a, n)), m.cell(getattr(b, n))) for n, m in shown.items()]
    results.append(("programs", str(a.programs), str(b.programs)))
    return [(head, x, y) for head, x, y in results if x != y]


def _how(run: Run, shown_pairs: Sequence[ComparedPair]) -> list[tuple[str, str]]:
    if not any(pair.timings for pair in shown_pairs):
        return []
    outcomes = [o for pair in shown_pairs for o in pair.outcomes]
    shown = timing_facts(outcomes)
    if len(shown_pairs) > 1:
        shown.append(("Correction", f"Holm over {len(shown_pairs)} comparisons"))
    return [*shown, *energy.energy_how(outcomes)]


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"
