"""The page of a comparison, or of a gate's many: the verdict, both sides, their distributions.

Everything here is a pure function of records, and runs where neither torch nor Triton is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.data import stats, verdict
from workbench.data.record import Comparison, Measured, Outcome, Ratio, Record, Run, Verdict
from workbench.reports import render
from workbench.reports.figures import compare as draw
from workbench.reports.figures.compare import Sides, text_of, unit_of
from workbench.spec import sizes_text
from workbench.tuner.selection import rate, ridge_of

ENGINES = ("compare", "gate")  # whose runs this page can draw

HEADS = ("side", "median", "95 % interval", "min", "p5", "p95", "n", "SM clock, MHz", "cycles",
         "rate")  # fmt: skip


@dataclass(frozen=True)
class Bout:
    """One comparison with both its outcomes."""

    comparison: Comparison
    left: Outcome | None
    right: Outcome | None

    @property
    def name(self) -> str:
        """`matmul tiles, M=4096 N=4096 K=4096, bf16`: what tells it from the run's others."""
        c = self.comparison
        sizes = sizes_text(c.sizes, " ")
        impl = self.right.case.impl if self.right else ""
        return f"{c.kernel} {impl}, {sizes}, {c.dtype}"

    @property
    def sides(self) -> Sides | None:
        """Both measured times; None where a side has none."""
        timings = [o.timing for o in (self.left, self.right) if isinstance(o, Record)]
        measured = [t for t in timings if isinstance(t, Measured)]
        if len(measured) != 2:
            return None
        c = self.comparison
        return Sides((c.left, c.right), (measured[0], measured[1]), c.verdict)


def bouts_of(outcomes: Sequence[Outcome], comparisons: Sequence[Comparison]) -> list[Bout]:
    """Each comparison with its outcomes, verdicts corrected for their number (Holm)."""
    by_key = {o.key: o for o in outcomes}
    return [
        Bout(c, by_key.get(c.left_key), by_key.get(c.right_key)) for c in corrected(comparisons)
    ]


def corrected(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Verdicts as they stand among so many: see `compare.holm`. A single one stays as it is."""
    decided = [c for c in comparisons if c.verdict is not None]
    if len(decided) < 2:
        return list(comparisons)
    looks = max(c.looks for c in decided)
    held = iter(verdict.holm([c.verdict for c in decided if c.verdict is not None], looks))
    return [c if c.verdict is None else replace(c, verdict=next(held)) for c in comparisons]


def page(
    run: Run, outcomes: Sequence[Outcome], comparisons: Sequence[Comparison] = (), said: str = ""
) -> str:
    """The whole page as HTML. `said` stands in for the sentence where there is no verdict."""
    bouts = bouts_of(outcomes, comparisons)
    one = bouts[0].comparison.verdict if len(bouts) == 1 else None
    return render(
        "compare.html.j2",
        run=run,
        env=run.environment,
        sentence=said or conclusion(bouts),
        word=one.word if one else "",
        facts=_facts(one),
        heads=HEADS,
        bouts=[_shown(n, b, run) for n, b in enumerate(bouts)],
        forest=_forest(bouts),
        verdicts=[_line(b) for b in bouts] if len(bouts) > 1 else [],
        verdict_heads=LINE_HEADS,
        how=_how(run, bouts),
    )


def conclusion(bouts: Sequence[Bout]) -> str:
    """One sentence: the verdict of one comparison, or how many of each word there are."""
    if not bouts:
        return "Nothing was compared."
    if len(bouts) == 1:
        found = bouts[0]
        c = found.comparison
        if c.verdict is not None:
            return verdict.sentence(c.verdict, c.left, c.right)
        return f"No verdict: {'; '.join(troubles(found)) or 'a side gave no time'}."
    words = [b.comparison.verdict.word if b.comparison.verdict else "no verdict" for b in bouts]
    counted = ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))
    kernels = ", ".join(dict.fromkeys(b.comparison.kernel for b in bouts))
    return f"{len(bouts)} comparisons of {kernels}: {counted}."


def troubles(bout: Bout) -> list[str]:
    """Why a side gave no time, each with the side's name."""
    c = bout.comparison
    named = ((c.left, bout.left), (c.right, bout.right))
    return [
        f"{name}: {'it was not measured' if o is None else o.reason.rstrip('.')}"
        for name, o in named
        if not isinstance(o, Record)
    ]


# Rows, for the terminal too.


def side_rows(bout: Bout, run: Run) -> list[list[str]]:
    """Cells under `HEADS`, left then right. A side without a time has its reason."""
    c = bout.comparison
    rows = []
    for name, outcome in ((c.left, bout.left), (c.right, bout.right)):
        if isinstance(outcome, Record) and isinstance(outcome.timing, Measured):
            rows.append([name, *_cells(outcome, outcome.timing, run)])
        elif outcome is not None and not isinstance(outcome, Record):
            rows.append([name, f"{outcome.stage}: {outcome.reason}"])
        else:
            rows.append([name, "was not measured"])
    return rows


def _cells(record: Record, t: Measured, run: Run) -> list[str]:
    scale, unit = unit_of(t.median_s)
    ends = [text_of(stats.quantile(t.samples_s, q), scale) for q in (0.0, 0.05, 0.95)]
    return [
        f"{text_of(t.median_s, scale)} {unit}" + ("" if t.stable else " *"),
        f"{text_of(t.low_s, scale)} to {text_of(t.high_s, scale)}",
        *ends,
        str(len(t.samples_s)),
        f"{t.sm_mhz:.0f}" if t.sm_mhz else "unknown",
        f"{t.cycles:.0f}" if t.cycles else "unknown",
        rate(record, ridge_of(run)),
    ]


def ratio_lines(v: Verdict) -> list[str]:
    """The verdict's numbers for the terminal."""
    cycles = f"{v.cycles.middle:.4f}  {_span(v.cycles)}" if v.cycles else "clock unknown"
    return [
        f"time    {v.time.middle:.4f}  {_span(v.time)}",
        f"cycles  {cycles}",
        f"threshold {_percent(v.threshold)}, noise floor {_percent(v.noise)}, {v.rounds} rounds",
    ]


LINE_HEADS = ("kernel", "impl", "sizes", "dtype", "ratio", "95 % interval", "in cycles",
              "threshold", "verdict")  # fmt: skip


def line(bout: Bout) -> list[str]:
    """One comparison under `LINE_HEADS`."""
    c, v = bout.comparison, bout.comparison.verdict
    impl = bout.right.case.impl if bout.right else ""
    at = [c.kernel, impl, " ".join(f"{k}={n}" for k, n in c.sizes.items()), c.dtype]
    if v is None:
        return [*at, "", "", "", "", "; ".join(troubles(bout)) or "no verdict"]
    cycles = f"{v.cycles.middle:.4f}" if v.cycles else "unknown"
    return [*at, f"{v.time.middle:.4f}", _span(v.time), cycles, _percent(v.threshold), v.word]


def _line(bout: Bout) -> dict[str, Any]:
    verdict = bout.comparison.verdict
    return {"cells": line(bout), "bad": verdict is None or verdict.word == "SLOW"}


# The page.


def _facts(v: Verdict | None) -> list[tuple[str, str, str]]:
    """The verdict's numbers: a value, what it is, and what it rests on."""
    if v is None:
        return []
    facts = [(f"{v.time.middle:.4f}", "ratio in time", f"95 %: {_span(v.time)}")]
    if v.cycles is not None:
        facts.append((f"{v.cycles.middle:.4f}", "ratio in cycles", f"95 %: {_span(v.cycles)}"))
    else:
        facts.append(("unknown", "ratio in cycles", "the SM clock could not be read"))
    rests = f"the noise floor; asked {_percent(v.asked)}" if v.noise > v.asked else "as asked for"
    return [
        *facts,
        (_percent(v.threshold), "threshold", rests),
        (_percent(v.noise), "noise floor", "the left side against itself"),
        (str(v.rounds), "rounds", "order reversed each time"),
    ]


def _shown(n: int, bout: Bout, run: Run) -> dict[str, Any]:
    sides = bout.sides
    figures: Mapping[str, Any] = {}
    if sides is not None:
        figures = {
            "samples": draw.distribution(sides, f"d{n}"),
            "time": draw.per_round(sides, f"t{n}"),
            "cycles": draw.per_round(sides, f"c{n}", cycles=True),
            "clock": draw.clocks(sides, f"f{n}"),
        }
    verdict = bout.comparison.verdict
    return {
        "name": bout.name,
        "word": verdict.word if verdict else "no verdict",
        "why": verdict.why if verdict else "; ".join(troubles(bout)),
        "rows": side_rows(bout, run),
        "unstable": sides is not None and not all(t.stable for t in sides.timings),
        "figures": figures,
        "names": (bout.comparison.left, bout.comparison.right),
        "notes": _notes(bout),
        "made": _made(bout),
    }


def _notes(bout: Bout) -> list[str]:
    """What a reader should doubt or know."""
    notes = []
    sides = bout.sides
    for name, t in zip(sides.names, sides.timings, strict=True) if sides else ():
        if t.throttle:
            notes.append(f"{name}: the driver lowered the clock ({', '.join(t.throttle)}).")
        if t.left_out:
            notes.append(f"{name}: {t.left_out} samples under 3/4 of the usual clock left out.")
    made = [o.resources.binary for o in (bout.left, bout.right) if o and o.resources]
    if len(made) == 2 and made[0] == made[1]:
        notes.append("Both sides are the same machine code.")
    return notes


_MADE = (("registers", "registers"), ("spill_bytes", "spilled bytes"),
         ("shared_bytes", "shared bytes"), ("programs", "programs"))  # fmt: skip


def _made(bout: Bout) -> list[tuple[str, str, str]]:
    """What the compiler made of each side, where it differs."""
    a, b = (o.resources if o else None for o in (bout.left, bout.right))
    if a is None or b is None:
        return []
    found = [(words, getattr(a, field), getattr(b, field)) for field, words in _MADE]
    found.append(("occupancy, %", f"{a.occupancy * 100:.0f}", f"{b.occupancy * 100:.0f}"))
    return [(words, str(x), str(y)) for words, x, y in found if x != y]


def _forest(bouts: Sequence[Bout]) -> Any:
    found = [(b.name, b.comparison) for b in bouts if b.comparison.verdict is not None]
    return draw.forest(found, "forest") if len(bouts) > 1 and found else None


def _how(run: Run, bouts: Sequence[Bout]) -> list[tuple[str, str]]:
    sides = next((b.sides for b in bouts if b.sides), None)
    if sides is None:
        return []
    t = sides.timings[0]
    shown = [("Regime", f"{t.regime}, {t.state} clock"), ("Method", t.method),
             ("Protocol", t.protocol)]  # fmt: skip
    if len(bouts) > 1:
        shown.append(("Correction", f"Holm over {len(bouts)} comparisons"))
    return shown


def _span(ratio: Ratio) -> str:
    return f"{ratio.low:.4f} to {ratio.high:.4f}"


def _percent(share: float) -> str:
    return f"{share * 100:.2g} %"
