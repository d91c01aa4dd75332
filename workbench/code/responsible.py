"""The lines whose instructions are responsible for what counters of a kernel show.

For a class of instructions they are those with the largest part of it. A sample is of the
instruction that waits; the line is that of the load, or of the instruction that wrote, what it
waits for, as far as registers tell.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from workbench.code.code_samples import finite_count
from workbench.code.listing import Instruction
from workbench.code.profiled_code import listing_of
from workbench.code.sass_registers import Definitions
from workbench.data.units import percent
from workbench.traces.instruction_class import InstructionClass
from workbench.traces.instruction_metrics import (
    ACCESSES,
    BULK_STORES,
    EXCESSIVE,
    EXCESSIVE_SHARED,
    EXECUTED,
    FLOPS,
    IDEAL,
    LANES_ACTIVE,
    LANES_ON,
    MIXES,
    NARROW,
    SAMPLES,
    STALL,
    reason_of,
)
from workbench.traces.trace import Dispatch, InstructionTable

MOST_LINES = 3  # of a class
LEAST_SHARE = 0.1  # of a class, from which on a second or third line is named
HOTTEST = 64  # waiting instructions of a reason that are traced back
LANES = 32

_LOADS = frozenset({"LDG", "LD", "LDL", "ATOM", "ATOMG", "TEX", "TLD", "TLD4", "SULD", "LDTM",
                    "SYNCS"})  # fmt: skip
_SHORT = frozenset({"LDS", "LDSM", "SHFL", "ATOMS", "MUFU", "S2R", "S2UR", "I2F", "F2I", "F2F",
                    "FRND", "POPC", "FLO", "BREV", "MATCH", "REDUX", "SYNCS", "MOVM"})  # fmt: skip
_FP64 = re.compile(r"(DADD|DMUL|DFMA|DMNMX|DSETP|DMMA|MUFU\.\w*64\w*|[FI]2[FI][\w.]*F64[\w.]*)")
_XU = frozenset({"MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "I2I"})
_SPILLS = frozenset({"LDL", "STL"})
# Waits for groups of asynchronous copies name no register. Their samples stand at themselves or at
# the instruction behind; those of a barrier stand behind it (golden pages of one H200).
_GROUP_WAITS = {"DEPBAR": frozenset({"LDGSTS", "UTMASTG", "UTMAREDG"}),
                "LDGDEPBAR": frozenset({"LDGSTS"})}  # fmt: skip
# Accesses that read their registers late, so that whoever overwrites these waits for them.
_LATE_READERS = frozenset({"LDGSTS", "LDG", "STG", "ST", "STL", "RED", "REDG", "ATOMG", "ATOM"})


@dataclass(frozen=True)
class _WaitKind:
    """What a class of waiting is sampled as, and which instructions are waited for."""

    reasons: frozenset[str]
    writers: frozenset[str] | None  # None for any


_WAITS: Mapping[InstructionClass, _WaitKind] = {
    InstructionClass.LOAD_WAITS: _WaitKind(frozenset({"long_scoreboard"}), _LOADS),
    InstructionClass.EXCHANGE_WAITS: _WaitKind(frozenset({"barrier", "short_scoreboard"}), _SHORT),
    InstructionClass.ARITHMETIC_WAITS: _WaitKind(frozenset({"wait", "math_pipe_throttle"}), None),
    InstructionClass.TENSOR_MEMORY_WAITS: _WaitKind(
        frozenset({"long_scoreboard"}), frozenset({"LDTM"})
    ),
}


@dataclass
class _LineShare:
    """What one line of source, or one instruction without a line, has of a class."""

    weight: float = 0.0
    shares: dict[tuple[int, int | None], float] = field(default_factory=dict)

    def add(self, responsible: int, waiting: int | None, weight: float) -> None:
        self.weight += weight
        key = responsible, waiting
        self.shares[key] = self.shares.get(key, 0.0) + weight


def responsible_lines(dispatch: Dispatch) -> dict[str, tuple[str, ...]]:
    """Return the lines that are responsible for each class of instructions, by the class's name:
    `mine.py:12 (63 % of the waits for loads: LDG.E.128, awaited by FADD at mine.py:14)`, at most
    three, those under 10 % left out. Empty without a table of instructions."""
    if dispatch.instructions is None or not dispatch.instructions.texts:
        return {}
    code = _CountedCode(dispatch.instructions)
    result: dict[str, tuple[str, ...]] = {}
    for kind in InstructionClass:
        shares = code.waits(kind) if kind in _WAITS else code.parts(kind)
        if texts := tuple(code.texts(kind, shares)):
            result[kind.value] = texts
    return result


_Part = tuple[int, int | None, float]  # responsible instruction, waiting one, weight


class _CountedCode:
    """The instructions of a table with its columns."""

    def __init__(self, table: InstructionTable) -> None:
        self._table = table
        self._ops = listing_of(table)
        self.instructions = self._ops.instructions
        first = min(table.addresses)
        rows = {address - first: row for row, address in enumerate(table.addresses)}
        self._rows = [rows[op.address or 0] for op in self.instructions]
        self._definitions: Definitions | None = None

    @property
    def definitions(self) -> Definitions:
        """Return what wrote which register, computed at the first use."""
        if self._definitions is None:
            self._definitions = Definitions(self._ops)
        return self._definitions

    def column(self, heads: Sequence[str]) -> list[float] | None:
        """Return the first column of these heads, a value for each instruction; None where the
        table has none of them."""
        for head in heads:
            if head in self._table.heads:
                at = self._table.heads.index(head)
                return [finite_count(self._table.values[row][at]) for row in self._rows]
        return None

    # Classes by what ran

    def parts(self, kind: InstructionClass) -> Iterator[_Part]:
        """Yield the instructions of a class, each with what it has of it."""
        weights = _WEIGHTS[kind](self)
        for place, weight in enumerate(weights or ()):
            if weight > 0:
                yield place, None, weight

    def executions(self, holds: Callable[[Instruction], bool]) -> list[float] | None:
        """Return the executions of the instructions for which a condition holds, else 0."""
        counts = self.column(EXECUTED)
        if counts is None:
            return None
        return [n if holds(op) else 0.0 for op, n in zip(self.instructions, counts, strict=True)]

    def lanes_off(
        self, heads: Sequence[str], holds: Callable[[Instruction], bool]
    ) -> list[float] | None:
        """Return the lanes that were off in the executions of such instructions."""
        counts, lanes = self.executions(holds), self.column(heads)
        if counts is None or lanes is None:
            return None
        return [max(0.0, LANES * n - on) if n else 0.0 for n, on in zip(counts, lanes, strict=True)]

    # Waits

    def waits(self, kind: InstructionClass) -> Iterator[_Part]:
        """Yield what is waited for, the instruction that waits, and its samples."""
        wait = _WAITS[kind]
        for head in self._table.heads:
            if not head.startswith(STALL) or "(" in head or reason_of(head) not in wait.reasons:
                continue
            samples = self.column([head]) or []
            hot = sorted((i for i, n in enumerate(samples) if n), key=lambda i: -samples[i])
            for place in hot[:HOTTEST]:
                writer = self._find_writer(place, reason_of(head), wait.writers)
                if writer is not None:
                    yield writer, place, samples[place]
                elif kind != InstructionClass.TENSOR_MEMORY_WAITS:
                    yield place, place, samples[place]

    def _find_writer(self, place: int, reason: str, stems: frozenset[str] | None) -> int | None:
        """Return the instruction that another one waits for; None where registers do not tell."""
        here = _stem(self.instructions[place])
        before = self._stem_at(place - 1) if place else ""
        if reason == "barrier":
            return place - 1 if before == "BAR" and here != "BAR" else None
        if reason == "long_scoreboard":
            groups = _GROUP_WAITS.get(here) or _GROUP_WAITS.get(before)
            if groups is not None and stems == _LOADS:
                return self.definitions.nearest(place, lambda n: self._stem_at(n) in groups)
        return self._writer(place, stems)

    def _writer(self, place: int, stems: frozenset[str] | None) -> int | None:
        """Return the nearest instruction with one of these opcodes that wrote what an instruction
        reads; else what it overwrites; else that reads late what it overwrites."""
        use = self.definitions.uses[place]
        for names in (use.read, use.destinations):
            for writer in self.definitions.writers(place, names):
                if stems is None or self._stem_at(writer) in stems:
                    return writer
        if stems != _LOADS or not use.destinations:
            return None
        return self.definitions.nearest_reader(
            place, use.destinations, lambda n: self._stem_at(n) in _LATE_READERS
        )

    def _stem_at(self, place: int) -> str:
        return _stem(self.instructions[place])

    # Text

    def texts(self, kind: InstructionClass, parts: Iterator[_Part]) -> Iterator[str]:
        """Yield the lines with the largest shares of a class."""
        lines: dict[str, _LineShare] = {}
        for responsible, waiting, weight in parts:
            lines.setdefault(self._key(responsible), _LineShare()).add(responsible, waiting, weight)
        whole = math.fsum(line.weight for line in lines.values())
        largest = sorted(lines.items(), key=lambda each: -each[1].weight)[:MOST_LINES]
        of = f" of the {kind.value}"
        for number, (at, line) in enumerate(largest):
            share = line.weight / whole
            if number and share < LEAST_SHARE:
                return
            responsible, waiting = max(line.shares, key=line.shares.__getitem__)
            yield f"{at} ({percent(share)}{of}: {self._what(at, responsible, waiting)})"
            of = ""

    def _what(self, at: str, responsible: int, waiting: int | None) -> str:
        name = self.instructions[responsible].opcode
        if waiting is None:
            return name
        if waiting == responsible:
            return f"{name} waits there"
        there = self._key(waiting)
        where = "" if there == at else f" at {there}"
        return f"{name}, awaited by {self.instructions[waiting].opcode}{where}"

    def _key(self, place: int) -> str:
        """Return the line of an instruction; without one its offset in the function."""
        op = self.instructions[place]
        return f"{op.source.file}:{op.source.line}" if op.source else f"+{op.address or 0:#x}"


def _stem(op: Instruction) -> str:
    return op.opcode.split(".")[0]


def _is_one_of(stems: frozenset[str]) -> Callable[[Instruction], bool]:
    return lambda op: _stem(op) in stems


def _sectors(code: _CountedCode) -> list[float] | None:
    ideal, excessive = code.column(IDEAL), code.column(EXCESSIVE)
    if ideal is None or excessive is None:
        return None
    return [a + b for a, b in zip(ideal, excessive, strict=True)]


def _bulk_stores(code: _CountedCode) -> list[float] | None:
    samples = code.column(SAMPLES)
    if samples is None:
        return None
    holds = _is_one_of(BULK_STORES)
    return [n if holds(op) else 0.0 for op, n in zip(code.instructions, samples, strict=True)]


_WEIGHTS: Mapping[InstructionClass, Callable[[_CountedCode], list[float] | None]] = {
    InstructionClass.EXCESS_SECTORS: lambda code: code.column(EXCESSIVE),
    InstructionClass.SECTORS: _sectors,
    InstructionClass.CONFLICTS: lambda code: code.column(EXCESSIVE_SHARED),
    InstructionClass.SPILLS: lambda code: code.executions(_is_one_of(_SPILLS)),
    InstructionClass.ATOMICS: lambda code: code.executions(_is_one_of(MIXES["atomic_share"])),
    InstructionClass.FP64: lambda code: code.executions(lambda op: bool(_FP64.match(op.opcode))),
    InstructionClass.XU: lambda code: code.executions(_is_one_of(_XU)),
    InstructionClass.MASKED_LANES: lambda code: code.lanes_off(LANES_ON, _is_one_of(ACCESSES)),
    InstructionClass.INACTIVE_LANES: lambda code: code.lanes_off(LANES_ACTIVE, lambda op: True),
    InstructionClass.BULK_STORES: _bulk_stores,
    InstructionClass.UNPACKING: lambda code: code.executions(_is_one_of(MIXES["unpack_share"])),
    InstructionClass.NARROW: lambda code: code.executions(lambda op: bool(NARROW.match(op.opcode))),
    InstructionClass.VECTOR_ARITHMETIC: lambda code: code.executions(_is_one_of(frozenset(FLOPS))),
}
