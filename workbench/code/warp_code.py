"""Read from a cubin what one warp of a kernel issues: instructions in order, what each waits for,
its source line, and the loops. A millisecond, where nvdisasm takes 0.4 s.

Format: instructions of 128 bits since Volta; bits 0 to 8 are the operation, 105 to 121 say how the
hardware schedules it (Jia et al., Dissecting the NVIDIA Volta GPU Architecture via
Microbenchmarking, 2018, section 2). The fields of branches and of waits for asynchronous copies
were read off nvdisasm's listings of sm_80, sm_90, sm_100 and sm_120. Lines: `.debug_line`, DWARF 2,
section 6.2.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.code.flow import FlowGraph, flow_graph
from workbench.code.listing import Instruction, Listing
from workbench.code.machine_code import elf_sections
from workbench.device.warp_timeline import (
    ACCESSES,
    ATOMIC,
    BARRIER,
    COMMIT,
    CONSTANT,
    COPY,
    DOUBLE,
    DRAIN,
    FLOAT,
    LOAD,
    MATRIX,
    MOVE,
    MULTIPLY,
    OTHER,
    SHARED,
    SHUFFLE,
    SPECIAL,
    STORE,
)

_KINDS: dict[int, str] = {
    **dict.fromkeys((0x180, 0x181), LOAD),
    **dict.fromkeys((0x185, 0x186), STORE),
    **dict.fromkeys((0x18A, 0x18B, 0x18C, 0x18D, 0x18E, 0x1A3, 0x1A6, 0x1A8, 0x1A9), ATOMIC),
    **dict.fromkeys((0x03B, 0x044, 0x183, 0x184, 0x187, 0x188), SHARED),  # local memory, too
    **dict.fromkeys((0x104, 0x105, 0x106, 0x107, 0x108, 0x110, 0x111, 0x112, 0x113), SPECIAL),
    **dict.fromkeys((0x005, 0x119, 0x182, 0x1C3), CONSTANT),
    **dict.fromkeys((0x020, 0x021, 0x023, 0x030, 0x031, 0x032, 0x035), FLOAT),
    **dict.fromkeys((0x028, 0x029, 0x02A, 0x02B), DOUBLE),
    **dict.fromkeys((0x024, 0x025, 0x026, 0x027), MULTIPLY),
    **dict.fromkeys((0x118, 0x141, 0x145, 0x147, 0x148, 0x14D, 0x150), MOVE),
    **dict.fromkeys((0x037, 0x03C, 0x03F, 0x1F0, 0x1F1, 0x1F3, 0x1F4), MATRIX),
    **{0x189: SHUFFLE, 0x1C4: SHUFFLE, 0x11D: BARRIER, 0x11A: DRAIN, 0x1AE: COPY, 0x1AF: COMMIT},
}
HOPPER = 90  # the first whose branches hold their distance in two parts
_BRANCH, _EXIT, _RETURN, _CALL = 0x147, 0x14D, 0x150, 0x144
_ELSEWHERE = (0x143, 0x149, 0x14A, 0x14C)  # absolute calls and jumps, and branches by a register
_UNIFORM = range(0x80, 0xC0)
_ZERO = 0xFF  # number of the register that is zero; a product with it is a move
_ALWAYS = 7  # number of the predicate that is true
# Opcodes of line programs: standard ones, and extended ones, which follow a 0
COPY_ROW, ADVANCE_PC, ADVANCE_LINE, SET_FILE, CONST_ADD_PC, FIXED_ADVANCE_PC = 1, 2, 3, 4, 8, 9
END_SEQUENCE, SET_ADDRESS = 1, 2
_WIDTHS = (1, 1, 2, 2, 4, 8, 16, 16)  # bytes, by bits 73 to 75: u8, s8, u16, s16, 32, 64, 128
_STEPS = 0x1FFFF  # bits 105 to 121 without the flags of register reuse
Line = tuple[str, int]  # name of a file without folders, and line


@dataclass(frozen=True)
class WarpInstruction:
    """One instruction of a warp. Sets of numbers of barriers are masks of six bits."""

    kind: str
    control: int  # bits 105 to 121 of the instruction
    pending: int = 0  # of DRAIN: groups of copies that may remain
    line: Line | None = None
    is_call: bool = False  # of a function behind the kernel, such as a division's slow path
    width: int = 0  # bytes of a thread's access to global memory


@dataclass(frozen=True)
class WarpCode:
    """The instructions of a kernel in the order of their addresses, and its blocks and loops."""

    instructions: tuple[WarpInstruction, ...]
    graph: FlowGraph


def read_warp_code(cubin: bytes) -> WarpCode:
    """Return the code of a cubin with one kernel. Raises ValueError where the image holds none or
    several, or has a call or a branch that leads out of it."""
    parts = dict(elf_sections(cubin))
    texts = [data for name, data in parts.items() if name.startswith(b".text.")]
    if len(texts) != 1 or len(texts[0]) % 16:
        raise ValueError("the image does not hold the code of one kernel")
    words = list(struct.iter_unpack("<QQ", texts[0]))
    lines = _lines_of(parts.get(b".debug_line", b""), len(words))
    each = tuple(_read(low, high, line) for (low, high), line in zip(words, lines, strict=True))
    return WarpCode(each, flow_graph(_flow(words, _capability(cubin) >= HOPPER)))


def _capability(image: bytes) -> int:
    """Return the compute capability that an image is for, as 90, from the flags of its ELF header;
    where they hold it changed with version 8 of the ABI."""
    flags = int(struct.unpack_from("<I", image, 48)[0])
    return (flags >> 8 if image[8] >= 8 else flags) & 0xFF


def _read(low: int, high: int, line: Line | None) -> WarpInstruction:
    operation = low & 0x1FF
    kind = _KINDS.get(operation, MOVE if operation in _UNIFORM else OTHER)
    if kind == MULTIPLY and low >> 24 & 0xFF == _ZERO:
        kind = MOVE
    pending = low >> 38 & 0x3F if kind == DRAIN else 0
    width = _WIDTHS[high >> 9 & 7] if kind in ACCESSES else 0
    return WarpInstruction(kind, high >> 41 & _STEPS, pending, line, operation == _CALL, width)


def _flow(words: Sequence[tuple[int, int]], is_split: bool) -> Listing:
    """Return where each instruction leads, as a listing without texts. `is_split` says that eight
    bits of a branch's distance lie apart."""
    result = Listing([Instruction("", "") for _ in words], roots=[0])
    for i, (low, high) in enumerate(words):
        operation, guarded = low & 0x1FF, low >> 12 & 0xF != _ALWAYS
        if operation in _ELSEWHERE:
            raise ValueError("the code jumps to another function")
        leads = [i + 1] if guarded or operation not in (_BRANCH, _EXIT, _RETURN) else []
        if operation == _BRANCH:
            leads = [i + 1] if guarded or high >> 23 & 0xF != _ALWAYS else []
            leads.append(i + 1 + _distance(low, high, is_split))
        leads = [n for n in leads if n != len(words)]  # the padding after the last branch
        if any(not 0 <= n < len(words) for n in leads):
            raise ValueError("a branch leads out of the code")
        result.successors.append(list(dict.fromkeys(leads)))
        if operation in (_BRANCH, _EXIT, _RETURN):
            result.ends.add(i)
    return result


def _distance(low: int, high: int, is_split: bool) -> int:
    """Return by how many instructions a branch jumps from the one after it."""
    words = (low | high << 64) >> 34 & (1 << 48) - 1
    words -= words >> 47 << 48  # signed
    if is_split:
        words = words << 8 | low >> 16 & 0xFF
    return words // 4


# Lines


def _lines_of(program: bytes, count: int) -> list[Line | None]:
    """Return the line of each of `count` instructions."""
    rows = list(_LineProgram(program).rows()) if program else []
    result: list[Line | None] = [None] * count
    for (address, line), (end, _) in zip(rows, [*rows[1:], (16 * count, None)], strict=True):
        for i in range(max(0, address // 16), min(count, end // 16)):
            result[i] = line
    return result


class _LineProgram:
    """The first unit of a `.debug_line` section."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._minimum, _, self._base, self._span, self._first = struct.unpack_from(
            "<BBbBB", data, 10
        )
        self._operands = data[15 : 14 + self._first]  # of each standard opcode
        self._files = self._names(14 + self._first)
        self._at = 10 + struct.unpack_from("<I", data, 6)[0]
        self._address, self._file, self._line = 0, 1, 1

    def _names(self, at: int) -> list[str]:
        """Return the files' names, of which the first has number 1."""
        data = self._data
        while data[at]:  # folders
            at = data.index(0, at) + 1
        names = [""]
        at += 1
        while data[at]:
            end = data.index(0, at)
            names.append(data[at:end].decode(errors="replace").rsplit("/", 1)[-1])
            at = end + 1
            for _ in range(3):
                _, at = _leb(data, at)
        return names

    def rows(self) -> Iterator[tuple[int, Line]]:
        """Yield address and line of each row."""
        while self._at < len(self._data):
            code = self._data[self._at]
            self._at += 1
            if code == 0:
                if self._apply_extended() == END_SEQUENCE:
                    return
            elif code >= self._first:
                self._advance(code)
                self._line += self._base + (code - self._first) % self._span
                yield self._row()
            elif code == COPY_ROW:
                yield self._row()
            else:
                self._standard(code)

    def _row(self) -> tuple[int, Line]:
        name = self._files[self._file] if self._file < len(self._files) else ""
        return self._address, (name, self._line)

    def _advance(self, code: int) -> None:
        self._address += (code - self._first) // self._span * self._minimum

    def _apply_extended(self) -> int:
        """Apply an extended opcode, and return it."""
        size, at = _leb(self._data, self._at)
        code = self._data[at]
        if code == SET_ADDRESS:
            self._address = int.from_bytes(self._data[at + 1 : at + size], "little")
        self._at = at + size
        return code

    def _standard(self, code: int) -> None:
        if code == CONST_ADD_PC:
            self._advance(255)
            return
        if code == FIXED_ADVANCE_PC:
            self._address += struct.unpack_from("<H", self._data, self._at)[0]
            self._at += 2
            return
        values = [0]
        for _ in range(self._operands[code - 1]):
            value, self._at = _leb(self._data, self._at, signed=code == ADVANCE_LINE)
            values.append(value)
        if code == ADVANCE_PC:
            self._address += values[-1] * self._minimum
        elif code == ADVANCE_LINE:
            self._line += values[-1]
        elif code == SET_FILE:
            self._file = values[-1]


def _leb(data: bytes, at: int, *, signed: bool = False) -> tuple[int, int]:
    """Return a number of variable length, and the place after it."""
    result = shift = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if signed and byte & 0x40:
        result -= 1 << shift
    return result, at
