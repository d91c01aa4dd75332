"""Place the stall samples of a profile at the instructions of a listing of the same code."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.code.code_reading import CodeError, MachineCode
from workbench.code.kinds import is_amd
from workbench.code.listing import Instruction
from workbench.traces.instruction_metrics import reason_of
from workbench.traces.trace import Dispatch, InstructionTable

ALL = ("Warp Stall Sampling (All Samples)", "samples")  # ncu's page, and our reading of a report
STALL = "stall_"  # a column of ncu's page for each reason, in samples
SELECTED = "stall_selected"  # it was issued: no stall
INDEXED = ("BRX", "JMX", "BRXU", "JMXU")  # nvdisasm prints a list of labels behind the operand
_LABEL = re.compile(r"`\(([^)]*)\)")
_WORD = re.compile(r"[^\s,.\[\]]+")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+\b")


@dataclass(frozen=True)
class StallSamples:
    """Stall samples by instruction of a listing, of all profiled launches of that code."""

    counts: tuple[int, ...]
    stalls: tuple[Mapping[str, float], ...]  # samples of each reason to stall; empty if not known
    launches: int

    @property
    def total(self) -> int:
        """Return the samples of all instructions."""
        return sum(self.counts)

    def reason(self, place: int) -> str:
        """Return the reason to stall with the most samples of an instruction; empty if unknown."""
        return next((reason for reason, _ in self.main_stalls([place])), "")

    def main_stalls(self, places: Sequence[int]) -> list[tuple[str, float]]:
        """Return the reasons to stall at these instructions, each with its share of their samples,
        the largest first. What was issued is none, so the shares sum to less than 1."""
        weights: dict[str, float] = {}
        for place in places:
            for reason, weight in self.stalls[place].items():
                weights[reason] = weights.get(reason, 0.0) + weight
        whole = max(sum(self.counts[i] for i in places), 1)
        ranked = sorted(weights.items(), key=lambda each: -each[1])
        return [(reason, weight / whole) for reason, weight in ranked if weight]

    def share(self, places: Sequence[int]) -> float:
        """Return the share of the samples that these instructions have, 0 to 1."""
        return sum(self.counts[i] for i in places) / max(self.total, 1)


def samples_of(code: MachineCode, dispatches: Sequence[Dispatch], file: str) -> StallSamples:
    """Return the samples of the launches in a profile that have the code's instructions, each at
    its offset. Raises CodeError where there is none.

    Instructions are compared as text, since ncu prints no binary. Two codes that differ in the
    hints to the scheduler alone are taken as the same.
    """
    if is_amd(code.arch):
        raise CodeError(f"{file} is a profile of NVIDIA's code; name a kernel for such a GPU.")
    reasons, fitting = [], []
    for dispatch in dispatches:
        table = dispatch.instructions
        if table is None or not has_samples(dispatch):
            continue
        if (reason := _difference(code, dispatch.name, table)) is not None:
            reasons.append(reason)
        else:
            fitting.append(table)
    if fitting:
        return _sum_samples(fitting, len(code.listing.instructions))
    if reasons:
        raise CodeError(
            f"The samples of {file} are of other code: {max(reasons)[1]}; profile this "
            "config, or name the config or cubin that was profiled."
        )
    raise CodeError(
        f"{file} has no stall samples by instruction; record with `ncu --section SourceCounters` "
        "and name the report, or its `ncu --import FILE --csv --page source --print-source sass`."
    )


def has_samples(dispatch: Dispatch) -> bool:
    """Return whether a launch was profiled with stall samples by instruction."""
    table = dispatch.instructions
    return table is not None and any(head in table.heads for head in ALL)


def _difference(code: MachineCode, name: str, table: InstructionTable) -> tuple[int, str] | None:
    """Return the offset of the first difference between a profile and the kernel's section, with a
    sentence; None for the same code."""
    known = dict(zip(table.addresses, table.texts, strict=True))
    first, last = min(known, default=0), max(known, default=0)
    theirs = {at - first: _plain_profile(text, first, last) for at, text in known.items()}
    section = _section(code)
    ops = {op.address or 0: op for op in section}
    named = code.listing.labels.items()
    labels = {name: section[i].address or 0 for i, name in named if i < len(section)}
    ours = {at: _plain_listing(op, labels) for at, op in ops.items()}
    for at in sorted(theirs.keys() | ours.keys()):
        if ours.get(at, "NOP") != theirs.get(at, "NOP"):  # padding may be left out
            there = " ".join(known.get(first + at, "no instruction").split())
            here = ops[at].text if at in ops else "no instruction"
            return at, f"at {at:#x} of {name} it has `{there}` and this code `{here}`"
    return None


def _section(code: MachineCode) -> list[Instruction]:
    """Return the instructions of the kernel's own section."""
    after = [root for root in code.listing.roots if root]
    return code.listing.instructions[: after[0] if after else None]


def _plain_listing(op: Instruction, labels: dict[str, int]) -> str:
    """Return an instruction of nvdisasm in the form that both have: targets as offsets."""
    return _plain(_LABEL.sub(lambda m: f"{labels.get(m[1], 0):#x}", op.text))


def _plain_profile(text: str, first: int, last: int) -> str:
    """Return an instruction of ncu in that form: addresses within the code become offsets. A report
    has the label before the address."""

    def offset(match: re.Match[str]) -> str:
        at = int(match[0], 16)
        return f"{at - first:#x}" if first <= at <= last else match[0]

    return _plain(_ADDRESS.sub(offset, _LABEL.sub("", text)))


def _plain(text: str) -> str:
    """Return guard and opcode of an instruction, then the sorted words of its operands: versions of
    the disassembler differ in the order of operands, and in the hints of reuse."""
    words = text.replace(".reuse", "").split()
    head = words[: 2 if text.startswith("@") else 1]
    if head and head[-1].split(".")[0] in INDEXED:
        return " ".join(head)
    return " ".join([*head, *sorted(_WORD.findall(" ".join(words[len(head) :])))])


def _sum_samples(tables: Sequence[InstructionTable], length: int) -> StallSamples:
    """Return the samples of several launches by instruction, each with its main reason."""
    counts = [0] * length
    by_reason: list[dict[str, float]] = [{} for _ in range(length)]
    for table in tables:
        at = next(table.heads.index(head) for head in ALL if head in table.heads)
        stalls = [
            (i, reason_of(head))
            for i, head in enumerate(table.heads)
            if head.startswith(STALL) and "(" not in head and head != SELECTED
        ]
        rows = dict(zip(table.addresses, table.values, strict=True))
        for place, address in zip(range(length), sorted(rows), strict=False):
            row = rows[address]
            counts[place] += int(finite_count(row[at]))
            for column, reason in stalls:
                known = by_reason[place]
                known[reason] = known.get(reason, 0.0) + finite_count(row[column])
    return StallSamples(tuple(counts), tuple(by_reason), len(tables))


def finite_count(value: float | None) -> float:
    """Return a counter's value, or 0 where it is missing or cannot be a count."""
    return value if value is not None and 0.0 <= value < 2.0**53 else 0.0
