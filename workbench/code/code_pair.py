"""Compare the machine code of one config before and after: one word, and the reasons for it.

WORSE is a suspicion until a GPU has measured it. SAME alone is certain: the same instructions run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from workbench.data.compiled_code import CompiledCode, HotLoop
from workbench.data.exits import COULD_NOT_RUN, FAILED, PASSED, UNDECIDED
from workbench.data.record import Case, Resources, Verdict, encode_plain

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
    """One config compiled twice for one device: facts, or the sentence that says why not."""

    case: Case
    before: CompiledCode | str
    after: CompiledCode | str
    word: Word
    worse: tuple[str, ...] = ()
    better: tuple[str, ...] = ()
    tuned: str = ""  # date of the tuned config; empty for a default
    note: str = ""  # another difference: of the configs
    measured: Verdict | None = None  # of after against before, where a GPU decided
    unmeasured: str = ""  # why a GPU that is here gave no verdict

    @property
    def reasons(self) -> str:
        """Return in one line what got worse, then what got better; or why it does not compile."""
        failures = [facts for facts in (self.after, self.before) if isinstance(facts, str)]
        if failures:
            return failures[0]
        better = f"better: {', '.join(self.better)}" if self.better and self.worse else ""
        parts = ", ".join(self.worse or self.better), better, self.note
        return "; ".join(part for part in parts if part)

    @property
    def is_predicted(self) -> bool:
        """Return whether a time is predicted of the code before or after."""
        return bool(self._predicted_s)

    @property
    def predicted_ratio(self) -> float | None:
        """Return the predicted time after over that before, or None where one is not known."""
        times = self._predicted_s
        return times[1] / times[0] if len(times) == 2 else None

    @property
    def _predicted_s(self) -> list[float]:
        return [
            facts.predicted.predicted_s
            for facts in (self.before, self.after)
            if isinstance(facts, CompiledCode) and facts.predicted
        ]


def paired(
    case: Case,
    before: CompiledCode | str,
    after: CompiledCode | str,
    threshold: float = PREDICTED,
    tuned: str = "",
    note: str = "",
) -> CodePair:
    """Return the pair with its word. A string is the reason why there is no code; `threshold` is
    the share up to which predicted times are the same."""
    if isinstance(before, str) or isinstance(after, str):
        both = isinstance(before, str) and isinstance(after, str)
        word: Word = "NEITHER" if both else "FAILS" if isinstance(after, str) else "FIXED"
        return CodePair(case, before, after, word, tuned=tuned, note=note)
    if before.code == after.code:
        return CodePair(case, before, after, "SAME", tuned=tuned, note=note)
    worse = tuple(_worse(before, after, threshold))
    better = tuple(_worse(after, before, threshold, backwards=True))
    word = "WORSE" if worse else "BETTER" if better else "CHANGED"
    return CodePair(case, before, after, word, worse, better, tuned, note)


def _worse(
    one: CompiledCode, other: CompiledCode, threshold: float, backwards: bool = False
) -> Iterable[str]:
    """Yield what is worse in `other` than in `one`; each text goes from before to after, which
    `backwards` turns round."""

    def text(name: str, a: object, b: object, unit: str = "") -> str:
        a, b = (b, a) if backwards else (a, b)
        return f"{name} {a} to {b}{unit}"

    a, b = one.resources, other.resources
    if b.spill_bytes - a.spill_bytes >= SCRATCH_BYTES:
        yield text("scratch", a.spill_bytes, b.spill_bytes, " B")
    if b.occupancy < a.occupancy:
        yield text("occupancy", _percent(a.occupancy), _percent(b.occupancy), " %")
    if b.registers > a.registers * (1 + REGISTERS) and _scarce(b) and not _harmless(one, other):
        yield text("registers", a.registers, b.registers)
    if _bits(b) < _bits(a):
        yield text("load width", _loads(a), _loads(b))
    if UNITS.get(b.matrix_unit, 0) < UNITS.get(a.matrix_unit, 0):
        yield text("matrix unit", a.matrix_unit or "none", b.matrix_unit or "none")
    if other.launches > one.launches:
        yield text("launches", one.launches, other.launches)
    rates = loop_rates(one.loop, other.loop)
    if rates is not None and rates[1] > rates[0] * (1 + LOOP):
        counts = f"{rates[0]:.3g}", f"{rates[1]:.3g}"
        yield text("instructions in the hot loop", *counts, f" {rates[2]}")
    times = [facts.predicted.predicted_s if facts.predicted else None for facts in (one, other)]
    if times[0] and times[1] and times[1] > times[0] * (1 + threshold):
        share = 100 * (times[1] / times[0] - 1)
        change = f"{share:.0f} %" if share >= 10 else f"{share:.2g} %"
        yield f"predicted time {'down' if backwards else 'up'} by {change}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _scarce(resources: Resources) -> bool:
    return resources.registers > FEW


def _harmless(one: CompiledCode, other: CompiledCode) -> bool:
    """Return whether more registers cost nothing: as many threads as ever are resident, and the
    predicted time is the same."""
    if one.predicted is None or other.predicted is None or other.resources.occupancy < 1:
        return False
    return one.predicted.predicted_s == other.predicted.predicted_s


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
        return (
            one.instructions / matrix[0], other.instructions / matrix[1], "a matrix instruction",
        )  # fmt: skip
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
    if isinstance(pair.before, str) or isinstance(pair.after, str):
        return ORDER.index(pair.word), 0.0, 0, 0.0, 0.0, name
    a, b = pair.before.resources, pair.after.resources
    return (
        ORDER.index(pair.word),
        -(pair.predicted_ratio or 1.0),
        a.spill_bytes - b.spill_bytes,
        b.occupancy / a.occupancy if a.occupancy else 1.0,
        -b.registers / a.registers,
        name,
    )


def exit_code_of(pairs: Sequence[CodePair], broken: bool = False) -> int:
    """Return 2 where something does not compile any more or is otherwise `broken`, else 1 where
    something was measured SLOW, else 3 where something is suspected and no verdict clears it, else
    0. Machine code that is the same, or different and not worse, is not a suspicion."""
    if broken or any(pair.word == "FAILS" for pair in pairs):
        return COULD_NOT_RUN
    words = {pair.measured.word if pair.measured else "" for pair in pairs if pair.word == "WORSE"}
    if "SLOW" in words:
        return FAILED
    return UNDECIDED if words & {"", "INCONCLUSIVE"} else PASSED


def plain_pair(pair: CodePair) -> dict[str, object]:
    """Return a pair as plain data, with `null` for code that there is not."""
    both = {"before": pair.before, "after": pair.after}
    return {
        "case": encode_plain(pair.case),
        "word": pair.word,
        "tuned": pair.tuned,
        "worse": list(pair.worse),
        "better": list(pair.better),
        "predicted_ratio": pair.predicted_ratio,
        "measured": encode_plain(pair.measured) if pair.measured else None,
        "unmeasured": pair.unmeasured,
        **{n: None if isinstance(facts, str) else encode_plain(facts) for n, facts in both.items()},
        **{f"{n}_failure": s if isinstance(s, str) else "" for n, s in both.items()},
    }
