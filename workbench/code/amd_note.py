"""Read the resources of a kernel from the note of an hsaco, which needs no disassembler.

The note NT_AMDGPU_METADATA holds a map in MessagePack (LLVM AMDGPU usage, code object V3 and later;
https://github.com/msgpack/msgpack/blob/master/spec.md).
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workbench.code.machine_code import elf_sections

OWNER, METADATA = b"AMDGPU", 32  # NT_AMDGPU_METADATA
DEEPEST = 16  # levels of nested maps and arrays; the compiler writes five
COUNTS = {
    "agpr_count": "Accumulation registers",
    "sgpr_count": "Scalar registers",
    "vgpr_spill_count": "Vector registers spilled",
    "sgpr_spill_count": "Scalar registers spilled",
}
SIZES = {1: "B", 2: "H", 4: "I", 8: "Q"}  # letters of struct by bytes


@dataclass(frozen=True)
class KernelNote:
    """Metadata of the first kernel of an image; counts are of a thread or wave as LLVM has them."""

    name: str
    arch: str
    counts: dict[str, int]  # `vgpr_count` holds the accumulation registers too on gfx90a and later


def note_of(image: bytes) -> KernelNote:
    """Return the metadata of an hsaco. Raises ValueError where there is none or it is damaged."""
    try:
        known, _ = read_value(_metadata(image))
        kernel = known["amdhsa.kernels"][0]
        target = re.search(r"gfx\w+", known["amdhsa.target"])
        counts = {k.removeprefix("."): v for k, v in kernel.items() if type(v) is int}
        if target is None or "vgpr_count" not in counts:
            raise ValueError("its note says nothing of target or registers")
        return KernelNote(str(kernel[".name"]), target[0], counts)
    except (AttributeError, LookupError, TypeError, struct.error, OverflowError) as error:
        raise ValueError(f"its note is damaged ({type(error).__name__}: {error})") from error


def counts_of_text(text: str) -> dict[str, int]:
    """Return the counts of COUNTS in the metadata of AMD assembly."""
    known = {name: re.search(rf"\.{name}:\s*(\d+)", text) for name in COUNTS}
    return {name: int(match[1]) for name, match in known.items() if match}


def _metadata(image: bytes) -> bytes:
    for name, data in elf_sections(image):
        if name.startswith(b".note"):
            for owner, kind, content in _notes(data):
                if (owner, kind) == (OWNER, METADATA):
                    return content
    raise ValueError("it has no note of AMD's metadata")


def _notes(data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield owner, type and content of each note of a section (System V ABI, chapter 5)."""
    at = 0
    while at + 12 <= len(data):
        owner, size, kind = struct.unpack_from("<III", data, at)
        start = at + 12 + -(-owner // 4) * 4
        yield data[at + 12 : at + 12 + owner].rstrip(b"\0"), kind, data[start : start + size]
        at = start + -(-size // 4) * 4


def read_value(data: bytes) -> tuple[Any, int]:
    """Return the first value of MessagePack and where it ends. Raises ValueError, IndexError or
    struct.error where it is damaged, of a kind that the note never has, or nested too deeply."""
    return _value(data, 0, DEEPEST)


def _value(data: bytes, at: int, depth: int) -> tuple[Any, int]:
    """Return one value of MessagePack and where it ends. Raises ValueError, IndexError,
    struct.error."""
    if depth == 0:
        raise ValueError(f"its note is nested deeper than {DEEPEST} levels")
    tag, at = data[at], at + 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag < 0xC0:
        many = tag & (0x1F if tag >= 0xA0 else 0x0F)
        kind = "str" if tag >= 0xA0 else ("array" if tag >= 0x90 else "map")
        return _read_sized(data, at, kind, many, depth)
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    if 0xCA <= tag <= 0xD3:
        letter = "fdBHIQbhiq"[tag - 0xCA]
        return struct.unpack_from(f">{letter}", data, at)[0], at + struct.calcsize(letter)
    kinds = {0xC4: "bin", 0xD9: "str", 0xDC: "array", 0xDE: "map"}
    first = max((each for each in kinds if each <= tag), default=None)
    wide = 1 << (tag - first + (first >= 0xDC)) if first else 0
    if first is None or wide > 4 or 0xC7 <= tag < 0xD9:
        raise ValueError(f"its note has a value of the unknown kind {tag:#x}")
    (many,) = struct.unpack_from(f">{SIZES[wide]}", data, at)
    return _read_sized(data, at + wide, kinds[first], many, depth)


def _read_sized(data: bytes, at: int, kind: str, many: int, depth: int) -> tuple[Any, int]:
    """Return a text, bytes, array or map of `many` parts, each of which takes a byte at least."""
    if at + many > len(data):
        raise ValueError("its note is cut off")
    if kind in ("str", "bin"):
        part = data[at : at + many]
        return (part.decode("utf-8", "replace") if kind == "str" else part), at + many
    values = []
    for _ in range(many * (2 if kind == "map" else 1)):
        value, at = _value(data, at, depth - 1)
        values.append(value)
    if kind == "array":
        return values, at
    return dict(zip(values[::2], values[1::2], strict=True)), at
