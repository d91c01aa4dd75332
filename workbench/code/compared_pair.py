"""Two outcomes that are compared: by their times, by their machine code, or by both.

WORSE code is a suspicion until a GPU has measured it. Only SAME is certain: the instructions are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.data.compiled_code import HotLoop
from workbench.data.record import (
    Case,
    Comparison,
    Measured,
    Outcome,
    Predicted,
    Record,
    Resources,
    Run,
    Verdict,
    key_of,
)
from workbench.data.verdict import NO_VERDICT, holm_verdicts

Word = Literal["FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME"]
ORDER: tuple[Word, ...] = ("FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME")
TIME_WORDS = ("SLOW", NO_VERDICT, "INCONCLUSIVE", "CLOCK", "SAME", "FAST")

# From Triton 3.6.0 to 3.9.0, of the defaults of 39 kernels on ten devices: registers above 32
# changed by -7 to +5 % in the middle half of the configs, and by more than +17 % in the last tenth;
# instructions of hot loops for the same work by -5 to +7 %, and by more than +16 %.
REGISTERS = 0.10  # share; 228 to 252 of the 255 on sm_80 is 10.5 %
FEW = 32  # registers that limit nothing: 2,048 threads of a core can have as many
LOOP = 0.10  # share of instructions
SCRATCH_BYTES = 16  # four registers of a thread: fewer are reloaded outside loops, as a rule
PREDICTED = 0.01  # share of the predicted time, which has no noise: the default of --threshold

UNITS = {None: 0, "mma": 1, "wmma": 1, "mfma": 1, "wgmma": 2, "tcgen05": 2}  # matrix units by rate


@dataclass(frozen=True)
class CodeChange:
    """The word for what became of machine code, with its reasons."""

    word: Word
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()


@dataclass(frozen=True)
class ComparedPair:
    """Two outcomes and the stored comparison of them."""

    comparison: Comparison
    before: Outcome | None  # None where it was never obtained
    after: Outcome | None
    change: CodeChange | None = None  # of the machine code, where both of it are known
    timed_pair: ComparedPair | None = None  # of a pair by code: the same config, as a GPU timed it

    @property
    def is_by_code(self) -> bool:
        """Whether the machine code says the word."""
        return self.comparison.by == "code"

    @property
    def case(self) -> Case:
        """Return the config of the later outcome."""
        outcome = self.after or self.before
        assert outcome is not None
        return outcome.case

    @property
    def word(self) -> str:
        """Return the word of this comparison, before a GPU was asked about a pair by code."""
        if self.is_by_code and self.change:
            return self.change.word
        return self.verdict.word if self.verdict else NO_VERDICT

    @property
    def final_word(self) -> str:
        """Return the word that decides: a GPU's verdict replaces a suspicion."""
        return self.verdict.word if self.word == "WORSE" and self.verdict else self.word

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict of a GPU; None where it was not asked or gave none."""
        return (self.timed_pair or self).comparison.verdict

    @property
    def names(self) -> tuple[str, str]:
        """Return the names of both operands."""
        return self.comparison.left, self.comparison.right

    @property
    def outcomes(self) -> list[Outcome]:
        """Return the outcomes that there are."""
        return [o for o in (self.before, self.after) if o]

    @property
    def timings(self) -> tuple[Measured, ...]:
        """Return both measured times; empty where one has none."""
        records = [o for o in self.outcomes if isinstance(o, Record)]
        times = tuple(r.timing for r in records if isinstance(r.timing, Measured))
        return times if len(times) == 2 else ()

    @property
    def predicted_ratio(self) -> float | None:
        """Return the predicted time after over that before, or None where one is not known."""
        before, after = (prediction_of(o) if o else None for o in (self.before, self.after))
        return after.predicted_s / before.predicted_s if before and after else None


def has_facts(outcome: Outcome) -> bool:
    """Return whether an outcome has the facts of its machine code."""
    return outcome.code is not None and outcome.resources is not None


def prediction_of(outcome: Outcome) -> Predicted | None:
    """Return the predicted time of an outcome, or None where there is none."""
    timing = outcome.timing if isinstance(outcome, Record) else None
    return timing if isinstance(timing, Predicted) else None


def code_change(before: Outcome, after: Outcome, threshold: float = PREDICTED) -> CodeChange:
    """Return what became of the machine code. `threshold` is the share up to which predicted times
    are the same."""
    was, now = has_facts(before), has_facts(after)
    if was and now and before.code and after.code:
        return _compare_code(before, after, threshold, before.code.digest == after.code.digest)
    return CodeChange("FIXED" if now else "FAILS" if was else "NEITHER")


def compiled_change(before: Outcome | None, after: Outcome | None) -> CodeChange | None:
    """Return what became of the code of two timed outcomes; None where it is not known of both."""
    if not (before and after and before.resources and after.resources):
        return None
    return _compare_code(before, after, 0.0, before.resources.binary == after.resources.binary)


def _compare_code(before: Outcome, after: Outcome, threshold: float, same: bool) -> CodeChange:
    if same:
        return CodeChange("SAME")
    worse = tuple(_worse(before, after, threshold))
    better = tuple(_worse(after, before, threshold, backwards=True))
    return CodeChange("WORSE" if worse else "BETTER" if better else "CHANGED", worse, better)


def compared_pairs(
    run: Run, outcomes: Iterable[Outcome], comparisons: Sequence[Comparison]
) -> list[ComparedPair]:
    """Return each comparison of a run with its outcomes; in a run by machine code each config, with
    what a GPU said of it. Verdicts are corrected for their number (Holm), except in a bisection,
    whose steps are not a suite."""
    by_key = {o.key: o for o in outcomes}
    threshold = run.versions.threshold if run.versions else PREDICTED
    pairs = []
    for c in comparisons if run.engine == "bisect" else holm_verdicts(comparisons):
        before, after = by_key.get(c.left_key), by_key.get(c.right_key)
        if c.by == "time":
            pairs.append(ComparedPair(c, before, after, compiled_change(before, after)))
        elif before and after:
            pairs.append(ComparedPair(c, before, after, code_change(before, after, threshold)))
    if run.kind != "code":
        return pairs
    timed = {key_of(pair.case): pair for pair in pairs if not pair.is_by_code and pair.outcomes}
    return [replace(p, timed_pair=timed.get(key_of(p.case))) for p in pairs if p.is_by_code]


def _worse(
    one: Outcome, other: Outcome, threshold: float, backwards: bool = False
) -> Iterable[str]:
    """Yield what is worse in `other` than in `one`; each text goes from before to after, which
    `backwards` turns round."""

    def text(name: str, a: object, b: object, unit: str = "") -> str:
        return f"{name} {b} to {a}{unit}" if backwards else f"{name} {a} to {b}{unit}"

    a, b, of_a, of_b = one.resources, other.resources, one.code, other.code
    assert a is not None and b is not None
    times = [known and known.predicted_s for known in map(prediction_of, (one, other))]
    if b.spill_bytes - a.spill_bytes >= SCRATCH_BYTES:
        yield text("scratch", a.spill_bytes, b.spill_bytes, " B")
    if b.occupancy < a.occupancy:
        yield text("occupancy", f"{100 * a.occupancy:.0f}", f"{100 * b.occupancy:.0f}", " %")
    # as many threads as ever are resident, and the predicted time is the same
    costs_nothing = b.occupancy >= 1 and times[0] is not None and times[0] == times[1]
    if b.registers > a.registers * (1 + REGISTERS) and b.registers > FEW and not costs_nothing:
        yield text("registers", a.registers, b.registers)
    if _bits(b) < _bits(a):
        yield text("load width", _loads(a), _loads(b))
    if UNITS.get(b.matrix_unit, 0) < UNITS.get(a.matrix_unit, 0):
        yield text("matrix unit", a.matrix_unit or "none", b.matrix_unit or "none")
    if of_a and of_b and of_b.launches > of_a.launches:
        yield text("launches", of_a.launches, of_b.launches)
    rates = loop_rates(of_a.loop, of_b.loop) if of_a and of_b else None
    if rates is not None and rates[1] > rates[0] * (1 + LOOP):
        counts = f"{rates[0]:.3g}", f"{rates[1]:.3g}"
        yield text("instructions in the hot loop", *counts, f" {rates[2]}")
    if times[0] and times[1] and times[1] > times[0] * (1 + threshold):
        share = 100 * (times[1] / times[0] - 1)
        change = f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
        yield f"predicted time {'down' if backwards else 'up'} by {change}"


def _bits(resources: Resources) -> float:
    """Return the width of loads; those by descriptor are wider than any other."""
    return 1e9 if resources.copy_engine else resources.load_bits


def _loads(resources: Resources) -> str:
    return "by descriptor" if resources.copy_engine else f"{resources.load_bits} bits"


def loop_rates(one: HotLoop | None, other: HotLoop | None) -> tuple[float, float, str] | None:
    """Return the instructions of both hot loops for the same work, and what the work is: a matrix
    instruction, else a byte loaded by a thread. A loop may be unrolled more or less often, so the
    bare counts say nothing. None where the work is not known of both."""
    if one is None or other is None:
        return None
    matrix = [loop.groups.get("matrix", 0) for loop in (one, other)]
    if all(matrix):
        rates = one.instructions / matrix[0], other.instructions / matrix[1]
        return *rates, "a matrix instruction"
    if any(matrix) or not one.load_bytes or not other.load_bytes:
        return None
    return one.instructions / one.load_bytes, other.instructions / other.load_bytes, "a byte"


def rank_pairs(pairs: Iterable[ComparedPair]) -> list[ComparedPair]:
    """Return the pairs, what got worse first: by word, then by time, scratch, occupancy and
    registers; equal ones by name."""
    return sorted(pairs, key=_severity)


def _severity(pair: ComparedPair) -> tuple[object, ...]:
    c, about = pair.comparison, [(o.case.impl, o.case.device) for o in pair.outcomes[-1:]]
    name = c.kernel, about, sorted(c.sizes.items())
    place = ORDER.index(pair.word) if pair.is_by_code else TIME_WORDS.index(pair.word)
    resources = [o.resources for o in pair.outcomes if o.resources]
    if len(resources) < 2:
        return place, -c.verdict.time.middle if c.verdict else 0.0, 0, 0.0, 0.0, name
    time = c.verdict.time.middle if c.verdict else pair.predicted_ratio or 1.0
    a, b = resources
    return (
        place,
        -time,
        a.spill_bytes - b.spill_bytes,
        b.occupancy / a.occupancy if a.occupancy else 1.0,
        -b.registers / a.registers,
        name,
    )
