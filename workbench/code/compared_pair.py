"""Two outcomes that are compared: by their times, by their machine code, or by both.

By machine code WORSE is a suspicion until a GPU has measured it, and only SAME is certain: the same
instructions run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.data.comparison import Part, compared_part
from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.energy import energy_of, energy_ratio
from workbench.data.record import (
    Case,
    Comparison,
    Failure,
    Measured,
    Outcome,
    Predicted,
    Ratio,
    Record,
    Resources,
    Run,
    Verdict,
    encode_plain,
    key_of,
)
from workbench.data.verdict import NO_VERDICT, holm_verdicts
from workbench.spec import label, sizes_text

Word = Literal["FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME"]
ORDER: tuple[Word, ...] = ("FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME")
OF_TIMES = ("SLOW", NO_VERDICT, "INCONCLUSIVE", "CLOCK", "SAME", "FAST")

MEANINGS: Mapping[str, str] = {
    "FAILS": "compiles before and not after",
    "WORSE": "something that costs time got worse; suspected, until a GPU decides",
    "CHANGED": "other machine code, and nothing that got clearly worse or better",
    "NEITHER": "compiles neither before nor after",
    "BETTER": "something got better, and nothing worse",
    "FIXED": "compiles after and not before",
    "SAME": "the same machine code, launched in the same way",
}

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
    timed: ComparedPair | None = None  # of a pair by code: the same config, as a GPU timed it

    @property
    def by_code(self) -> bool:
        """Whether the machine code says the word."""
        return self.comparison.by == "code"

    @property
    def case(self) -> Case:
        """Return the config of the later outcome."""
        outcome = self.after or self.before
        assert outcome is not None
        return outcome.case

    @property
    def name(self) -> str:
        """Return a name that is unique in the run: `matmul tiles, M=4096 N=4096 K=4096, bf16`."""
        c = self.comparison
        impl = self.after.case.impl if self.after else ""
        return f"{c.kernel} {impl}, {sizes_text(c.sizes, ' ')}, {c.dtype}"

    @property
    def impl_name(self) -> str:
        """Return the name of the Impl: `matmul.tiles (tuned)`."""
        impl = (self.after or self.before) and f".{self.case.impl}"
        return f"{self.comparison.kernel}{impl or ''}" + " (tuned)" * bool(self.comparison.tuned)

    @property
    def config_name(self) -> str:
        """Return the name of the Impl with config, sizes and dtype."""
        config = label(self.case.config) if self.after or self.before else ""
        name = " ".join(filter(None, (self.impl_name, config)))
        return f"{name}; {sizes_text(self.comparison.sizes, ' ')} {self.comparison.dtype}"

    @property
    def word(self) -> str:
        """Return the word of this comparison, before a GPU was asked about a pair by code."""
        if self.by_code and self.change:
            return self.change.word
        return self.verdict.word if self.verdict else NO_VERDICT

    @property
    def decided(self) -> str:
        """Return the word that decides: a GPU's verdict replaces a suspicion."""
        return self.verdict.word if self.word == "WORSE" and self.verdict else self.word

    @property
    def verdict(self) -> Verdict | None:
        """Return the verdict of a GPU; None where it was not asked or gave none."""
        return (self.timed or self).comparison.verdict

    @property
    def unmeasured(self) -> str:
        """Return why a GPU that was asked gave no verdict."""
        times = self if not self.by_code else self.timed
        if times is None or times.verdict:
            return ""
        return times.comparison.reason or "; ".join(times.troubles)

    @property
    def measured_text(self) -> str:
        """Return ratio, interval and word of the verdict, or why there is none; empty where no GPU
        was asked."""
        if self.verdict is None:
            return self.unmeasured
        time = self.verdict.time
        return f"{time.middle:.3f}x ({time.low:.3f} to {time.high:.3f}) {self.verdict.word}"

    @property
    def troubles(self) -> list[str]:
        """Return why outcomes have no time, each reason with the operand's name."""
        named = zip(self.names, (self.before, self.after), strict=True)
        return [
            f"{name}: {'it was not measured' if o is None else o.reason.rstrip('.')}"
            for name, o in named
            if not isinstance(o, Record)
        ]

    @property
    def what_changed(self) -> str:
        """Return in one line what got worse in the machine code, then what got better, the config
        before and the commit; or why it does not compile."""
        if self.change is None:
            return ""
        lost = [o for o in (self.after, self.before) if o and self.by_code and not has_facts(o)]
        if lost:
            return missing_reason(lost[0])
        worse, better = (", ".join(each) for each in (self.change.worse, self.change.better))
        was, commit = self.outcomes[0].case.config, self.comparison.commit
        config = f"was {label(was)}" if dict(was) != dict(self.case.config) else ""
        both = [worse or better, better and worse and f"better: {better}"]
        return "; ".join(filter(None, (*both, config, commit and f"at {commit}")))

    @property
    def reasons(self) -> str:
        """Return the reasons of the word."""
        if self.by_code:
            return self.what_changed
        return self.verdict.reason if self.verdict else "; ".join(self.troubles)

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
    def energy_ratio(self) -> Ratio | None:
        """Return the joules of the later outcome over those of the earlier, or None."""
        return energy_ratio(energy_of(self.before), energy_of(self.after))

    @property
    def is_predicted(self) -> bool:
        """Return whether a time is predicted of the code before or after."""
        return any(prediction_of(o) for o in self.outcomes)

    @property
    def predicted_ratio(self) -> float | None:
        """Return the predicted time after over that before, or None where one is not known."""
        before, after = (prediction_of(o) if o else None for o in (self.before, self.after))
        return after.predicted_s / before.predicted_s if before and after else None

    def part(self) -> Part:
        """Return the pair as one part of a comparison's document."""
        both, plain = (self.before, self.after), encode_plain(self.verdict)
        if not self.by_code or self.change is None:
            return compared_part(self.name, self.word, self.reasons, both, verdict=plain)
        name = f"{self.config_name} on {self.case.device}"
        change = {"code": self.word, "worse": self.change.worse, "better": self.change.better}
        facts = {"tuned": self.comparison.tuned, "predicted_ratio": self.predicted_ratio}
        facts["unmeasured"] = self.unmeasured
        return compared_part(
            name, self.decided, self.reasons, both, verdict=plain, **change, **facts
        )


def has_facts(outcome: Outcome) -> bool:
    """Return whether an outcome has the facts of its machine code."""
    return outcome.code is not None and outcome.resources is not None


def missing_reason(outcome: Outcome) -> str:
    """Return the reason why an outcome has no facts of its machine code."""
    return outcome.reason if isinstance(outcome, Failure) else "its machine code is not stored"


def prediction_of(outcome: Outcome) -> Predicted | None:
    """Return the predicted time of an outcome, or None where there is none."""
    timing = outcome.timing if isinstance(outcome, Record) else None
    return timing if isinstance(timing, Predicted) else None


def code_change(before: Outcome, after: Outcome, threshold: float = PREDICTED) -> CodeChange:
    """Return what became of the machine code. `threshold` is the share up to which predicted times
    are the same."""
    if not (has_facts(before) and has_facts(after)):
        return CodeChange(
            "FIXED" if has_facts(after) else "FAILS" if has_facts(before) else "NEITHER"
        )
    assert before.code and after.code
    return _changed(before, after, threshold, before.code.digest == after.code.digest)


def compiled_change(before: Outcome | None, after: Outcome | None) -> CodeChange | None:
    """Return what became of the code of two timed outcomes; None where it is not known of both."""
    if not (before and after and before.resources and after.resources):
        return None
    return _changed(before, after, 0.0, before.resources.binary == after.resources.binary)


def _changed(before: Outcome, after: Outcome, threshold: float, same: bool) -> CodeChange:
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
    timed = {key_of(pair.case): pair for pair in pairs if not pair.by_code and pair.outcomes}
    return [replace(p, timed=timed.get(key_of(p.case))) for p in pairs if p.by_code]


def _known(outcome: Outcome) -> tuple[CompiledCode | None, Resources]:
    assert outcome.resources is not None
    return outcome.code, outcome.resources


def _worse(
    one: Outcome, other: Outcome, threshold: float, backwards: bool = False
) -> Iterable[str]:
    """Yield what is worse in `other` than in `one`; each text goes from before to after, which
    `backwards` turns round."""

    def text(name: str, a: object, b: object, unit: str = "") -> str:
        return f"{name} {b} to {a}{unit}" if backwards else f"{name} {a} to {b}{unit}"

    (of_a, a), (of_b, b) = _known(one), _known(other)
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


def ranked(pairs: Iterable[ComparedPair]) -> list[ComparedPair]:
    """Return the pairs, what got worse first: by word, then by time, scratch, occupancy and
    registers; equal ones by name."""
    return sorted(pairs, key=_severity)


def _severity(pair: ComparedPair) -> tuple[object, ...]:
    c = pair.comparison
    about = (pair.case.impl, pair.case.device) if pair.outcomes else ("", "")
    name = c.kernel, *about, sorted(c.sizes.items())
    place = ORDER.index(pair.word) if pair.by_code else OF_TIMES.index(pair.word)
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
