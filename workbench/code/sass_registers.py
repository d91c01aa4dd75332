"""Registers that an instruction of NVIDIA's code writes and reads, and which instructions wrote
what another one reads.

ncu prints no control codes, so what a scoreboard protects is not known; registers are. Names are
those of the listing: R4, UR5, P0, UP1. The widths are those of the modifiers (`.64`, `.128`,
`.x32`) and of the shapes of matrix instructions.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from workbench.code.listing import Instruction, Listing

DEEPEST = 4096  # instructions that are looked at before another one; a loop has fewer

_NAME = re.compile(r"\b(U?[RP])(\d+)\b(\.64)?")
_PREDICATE = re.compile(r"!?U?P(?:\d+|T)$")
_PLAIN = re.compile(r"U?R(?:\d+|Z)(?:\.\w+)*$")
_SHAPE = re.compile(r"\.\d+x(\d+)x\d+")
# Instructions without a result: their first register is data or an address.
_NO_RESULT = re.compile(
    r"(ST|STG|STS|STL|STSM|STTM|RED|REDG|REDAS|LDGSTS|BAR|MEMBAR|EXIT|BRA|BRX|RET|CCTL|UTMA\w+|"
    r"UBLK\w+|NANOSLEEP|DEPBAR|LDGDEPBAR|WARPSYNC|ELECT|NOP|UTC\w+)$"
)
_TO_PREDICATES = re.compile(r"(\w*SETP\d?|U?PLOP3|R2P)$")
_FLOAT64 = re.compile(r"(DADD|DMUL|DFMA|DMNMX|DSETP)$")
_WARP_MATRIX = re.compile(r"[A-Z]MMA$")


@dataclass(frozen=True)
class RegisterUse:
    """Names of the registers that an instruction writes and reads."""

    destinations: frozenset[str]
    read: frozenset[str]


def register_use(op: Instruction) -> RegisterUse:
    """Return the registers that an instruction writes, and those it reads, with the guard."""
    head = op.opcode.split(".")[0]
    operands = [part.strip() for part in op.operands.split(",")]
    results = _results(head, operands)
    written = [name for text in operands[:results] for name in _names(text, _result_width(op))]
    read = [name for n, text in enumerate(operands[results:])
            for name in _names(text, _source_width(op, head, n, text))]  # fmt: skip
    return RegisterUse(frozenset(written), frozenset([*read, *_names(op.predicate, 1)]))


def _results(head: str, operands: Sequence[str]) -> int:
    """Return how many operands are results: leading predicates, and one register behind them."""
    if _NO_RESULT.match(head):
        return 0
    count = 0
    while count < len(operands) and _PREDICATE.match(operands[count]):
        count += 1
    if _TO_PREDICATES.match(head):
        return min(count, 2)
    if count < len(operands) and _PLAIN.match(operands[count]):
        count += 1
        while count < len(operands) - 1 and _PREDICATE.match(operands[count]):
            count += 1  # a carry: IADD3 R4, P0, R2, R3
            if count > 2:
                break
    return count


def _names(text: str, width: int) -> Iterator[str]:
    for kind, number, wide in _NAME.findall(text):
        count = 1 if kind.endswith("P") else max(width, 2 if wide else 1)
        yield from (f"{kind}{int(number) + n}" for n in range(count))


def _modifier_registers(op: Instruction) -> int:
    """Return the registers of an access by its modifiers."""
    marks = op.opcode.split(".")[1:]
    return next((n for mark, n in (("256", 8), ("128", 4), ("64", 2)) if mark in marks), 1)


def _result_width(op: Instruction) -> int:
    head, *marks = op.opcode.split(".")
    if head == "LDSM":
        return next((int(mark) for mark in marks if mark in ("2", "4")), 1)
    if head == "LDTM":
        times = next((int(mark[1:]) for mark in marks if re.match(r"x\d+$", mark)), 1)
        return times * (4 if "256" in op.opcode else 2 if "128bit" in op.opcode else 1)
    if head.endswith("GMMA"):
        shape = _SHAPE.search(op.opcode)
        columns = int(shape[1]) if shape else 8
        return columns // 2 if "F32" in marks else columns // 4
    if _WARP_MATRIX.match(head):
        return 2 if marks[-1:] == ["F16"] else 4
    if "WIDE" in marks or _FLOAT64.match(head) or "F64" in marks[:1]:
        return 2
    if head == "CS2R":
        return 1 if "32" in marks else 2
    return _modifier_registers(op) if head.startswith(("LD", "ATOM", "ULDC")) else 1


def _source_width(op: Instruction, head: str, place: int, text: str) -> int:
    if "[" in text:
        return 1  # an address, whose own suffix says whether it has 64 bits
    if _WARP_MATRIX.match(head):
        return (4, 2, 4)[min(place, 2)]
    if _FLOAT64.match(head):
        return 2
    if ".WIDE" in op.opcode and place == 2:
        return 2
    return _modifier_registers(op) if head.startswith(("ST", "RED", "ATOM")) else 1


class Definitions:
    """Which instructions wrote the registers of others, by paths of the control flow."""

    def __init__(self, listing: Listing) -> None:
        self.uses = [register_use(op) for op in listing.instructions]
        self._guarded = [bool(op.predicate) for op in listing.instructions]
        self._before: list[list[int]] = [[] for _ in listing.instructions]
        for place, leads in enumerate(listing.successors):
            for after in leads:
                self._before[after].append(place)

    def writers(self, place: int, names: frozenset[str]) -> list[int]:
        """Return the instructions whose values of these registers reach an instruction, the nearest
        first. One under a guard may not have run, so those before it count too."""
        result: dict[int, None] = {}
        distances = {each: far for name in names for far, each in self._distances(place, name)}
        for each in sorted(distances, key=lambda one: (distances[one], -one)):
            result[each] = None
        return list(result)

    def _distances(self, place: int, name: str) -> Iterator[tuple[int, int]]:
        def stops(each: int) -> bool:
            return name in self.uses[each].destinations and not self._guarded[each]

        for far, each in self._backward(place, stops):
            if name in self.uses[each].destinations:
                yield far, each

    def nearest(self, place: int, holds: Callable[[int], bool]) -> int | None:
        """Return the nearest instruction before another for which a condition holds, or None."""
        return next((each for _, each in self._backward(place, holds) if holds(each)), None)

    def nearest_reader(
        self, place: int, names: frozenset[str], holds: Callable[[int], bool]
    ) -> int | None:
        """Return the nearest instruction before another one that reads one of these registers and
        for which a condition holds, with no other value of theirs in between; else None."""
        for _, each in self._backward(place, lambda n: bool(names & self.uses[n].destinations)):
            if names & self.uses[each].read and holds(each):
                return each
        return None

    def _backward(self, place: int, stops: Callable[[int], bool]) -> Iterator[tuple[int, int]]:
        """Yield the instructions from which control flow reaches another one, each with its
        distance, up to those that stop the path."""
        seen: set[int] = set()
        here, far = self._before[place], 1
        while here and len(seen) < DEEPEST:
            frontier: dict[int, None] = {}
            for each in here:
                if each in seen:
                    continue
                seen.add(each)
                yield far, each
                if not stops(each):
                    frontier.update(dict.fromkeys(self._before[each]))
            here, far = list(frontier), far + 1
