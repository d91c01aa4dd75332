"""Derive from a kernel's machine code the facts that rules are evaluated on."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from workbench.code.code_reading import MachineCode
from workbench.code.flow import Block
from workbench.code.kinds import ASYNC, BY_DESCRIPTOR, WORK, access_of, group_of, is_amd, sass_kind
from workbench.code.listing import Instruction, SourceLine
from workbench.code.mix import mix_of
from workbench.compile import LaunchedCode
from workbench.data.code_facts import CodeFacts, Marked
from workbench.data.record import Resources
from workbench.data.units import percent
from workbench.device.cost_model import CONSTANTS
from workbench.device.hardware import Device
from workbench.device.occupancy import occupancy
from workbench.spec import Sizes, Spec

PLACES = 4  # source lines of one kind of instructions
LEAST_EDGE = 16  # of a product for which the matrix unit pays: the smallest tile of tl.dot
LIBRARY = re.compile(r"[/\\]triton[/\\](language|experimental|tools)[/\\]")

_FP64 = re.compile(r"D(ADD|MUL|FMA|SETP|MNMX|MMA)\b|[\w.]*\.F64\b|MUFU\.\w*64H")
_AMD_FP64 = re.compile(r"v_\w*_f64")
# A division of integers begins with the reciprocal of the divisor: NVIDIA converts it rounded up,
# LLVM multiplies it by a little less than 2^32, or 2^64 for 64 bits.
_DIVISION = re.compile(r"\bI2F(\.\w+)*\.RP\b")
_AMD_DIVISION = re.compile(r"v_mul_f32\w* .*\b0x(4f7ffffe|5f7ffffc)\b")


@dataclass(frozen=True)
class HotCode:
    """Machine code, divided into hot code and the rest."""

    code: MachineCode

    @cached_property
    def loops(self) -> set[int]:
        """Instructions in loops, with those of functions that these call."""
        graph = self.code.graph
        numbers = {n for _, loop in graph.all_loops() for n in loop.blocks}
        inside = {i for n in numbers for i in _span(graph.blocks[n])}
        return inside | set(self.callees(inside))

    @cached_property
    def innermost(self) -> set[int]:
        """Instructions in loops that hold no other, with those of functions that these call."""
        graph = self.code.graph
        inner = [loop for _, loop in graph.all_loops() if not loop.inner]
        inside = {i for loop in inner for n in loop.blocks for i in _span(graph.blocks[n])}
        return inside | set(self.callees(inside))

    @cached_property
    def hot(self) -> set[int]:
        """Instructions of loops, or all that the entry reaches where no loop does any work."""
        counted = (group_of(self.code.listing.instructions[i], self.code.arch) for i in self.loops)
        if any(group in (*WORK, "float", "special") for group in counted):
            return self.loops
        graph = self.code.graph
        return {i for n in graph.reachable for i in _span(graph.blocks[n])}

    @cached_property
    def callers(self) -> Mapping[int, int]:
        """Call that leads to each instruction of a called function."""
        return self.callees(range(len(self.code.listing.instructions)))

    def callees(self, instructions: Iterable[int]) -> dict[int, int]:
        """Return the instructions of the functions that instructions call, each with the call."""
        listing = self.code.listing
        result: dict[int, int] = {}
        todo = [(i, i) for i in instructions if listing.instructions[i].opcode.startswith("CALL")]
        while todo:
            call, at = todo.pop()
            after = (n for n in listing.successors[at] if at != call or n != call + 1)
            for n in after:
                if n not in result:
                    result[n] = call
                    todo.append((call, n))
        return result

    def mark(self, instructions: Iterable[int], holds: Callable[[Instruction], bool]) -> Marked:
        """Return the instructions that hold, with source lines: in a function, the call's."""
        ops = self.code.listing.instructions
        chosen = [i for i in instructions if holds(ops[i])]
        lines = [ops[self.callers.get(i, i)].source for i in chosen]
        return Marked(len(chosen), places_of(lines))


def code_facts(code: MachineCode, target: str) -> CodeFacts:
    """Return the facts that machine code alone tells."""
    hot, amd = HotCode(code), is_amd(code.arch)
    widths: dict[int, set[int]] = {}
    for i in hot.hot:
        access = access_of(code.listing.instructions[i], code.arch)
        if access is not None and access[0].startswith("global ") and access[1] is not None:
            widths.setdefault(access[1], set()).add(i)
    narrow = {width: hot.mark(each, lambda op: True) for width, each in sorted(widths.items())}
    loads = mix_of((code.listing.instructions[i] for i in hot.hot), code.arch).accesses
    accesses = hot.mark({i for each in widths.values() for i in each}, lambda op: True)
    fp64, division = (_AMD_FP64, _AMD_DIVISION) if amd else (_FP64, _DIVISION)
    facts = CodeFacts(
        function=code.name,
        target=target,
        arch=code.arch,
        instructions=len(hot.hot),
        matrix=code.whole.groups.get("matrix", 0),
        spills=hot.mark(hot.loops, _group_predicate(code.arch, "spills")),
        fp64=hot.mark(hot.hot, lambda op: bool(fp64.match(op.opcode))),
        divisions=hot.mark(hot.innermost, lambda op: bool(division.search(op.text))),
        accesses=accesses,
        narrow=narrow,
        arithmetic=hot.mark(hot.hot, _group_predicate(code.arch, "float")),
        load_bytes=sum(each.bytes or 0 for each in loads if each.kind == "global load"),
        registers=code.registers,
        overlaps=None if code.partitions is None else code.partitions.overlaps,
    )
    return facts if amd else _add_nvidia_facts(facts, hot)


def _add_nvidia_facts(facts: CodeFacts, hot: HotCode) -> CodeFacts:
    """Return the facts with those that only NVIDIA's tools and targets have."""
    code = hot.code
    known = code.spill_store_bytes is not None  # ptxas assembled the PTX
    facts = replace(facts, warnings=code.warnings if known else None)
    number = re.search(r"\d+", code.arch)
    if number is None or int(number[0]) < 80:
        return facts
    kinds = [sass_kind(op) or "" for op in code.listing.instructions]
    past = (f"load {ASYNC}", f"load {BY_DESCRIPTOR}")
    products = {
        i
        for _, loop, mix in code.loops()
        if "matrix" in mix.groups
        for n in loop.blocks
        for i in _span(code.graph.blocks[n])
    }
    through = [i for i in products if kinds[i].startswith("load") and not kinds[i].startswith(past)]
    return replace(
        facts,
        staged_loads=hot.mark(through, lambda op: True),
        async_loads=sum(kind.startswith(past) for kind in kinds),
    )


def facts_of_launch(
    launched: LaunchedCode, device: Device, spec: Spec, sizes: Sizes, dtype: str
) -> CodeFacts:
    """Return the facts of the code of a launch, with its resources and its problem."""
    resources = launched.resources
    facts = code_facts(launched.code, device.name)
    return replace(
        facts,
        stages=launched.stages,
        product=product_of(launched.dots, spec, sizes),
        dtype=dtype,
        registers=resources.registers,
        shared_bytes=resources.shared_bytes,
        shared_limit=device.limits.shared_bytes,
        occupancy=resources.occupancy,
        limiter=resources.limiter,
        next_step=next_step(resources, device),
        waves=resources.waves,
        in_flight=bytes_in_flight(facts, resources, device),
    )


def bytes_in_flight(facts: CodeFacts, resources: Resources, device: Device) -> float | None:
    """Return the bytes that the resident threads of a core request if each load of hot code is
    under way once, over those that keep its share of DRAM busy (Little's law: bandwidth times
    latency). None where the device's bandwidth is not known."""
    if device.dram is None:
        return None
    requested = resources.threads * resources.blocks_per_core * facts.load_bytes
    return requested * device.limits.cores / (device.dram.value * CONSTANTS.latency_s)


def product_of(dots: int, spec: Spec, sizes: Sizes) -> str:
    """Return what says that a kernel computes a product: its own tl.dot, or the axes of its Spec;
    empty where nothing does.

    By the axes: two inputs share an axis that no output has, and each has one of its own that an
    output has; the FLOPs are at least two for each combination, and all three axes at least 16.
    """
    if dots:
        return "The kernel uses tl.dot"
    outputs = {axis for tensor in spec.outputs.values() for axis in _axes(tensor.axes)}
    inputs = [(name, _axes(tensor.axes)) for name, tensor in spec.inputs.items()]
    for number, (left, a) in enumerate(inputs):
        for right, b in inputs[number + 1 :]:
            three = (a & b) - outputs, (a - b) & outputs, (b - a) & outputs
            edges = [_extent(axes, sizes) for axes in three]
            whole = _extent(a | b, sizes)
            if min(edges) >= LEAST_EDGE and spec.flops(**sizes) >= 2 * whole:
                return f"By its Spec the kernel multiplies {left} and {right}"
    return ""


def _axes(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_]\w*", text))


def _extent(axes: Iterable[str], sizes: Sizes) -> int:
    """Return the product of the sizes of some axes; 0 without an axis."""
    result, some = 1, False
    for axis in axes:
        result, some = result * sizes[axis], True
    return result if some else 0


def next_step(resources: Resources, device: Device) -> str:
    """Return the least change of the limiting resource that lets more warps fit, and how many fit
    then; empty where no change of it does."""
    threads, registers, shared = resources.threads, resources.registers, resources.shared_bytes
    now = occupancy(device, threads=threads, registers=registers, shared_bytes=shared)
    if now.limiter == "registers":
        for fewer in range(registers - 1, 0, -1):
            then = occupancy(device, threads=threads, registers=fewer, shared_bytes=shared)
            if then.fraction > now.fraction:
                return f"With {fewer} registers a thread or fewer {percent(then.fraction)} fit."
    if now.limiter == "shared memory":
        for less in range(shared - 1, -1, -128):
            then = occupancy(device, threads=threads, registers=registers, shared_bytes=less)
            if then.fraction > now.fraction:
                size = f"{less / 1024:.4g} KiB"
                return f"With {size} of shared memory a block or less {percent(then.fraction)} fit."
    return ""


def places_of(lines: Sequence[SourceLine | None]) -> tuple[str, ...]:
    """Return source lines as `mine.py:12`, the most frequent first; lines of Triton's own library
    only where there is no other."""
    places = [line for line in lines if line is not None and line.line]
    own = [line for line in places if not LIBRARY.search(line.file)] or places
    counts = Counter(f"{Path(line.file).name}:{line.line}" for line in own)
    return tuple(place for place, _ in counts.most_common(PLACES))


def _group_predicate(arch: str, *groups: str) -> Callable[[Instruction], bool]:
    return lambda op: group_of(op, arch) in groups


def _span(block: Block) -> range:
    return range(block.start, block.end)
