"""Correct the source lines of memory accesses that are inline assembly in PTX.

Triton writes loads and stores as inline assembly of several lines, and LLVM (of Triton 3.9) counts
the source line up with each of them: `mov; ld.global` of line 26 is stated as lines 26 and 27.
"""

import re
from collections import Counter
from dataclasses import replace

from workbench.code.kinds import ASYNC, sass_kind
from workbench.code.listing import Instruction, Listing, SourceLine

_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_PLACE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)\s+\d+(.*)$")
_INLINED = re.compile(r"inlined_at\s+(\d+)\s+(\d+)")
_ACCESS = re.compile(r"^\s*(?:@!?%\w+\s+)?(ld\.global|st\.global|cp\.async\.c[ag])\b")
_KINDS = {"ld.global": "load", "st.global": "store", "cp.async.ca": ASYNC, "cp.async.cg": ASYNC}

Lines = dict[tuple[str, SourceLine], Counter[int]]


def correct_lines(listing: Listing, ptx: str) -> None:
    """Set the source lines of global loads and stores to those of the statements that make them."""
    lines = stated_lines(ptx)
    for number, op in enumerate(listing.instructions):
        kind, source = _kind(op), op.source
        if kind is None or source is None or (kind, source) not in lines:
            continue
        line = lines[kind, source].most_common(1)[0][0]
        if line != source.line:
            listing.instructions[number] = replace(op, source=SourceLine(source.file, line))


def stated_lines(ptx: str) -> Lines:
    """Return the lines of the statements by kind of access and line that the PTX states for it."""
    files: dict[str, str] = {}
    result: Lines = {}
    stated: SourceLine | None = None
    first: SourceLine | None = None  # in the inline assembly
    inside = False
    for text in ptx.splitlines():
        if file := _FILE.match(text):
            files[file[1]] = file[2]
    for text in ptx.splitlines():
        if "inline asm" in text:
            inside, first = "begin" in text, None
        elif place := _PLACE.match(text):
            inlined = _INLINED.search(place[3])
            number, line = (inlined[1], inlined[2]) if inlined else (place[1], place[2])
            stated = SourceLine(files.get(number, number), int(line))
            first = first or stated
        elif (access := _ACCESS.match(text)) and stated is not None:
            own = first if inside and first and first.file == stated.file else stated
            key = _KINDS[access[1]], stated
            result.setdefault(key, Counter())[own.line] += 1
    return result


def _kind(op: Instruction) -> str | None:
    """Return the kind of a global access of SASS as PTX tells it apart; None for the others."""
    if not op.opcode.startswith(("LDG", "STG")):
        return None
    kind = sass_kind(op) or ""
    return ASYNC if ASYNC in kind else "load" if kind.startswith("load") else "store"
