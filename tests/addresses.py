"""Addresses in Triton's IR: whether 32 bits hold every whole number that one is computed from.

The text of a kernel's TTIR is read from top to bottom with an interval for each value, exact where
the launch's own numbers are: programs, scalars, loops. An operation on 32 bits whose interval does
not fit them taints what is computed from it, up to a load or a store. What the text does not tell
(numbers out of memory, numbers that a loop or a branch carries) has no interval, and taints as well
once it is added to or multiplied in 32 bits: UNBOUNDED begins the message of such a fault.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

UNBOUNDED = "nothing bounds"
Interval = tuple[int, int] | None

VALUE = re.compile(r"%[\w#]+")
RESULT = re.compile(r"^(%\w+)(?::\d+)? = (?:\"?)([\w.]+)\"?(.*)$")
PLACE = re.compile(r"\s*loc\((?:[^()]|\([^()]*\))*\)")
LOOP = re.compile(r"scf\.for (?:unsigned )?(%\w+) = (%[\w#]+) to (%[\w#]+) step (%[\w#]+)")
CARRIED = re.compile(r"(%\w+) = (%[\w#]+)")
MEMORY = ("tt.load", "tt.store", "tt.atomic", "tt.descriptor", "ttng.", "tt.experimental")
GROWING = ("arith.addi", "arith.subi", "arith.muli", "arith.shli", "arith.trunci")
SAME = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.join", "tt.split",
    "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "tt.cat", "tt.unsplat",
)  # fmt: skip


@dataclass(frozen=True)
class Known:
    """What is known of a value: its bounds, and the first operation that 32 bits do not hold."""

    bounds: Interval = None
    lost: str | None = None


@dataclass
class Reader:
    """One launch: its scalars by name, and its grid."""

    scalars: Mapping[str, int]
    grid: Sequence[int]
    known: dict[str, Known] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def read(self, text: str) -> list[str]:
        """Each load and store whose address is lost, with the operation that lost it."""
        for line in text.splitlines():
            self._line(PLACE.sub("", line).strip())
        return self.faults

    def _line(self, line: str) -> None:
        if line.startswith("tt.func"):
            self._arguments(line)
        elif line.startswith(("tt.store", "tt.atomic", "tt.descriptor")):
            self._memory(line)
        elif line.startswith("scf.for") or "= scf.for" in line:
            self._loop(line)
        elif result := RESULT.match(line):
            name, operation, rest = result.groups()
            if operation.startswith(MEMORY):
                self._memory(line)
                self.known[name] = Known()
            else:
                self.known[name] = self._computed(line, operation, rest)

    def _arguments(self, line: str) -> None:
        for name in re.findall(r"(%\w+): ", line):
            value = self.scalars.get(name[1:])
            self.known[name] = Known((value, value) if value is not None else None)

    def _memory(self, line: str) -> None:
        """Only the first operands can be addresses and coordinates: masks and numbers follow."""
        operands = VALUE.findall(line.partition("=")[2] if " = " in line else line)
        of_descriptor = "descriptor" in line
        for name in operands if of_descriptor else operands[:1]:
            if lost := self._of(name).lost:
                self.faults.append(f"{lost}, which leads to {line.split(' : ')[0]}")

    def _loop(self, line: str) -> None:
        result = LOOP.search(line)
        assert result is not None, line
        index, low, high, _ = result.groups()
        bounds, last = self._of(low).bounds, self._of(high).bounds
        both = (bounds[0], max(bounds[0], last[1] - 1)) if bounds and last else None
        self.known[index] = Known(both)
        carried = line.partition("iter_args(")[2].partition(")")[0]
        for name, start in CARRIED.findall(carried):
            self.known[name] = Known(None, self._of(start).lost)
        if "=" in line.partition("scf.for")[0]:
            self.known[line.partition(":")[0].partition(" ")[0]] = Known()

    def _of(self, name: str) -> Known:
        return self.known.get(name) or self.known.get(name.partition("#")[0]) or Known()

    def _computed(self, line: str, operation: str, rest: str) -> Known:
        operands = [self._of(name) for name in VALUE.findall(rest.split(" : ")[0])]
        lost = next((o.lost for o in operands if o.lost), None)
        bounds = self._bounds(operation, rest, [o.bounds for o in operands])
        if lost or operation not in GROWING or _bits(rest) != 32:
            return Known(bounds, lost)
        if bounds is None:
            return Known(None, f"{UNBOUNDED} {line.split(' : ')[0]}")
        if bounds[0] >= -(1 << 31) and bounds[1] < 1 << 31:
            return Known(bounds)
        return Known(None, f"32 bits do not hold {line.split(' : ')[0]}, up to {bounds[1]}")

    def _bounds(self, operation: str, rest: str, of: list[Interval]) -> Interval:
        if operation == "arith.constant":
            number = re.search(r"(?:dense<)?(-?\d+)>? : (?:tensor<[\dx]*)?x?i\d+", rest)
            return (int(number[1]),) * 2 if number else None
        if operation == "tt.make_range":
            end, start = (int(re.search(rf"{w} = (\d+)", rest)[1]) for w in ("end", "start"))  # type: ignore[index]
            return start, end - 1
        if operation in ("tt.get_program_id", "tt.get_num_programs"):
            axis = "xyz".index(rest.split()[0])
            extent = self.grid[axis] if axis < len(self.grid) else 1
            return (0, extent - 1) if operation == "tt.get_program_id" else (extent, extent)
        if operation in SAME and of:
            return _union(of)
        if operation == "arith.select":
            return _union(of[1:])
        if operation in ARITHMETIC and None not in of:
            return ARITHMETIC[operation](*of)
        return None


def _bits(rest: str) -> int | None:
    """Width of the result, where it is whole numbers: its type is the last one of the line."""
    kind = re.search(r"i(\d+)>?$", rest)
    return int(kind[1]) if kind else None


def _union(of: Sequence[Interval]) -> Interval:
    known = [bounds for bounds in of if bounds is not None]
    if len(known) < len(of) or not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def _corners(function: Callable[[int, int], int]) -> Callable[[Any, Any], Interval]:
    def over(a: tuple[int, int], b: tuple[int, int]) -> Interval:
        every = [function(x, y) for x, y in product(a, b)]
        return min(every), max(every)

    return over


def _quotient(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    if b[1] < 1:
        return None
    b = max(1, b[0]), b[1]  # what is divided by is an extent
    every = [abs(x) // y * (1 if x >= 0 else -1) for x, y in product(a, b)]
    return min(every), max(every)


def _rest(a: tuple[int, int], b: tuple[int, int]) -> Interval:
    most = max(abs(b[0]), abs(b[1])) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


ARITHMETIC: Mapping[str, Callable[..., Interval]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": _corners(lambda x, y: x * y),
    "arith.shli": _corners(lambda x, y: x << min(max(y, 0), 64)),
    "arith.divsi": _quotient,
    "arith.divui": _quotient,
    "arith.remsi": _rest,
    "arith.remui": _rest,
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}


def scalars_of(arguments: str) -> dict[str, int]:
    """Whole numbers among a launch's arguments, as `captured` writes them down."""
    named = dict(ast.literal_eval(arguments))
    return {
        name: int(value)
        for name, value in named.items()
        if isinstance(value, str) and re.fullmatch(r"-?\d+", value)
    }
