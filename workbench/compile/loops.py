"""Count loads, stores and arithmetic of machine code, in all and inside its loops.

A loop is a cycle of the control flow that can be reached from the entry. A prologue that loads
ahead is outside, slow paths behind the end of the kernel belong to the place that branches to them,
and the branch to itself that pads NVIDIA's code does not count. Counts are of instructions in the
listing, not of executions; an unrolled loop has its body several times.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.data.temporary import temporary_folder

BY_DESCRIPTOR = "descriptor"  # a load of the copy engine (TMA), whose descriptor holds the size
ASYNC = "async"  # from global into shared memory, bypassing the registers


@dataclass(frozen=True)
class Counts:
    """Instructions by kind.

    `loads` are those of global memory by kind: `"128"` is 128 bits for each thread, `"async 128"`
    the same straight into shared memory, `"descriptor"` one tile of the copy engine. `vector` are
    floating-point additions, multiplications and fused multiply-adds, whatever their width;
    `special` are exponentials, logarithms, roots, reciprocals and the like (MUFU).
    """

    loads: Mapping[str, int] = field(default_factory=dict)
    stores: int = 0  # to global memory
    shared_loads: int = 0
    matrix: int = 0
    vector: int = 0
    special: int = 0

    @property
    def global_loads(self) -> int:
        """Return the number of load instructions of global memory, of every kind."""
        return sum(self.loads.values())

    @property
    def load_bytes(self) -> int | None:
        """Return the bytes that one thread loads where each instruction runs once; None for loads
        by descriptor, whose size is not in the listing."""
        if BY_DESCRIPTOR in self.loads:
            return None
        return sum(int(kind.split()[-1]) // 8 * count for kind, count in self.loads.items())


@dataclass(frozen=True)
class Code:
    """Facts of one launch's machine code. `unknown` lists, a sentence each, facts that the listing
    does not hold; where `readable` is false, nothing is known at all."""

    arch: str  # Triton's name of the target: "sm_90", "gfx942"
    loops: int  # that hold a counted instruction: a loop that only waits does not count
    whole: Counts
    in_loops: Counts
    unknown: tuple[str, ...] = ()
    readable: bool = True


def code_of(asm: Mapping[str, Any], arch: str) -> Code:
    """Return the facts of a compiled kernel from the `asm` of Triton's CompiledKernel.

    Reads the cubin, disassembled (some 0.1 s), or AMD's assembly for the target `arch`. Does not
    raise: for unreadable code the result's `readable` is false.
    """
    if "amdgcn" in asm:
        return code_of_amdgcn(asm["amdgcn"], arch)
    if "cubin" not in asm:
        return _unreadable(arch, f"there is no machine code for {arch} to read")
    try:
        return code_of_sass(disassembled(asm["cubin"]), arch)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return _unreadable(arch, f"the machine code could not be disassembled: {error}")


def disassembled(cubin: bytes) -> str:
    """Return SASS with labels, by the nvdisasm of Triton's own wheel. Raises OSError where there is
    none, ValueError where it rejects the image, SubprocessError after a minute."""
    from triton import knobs

    with temporary_folder() as folder:
        image = folder / "kernel.cubin"
        image.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", str(image)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise ValueError((done.stderr or "nvdisasm failed").strip().splitlines()[0])
    return done.stdout


def code_of_sass(listing: str, arch: str) -> Code:
    """Return the facts of a listing by nvdisasm, with labels (`-c` or `-g`)."""
    return _code(_parsed(listing, _sass_line, _sass_flow), _sass_kind, arch)


def code_of_amdgcn(text: str, arch: str) -> Code:
    """Return the facts of AMD assembly as LLVM writes it."""
    return _code(_parsed(text, _amd_line, _amd_flow), _amd_kind, arch)


# Listings: instructions and their successors


@dataclass(frozen=True)
class _Op:
    name: str  # with modifiers
    operands: str
    guarded: bool = False  # runs under a predicate


@dataclass(frozen=True)
class _Flow:
    """Successors of an instruction: labels, the next instruction, or unknown ones (`lost`)."""

    jumps: tuple[str, ...] = ()
    falls: bool = True
    lost: bool = False


@dataclass
class _Listing:
    ops: list[_Op] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)  # successors of each
    roots: list[int] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # names of jumps with unknown targets


_LABEL = re.compile(r"^\s*([.$\w]+):")
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_AMD = re.compile(r"^\s+([a-z]\w+)\b\s*(.*)$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_TARGETS = re.compile(r'BRANCH_TARGETS ([^"]*)"')


def _sass_line(line: str) -> _Op | None:
    result = _SASS.search(line)
    return _Op(result[2], result[3].strip(), result[1] is not None) if result else None


def _amd_line(line: str) -> _Op | None:
    result = _AMD.match(line.split(";")[0])
    return _Op(result[1], result[2].strip()) if result else None


def _sass_flow(op: _Op) -> _Flow:
    name, target = op.name.split(".")[0], _TARGET.search(op.operands)
    if name in ("BRA", "CALL") and target:
        always = name == "BRA" and not op.guarded and op.operands.startswith("`")
        return _Flow((target[1],), falls=not always)
    if name in ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"):
        several = _TARGETS.search(op.operands)
        text = re.split(r"[,\s]+", several[1].strip()) if several else []
        return _Flow(tuple(text), falls=op.guarded, lost=not text)
    if name == "CALL":
        return _Flow(lost=True)
    return _Flow(falls=op.guarded or name not in ("EXIT", "RET", "KILL"))


def _amd_flow(op: _Op) -> _Flow:
    if op.name.startswith("s_cbranch_") or op.name == "s_branch":
        return _Flow((op.operands.split()[0],), falls=op.name != "s_branch")
    if op.name.startswith(("s_swappc", "s_call")):
        return _Flow(lost=True)
    if op.name.startswith("s_setpc"):
        return _Flow(falls=False, lost=True)
    return _Flow(falls=op.name != "s_endpgm")


def _parsed(
    text: str, read: Callable[[str], _Op | None], flow_of: Callable[[_Op], _Flow]
) -> _Listing:
    created, labels, starts = _Listing(), dict[str, int](), {0}
    for line in text.splitlines():
        if ".section" in line:
            starts.add(len(created.ops))
        elif label := _LABEL.match(line):
            labels[label[1]] = len(created.ops)
        else:  # AMD's dual issue is two instructions in a line, `v_dual_a .. :: v_dual_b ..`
            created.ops += filter(None, map(read, line.split("::")))
    flows = [flow_of(op) for op in created.ops]
    created.roots = sorted(i for i in starts if i < len(created.ops))
    created.lost = [op.name for op, flow in zip(created.ops, flows, strict=True) if flow.lost]
    for i, flow in enumerate(flows):
        leads = [i + 1] if flow.falls and i + 1 not in starts else []
        leads += [labels.get(label, len(flows)) for label in flow.jumps]
        if len(flows) in leads[-len(flow.jumps) :] and flow.jumps:
            created.lost.append(created.ops[i].name)  # a label that is not in the listing
        created.after.append([n for n in leads if n < len(flows)])
    return created


# Loops


def _reached(listing: _Listing) -> set[int]:
    seen, todo = set(listing.roots), list(listing.roots)
    while todo:
        fresh = [n for n in listing.after[todo.pop()] if n not in seen]
        seen.update(fresh)
        todo += fresh
    return seen


def _cycles(nodes: Iterable[int], after: Mapping[int, Sequence[int]]) -> list[list[int]]:
    """Return the strongly connected components that hold a cycle (Tarjan 1972), without
    recursion."""
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    held: set[int] = set()
    results = []
    for root in nodes:
        if root in order:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if node not in order:
                order[node] = low[node] = len(order)
                stack.append(node)
                held.add(node)
            for k in range(at, len(after[node])):
                duplicate = after[node][k]
                if duplicate not in order:
                    work += [(node, k), (duplicate, 0)]  # `node` resumes here afterwards
                    break
                if duplicate in held:
                    low[node] = min(low[node], low[duplicate])
            else:
                if low[node] == order[node]:
                    cut = stack.index(node)
                    component = stack[cut:]
                    del stack[cut:]
                    held.difference_update(component)
                    if len(component) > 1 or node in after[node]:
                        results.append(component)
    return results


def _loops(nodes: set[int], after: Mapping[int, Sequence[int]]) -> list[set[int]]:
    """Return every loop, the outer ones and those inside them."""
    results = []
    for component in _cycles(sorted(nodes), after):
        inside = set(component)
        results.append(inside)
        entered = {n for m in nodes - inside for n in after[m] if n in inside}
        heads = entered or {min(inside)}
        # cycles that remain without the edges back to the head are inner loops
        within = {n: [m for m in after[n] if m in inside and m not in heads] for n in inside}
        results += _loops(inside, within)
    return results


# Kinds of instruction

_MATRIX = re.compile(r"(UTC\w*MMA|[A-Z]{1,2}G?MMA)$")
_VECTOR = {
    "FFMA",
    "FADD",
    "FMUL",
    "FFMA2",
    "FADD2",
    "FMUL2",
    "FFMA32I",
    "FADD32I",
    "FMUL32I",
    "HFMA2",
    "HADD2",
    "HMUL2",
    "DFMA",
    "DADD",
    "DMUL",
}
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128, "256": 256}
_AMD_MATRIX = ("v_mfma_", "v_smfmac_", "v_wmma_", "v_swmmac_")
_AMD_VECTOR = re.compile(
    r"v_(dual_|pk_)?(fma|fmac|fmaak|fmamk|mad|mac|add|sub|mul|dot2\w*)_.*f(16|32|64)"
)
_AMD_SPECIAL = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos|tanh)_")
_AMD_LOAD = re.compile(r"(?:global|buffer|flat)_load_(.*)")


def _sass_kind(op: _Op) -> str | None:
    """Return the kind, such as `"load 128"` or `"matrix"`; None for instructions not counted."""
    head, *marks = op.name.split(".")
    bits = next((_WIDTHS[mark] for mark in marks if mark in _WIDTHS), 32)
    if head in ("LDG", "LD"):
        return f"load {bits}"
    if head == "LDGSTS":
        return f"load {ASYNC} {bits}"
    if head in ("UTMALDG", "UBLKCP"):
        # a bulk copy names its destination first: from shared memory it is a store
        return f"load {BY_DESCRIPTOR}" if head == "UTMALDG" or ".S.G" in op.name else "store"
    if head in ("STG", "ST", "UTMASTG"):
        return "store"
    if head in ("LDS", "LDSM"):
        return "shared"
    if _MATRIX.match(head):
        return "matrix"
    if head == "MUFU":
        return "special"
    # a multiply-add of two zeros is how an immediate gets into a register
    moved = re.match(r"[^,]*,\s*-?RZ,\s*-?RZ\b", op.operands)
    return "vector" if head in _VECTOR and not moved else None


def _amd_kind(op: _Op) -> str | None:
    if result := _AMD_LOAD.match(op.name):
        into = f"{ASYNC} " if "lds" in op.operands.split() or "lds" in op.name else ""
        return f"load {into}{_amd_bits(result[1])}"
    if re.match(r"(global|buffer|flat)_store_", op.name):
        return "store"
    if op.name.startswith(("ds_load", "ds_read")):
        return "shared"
    if op.name.startswith(_AMD_MATRIX):
        return "matrix"
    if _AMD_SPECIAL.match(op.name):
        return "special"
    return "vector" if _AMD_VECTOR.match(op.name) else None


def _amd_bits(kind: str) -> int:
    """Return the width in bits of `dwordx4`, `b128`, `ushort`, `d16_hi_b16`, `lds_dwordx4`."""
    if result := re.search(r"dword(?:x(\d))?", kind):
        return 32 * int(result[1] or 1)
    if result := re.search(r"[bui](\d+)$", kind):
        return int(result[1])
    return 16 if "short" in kind else 8


def _counts(kinds: Iterable[str | None]) -> Counts:
    text = Counter(kind for kind in kinds if kind is not None)
    loads = {k.removeprefix("load "): n for k, n in text.items() if k.startswith("load ")}
    return Counts(
        dict(sorted(loads.items())),
        text["store"],
        text["shared"],
        text["matrix"],
        text["vector"],
        text["special"],
    )


# Facts of a listing


def _code(listing: _Listing, kind_of: Callable[[_Op], str | None], arch: str) -> Code:
    if not listing.ops:
        return _unreadable(arch, "the listing holds no instruction")
    kinds = [kind_of(op) for op in listing.ops]
    reached = _reached(listing)
    after = {i: listing.after[i] for i in reached}
    # leaves out loops that only wait
    loops = [loop for loop in _loops(reached, after) if any(kinds[i] for i in loop)]
    inside = set[int]().union(*loops)
    ops = [listing.ops[i] for i in sorted(inside)]
    return Code(
        arch=arch,
        loops=len(loops),
        whole=_counts(kinds),
        in_loops=_counts(kinds[i] for i in inside),
        unknown=tuple(_unknown(listing, loops, ops, kinds)),
    )


def _unknown(
    listing: _Listing, loops: Sequence[set[int]], inside: Sequence[_Op], kinds: Sequence[str | None]
) -> Iterable[str]:
    if listing.lost:
        names = ", ".join(sorted(set(listing.lost)))
        yield f"it has jumps with unknown targets ({names}), so loops may have been missed"
    if f"load {BY_DESCRIPTOR}" in kinds:
        yield "the bytes of a load by descriptor are stated in the descriptor alone"
    if any(op.name.startswith(("s_load_", "s_buffer_load_")) for op in inside):
        yield "scalar loads inside loops are not counted: those of arguments and of data look alike"
    if not loops:
        yield "it has no loop; a fully unrolled one looks like any other code"


def _unreadable(arch: str, reason: str) -> Code:
    return Code(arch, 0, Counts(), Counts(), (reason,), readable=False)
