"""Compare two outcomes of one config by their machine code: one word, and the reasons for it.

WORSE is a suspicion until a GPU has measured it. SAME alone is certain: the same instructions run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.record import (
    Case,
    Comparison,
    Failure,
    Outcome,
    Predicted,
    Record,
    Resources,
    Run,
    Verdict,
)
from workbench.data.verdict import holm_verdicts
from workbench.spec import label

Word = Literal["FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME"]
ORDER: tuple[Word, ...] = ("FAILS", "WORSE", "CHANGED", "NEITHER", "BETTER", "FIXED", "SAME")

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
class CodePair:
    """Two outcomes of one config, compiled twice for one device."""

    before: Outcome
    after: Outcome
    word: Word
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    tuned: str = ""  # date of the tuned config; empty for a default
    measured: Verdict | None = None  # of after against before, where a GPU decided
    unmeasured: str = ""  # why a GPU that is here gave no verdict
    commit: str = ""  # of `after`, where the config is compiled at several

    @property
    def case(self) -> Case:
        """Return the config as it is compiled after."""
        return self.after.case

    @property
    def decided(self) -> str:
        """Return the word that decides: a GPU's verdict replaces a suspicion."""
        return self.measured.word if self.word == "WORSE" and self.measured else self.word

    @property
    def note(self) -> str:
        """Return what differs beside the code: the config before, and the commit."""
        was, now = self.before.case.config, self.case.config
        config = "" if dict(was) == dict(now) else f"was {label(was)}"
        return "; ".join(filter(None, (config, self.commit and f"at {self.commit}")))

    @property
    def reasons(self) -> str:
        """Return in one line what got worse, then what got better; or why it does not compile."""
        failures = [missing_reason(o) for o in (self.after, self.before) if not has_facts(o)]
        if failures:
            return failures[0]
        better = f"better: {', '.join(self.better)}" if self.better and self.worse else ""
        parts = ", ".join(self.worse or self.better), better, self.note
        return "; ".join(part for part in parts if part)

    @property
    def is_predicted(self) -> bool:
        """Return whether a time is predicted of the code before or after."""
        return any(prediction_of(o) for o in (self.before, self.after))

    @property
    def predicted_ratio(self) -> float | None:
        """Return the predicted time after over that before, or None where one is not known."""
        before, after = prediction_of(self.before), prediction_of(self.after)
        return after.predicted_s / before.predicted_s if before and after else None


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


def paired(
    before: Outcome, after: Outcome, threshold: float = PREDICTED, tuned: str = "", commit: str = ""
) -> CodePair:
    """Return the pair with its word. `threshold` is the share up to which predicted times are the
    same."""
    word: Word
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    if not (has_facts(before) and has_facts(after)):
        word = "FIXED" if has_facts(after) else "FAILS" if has_facts(before) else "NEITHER"
    elif _known(before)[0].digest == _known(after)[0].digest:
        word = "SAME"
    else:
        worse = tuple(_worse(before, after, threshold))
        better = tuple(_worse(after, before, threshold, backwards=True))
        word = "WORSE" if worse else "BETTER" if better else "CHANGED"
    return CodePair(before, after, word, worse, better, tuned, commit=commit)


def pairs_of(
    run: Run, outcomes: Iterable[Outcome], comparisons: Sequence[Comparison]
) -> list[CodePair]:
    """Return the pairs of a run of kind `code`, with the verdicts of a GPU corrected for their
    number."""
    by_key = {o.key: o for o in outcomes}
    timed = holm_verdicts([c for c in comparisons if c.by == "time"])
    known = {(c.left_key, c.right_key): c for c in timed}
    pairs = []
    for c in comparisons:
        before, after = by_key.get(c.left_key), by_key.get(c.right_key)
        if run.versions and c.by == "code" and before and after:
            pair = paired(before, after, run.versions.threshold, c.tuned, c.commit)
            if verdict := known.get((c.left_key, c.right_key)):
                pair = replace(pair, measured=verdict.verdict, unmeasured=verdict.reason)
            pairs.append(pair)
    return pairs


def _known(outcome: Outcome) -> tuple[CompiledCode, Resources]:
    assert outcome.code is not None and outcome.resources is not None
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
    if of_b.launches > of_a.launches:
        yield text("launches", of_a.launches, of_b.launches)
    rates = loop_rates(of_a.loop, of_b.loop)
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


def ranked(pairs: Iterable[CodePair]) -> list[CodePair]:
    """Return the pairs, what got worse first: by word, then by predicted time, scratch, occupancy
    and registers; equal ones by name."""
    return sorted(pairs, key=_severity)


def _severity(pair: CodePair) -> tuple[object, ...]:
    case = pair.case
    name = case.kernel, case.impl, case.device, sorted(case.sizes.items())
    if not (has_facts(pair.before) and has_facts(pair.after)):
        return ORDER.index(pair.word), 0.0, 0, 0.0, 0.0, name
    (_, a), (_, b) = _known(pair.before), _known(pair.after)
    return (
        ORDER.index(pair.word),
        -(pair.predicted_ratio or 1.0),
        a.spill_bytes - b.spill_bytes,
        b.occupancy / a.occupancy if a.occupancy else 1.0,
        -b.registers / a.registers,
        name,
    )
