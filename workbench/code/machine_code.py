"""Read registers, spills, matrix instructions and the width of loads from machine code."""

import re
import struct
from collections.abc import Iterator

NOBITS = 8  # type of an ELF section that takes no place in the image


def cubin_registers(cubin: bytes) -> tuple[int, int]:
    """Return registers and stack bytes of a thread, from a cubin.

    Format: ELF64; the section `.nv.info` holds (format, attribute, size) records, in which
    attribute 0x2f is (symbol, registers) and 0x11 is (symbol, frame size), as `cuobjdump
    --dump-resource-usage` prints them. Raises ValueError when the image holds neither.
    """
    data = _elf_section(cubin, b".nv.info")
    registers = frame = 0
    at = 0
    while at + 4 <= len(data):
        form, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if form != 4:  # the value sits in the size field itself
            continue
        if attribute in (0x2F, 0x11) and size >= 8:
            value = struct.unpack_from("<I", data, at + 4)[0]
            if attribute == 0x2F:
                registers = max(registers, value)
            else:
                frame = max(frame, value)
        at += size
    if registers == 0:
        raise ValueError("the cubin says nothing of its registers")
    return registers, frame


def elf_sections(image: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield name and content of each section with content of a 64-bit little-endian ELF image
    (System V ABI, chapter 4). Raises ValueError where it is none."""
    if image[:4] != b"\x7fELF" or len(image) < 64:
        raise ValueError("not an ELF image")
    table = struct.unpack_from("<Q", image, 0x28)[0]
    entry, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, size, *_ in headers:
        if kind == NOBITS:
            continue
        end = image.index(b"\0", strings + name)
        yield image[strings + name : end], image[offset : offset + size]


def is_whole_elf(image: bytes) -> bool:
    """Return whether a 64-bit little-endian ELF image is as long as its header says: its tables of
    segments and sections, which compilers write last, are all there."""
    if image[:4] != b"\x7fELF" or len(image) < 64:
        return False
    segments, sections = struct.unpack_from("<QQ", image, 0x20)
    segment, segment_count, section, section_count = struct.unpack_from("<HHHH", image, 0x36)
    ends = int(segments + segment * segment_count), int(sections + section * section_count)
    return len(image) >= max(ends)


def _elf_section(image: bytes, wanted: bytes) -> bytes:
    for name, data in elf_sections(image):
        if name == wanted:
            return data
    raise ValueError(f"no section {wanted.decode()}")


def amdgcn_registers(text: str) -> tuple[int, int]:
    """Return vector registers and scratch bytes of a thread, from the metadata of AMD assembly.

    On gfx90a and later `.vgpr_count` holds the accumulation registers too (LLVM AMDGPU usage, code
    object metadata). Raises ValueError when there is none.
    """
    count = re.search(r"\.vgpr_count:\s*(\d+)", text)
    scratch = re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)
    if count is None:
        raise ValueError("the assembly says nothing of its registers")
    return int(count[1]), int(scratch[1]) if scratch else 0


def read_ptx(ptx: str) -> tuple[str | None, int]:
    """Return the matrix instruction, or None, and the widest global load (bits a thread) of PTX."""
    units = {"tcgen05.mma": "tcgen05", "wgmma.mma_async": "wgmma", "mma.sync": "mma"}
    unit = next((name for text, name in units.items() if text in ptx), None)
    widths = [0]
    for vector, bits in re.findall(r"ld\.global[\w.:]*?(?:\.v(\d))?\.[bufs](\d+)\b", ptx):
        widths.append(int(vector or 1) * int(bits))
    for size in re.findall(
        r"cp\.async\.c[ag]\.shared\.global\s*\[[^]]*\],\s*\[[^]]*\],\s*(\w+)", ptx
    ):
        widths.append(int(size, 0) * 8)
    return unit, max(widths)


def read_amdgcn(text: str) -> tuple[str | None, int]:
    """Return AMD assembly's matrix instruction, or None, and widest global load (bits a thread)."""
    unit = next((name for name in ("mfma", "wmma") if f"v_{name}_" in text), None)
    widths = [0]
    for kind in re.findall(r"(?:global|buffer|flat)_load_(\w+)", text):
        if match := re.match(r"(?:dword|b)(?:x?(\d+))?$", kind):
            amount = int(match[1] or 1)
            widths.append(amount if kind.startswith("b") else 32 * amount)
        elif "short" in kind or "16" in kind:
            widths.append(16)
        elif "byte" in kind or "8" in kind:
            widths.append(8)
    return unit, max(widths)
