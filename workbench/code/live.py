"""Count the registers that are live at each instruction.

NVIDIA's counts are nvdisasm's. For AMD they are found by a backward analysis of the assembly: a
register is live from the instruction that writes it to the last that reads it. An instruction
counts the registers that are live before it and those that it writes.
"""

import re
from collections.abc import Sequence

from workbench.code.flow import FlowGraph
from workbench.code.listing import Instruction, Listing

_LIFE = re.compile(r"/\*([0-9a-f]{4,})\*/.*;.*//\s*\|([^|]*)\|")
_REGISTERS = re.compile(r"\b([avs])(?:(\d+)\b|\[(\d+):(\d+)\])")
_NO_RESULT = re.compile(
    r"(global|flat|buffer|scratch|tbuffer|image)_(store|atomic|wb|inv|gl)|ds_(write|store|add|sub|min|"
    r"max|and|or|xor|inc|dec|cmpst)_(?!rtn)|s_(cmp|bitcmp|cbranch|branch|wait|barrier|nop|endpgm|"
    r"setprio|sleep|delay|setreg|store|dcache|icache|inst|clause|sendmsg|code_end|set_gpr)"
)
# what these write keeps a part of what was there, so the result is read too
_PARTIAL = re.compile(r"_(d16|d16_hi|fmac|fmacc|mac|dot2c|writelane|sdwa|cmov)|_d16|fmac|writelane")


def nvidia_live(text: str, listing: Listing) -> list[int]:
    """Return the live general registers at each instruction, from `nvdisasm -c -lrm count`.

    Raises ValueError where the text is of another listing.
    """
    entries = [(int(m[1], 16), m[2].strip()) for m in map(_LIFE.search, text.splitlines()) if m]
    counts, at = [], 0
    for op in listing.instructions:  # the padding behind a kernel has no count
        fits = at < len(entries) and entries[at][0] == op.address
        counts.append(int(entries[at][1] or 0) if fits else 0)
        at += fits
    if at != len(entries):
        raise ValueError("nvdisasm's live registers are of other instructions")
    return counts


def registers_of(op: Instruction) -> tuple[int, int]:
    """Return the vector registers that an AMD instruction writes and those that it reads, each as a
    bit mask: bit n is vn, bit 512 + n is an. Scalar registers are not counted."""
    operands = _split(op.operands)
    stores = _NO_RESULT.match(op.opcode) or "lds" in op.operands.split()
    returns = "atomic" in op.opcode and re.search(r"\b(glc|sc0|th:TH_ATOMIC_RETURN)\b", op.operands)
    results = 0 if stores and not returns else 2 if op.opcode.startswith("v_swap") else 1
    written = _mask(operands[:results])
    read = _mask(operands[results:])
    if _PARTIAL.search(op.opcode) or op.opcode.startswith("v_swap") or "dst_sel" in op.operands:
        read |= written
    return written, read


def _split(operands: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^\[]*\])", operands)]


def _mask(operands: Sequence[str]) -> int:
    mask = 0
    for text in operands:
        for kind, one, first, last in _REGISTERS.findall(text):
            if kind == "s":
                continue
            low, high = int(one or first), int(one or last)
            mask |= ((1 << (high - low + 1)) - 1) << (low + (512 if kind == "a" else 0))
    return mask


def amd_live(listing: Listing, graph: FlowGraph) -> list[int]:
    """Return the live vector registers (architectural and accumulation) at each instruction."""
    effects = [registers_of(op) for op in listing.instructions]
    before = dict.fromkeys((b.number for b in graph.blocks), 0)
    changed = True
    while changed:
        changed = False
        for block in reversed(graph.blocks):
            live = 0
            for n in block.successors:
                live |= before[n]
            for written, read in reversed(effects[block.start : block.end]):
                live = (live & ~written) | read
            changed |= live != before[block.number]
            before[block.number] = live
    counts = [0] * len(effects)
    for block in graph.blocks:
        live = 0
        for n in block.successors:
            live |= before[n]
        for i in reversed(range(block.start, block.end)):
            written, read = effects[i]
            live = (live & ~written) | read
            counts[i] = (live | written).bit_count()
    return counts
