"""Read machine code as a listing: instructions with their source lines and successors.

NVIDIA's code comes from nvdisasm (`-c`, with `-gi` for source lines), AMD's from LLVM's assembly.
"""

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workbench.data.temporary import temporary_folder


@dataclass(frozen=True)
class SourceLine:
    """A line of a source file."""

    file: str
    line: int


@dataclass(frozen=True)
class Instruction:
    """One instruction of a listing."""

    opcode: str  # with modifiers
    operands: str
    predicate: str = ""  # it runs under: "P0", "!UP1"
    address: int | None = None  # in its section, in bytes; LLVM's assembly has none
    source: SourceLine | None = None  # in the kernel, where a function was inlined
    function: str = ""
    note: str = ""  # LLVM's comment

    @property
    def text(self) -> str:
        """Return the instruction as one line of assembly."""
        guard = f"@{self.predicate} " if self.predicate else ""
        return f"{guard}{self.opcode} {self.operands}".rstrip()


@dataclass(frozen=True)
class _Flow:
    """Successors of an instruction: labels, the next instruction, or unknown ones (`lost`)."""

    jumps: tuple[str, ...] = ()
    falls: bool = True
    is_lost: bool = False
    ends: bool = False  # a block ends here


@dataclass
class Listing:
    """Instructions in the order of their addresses, and where each one leads."""

    instructions: list[Instruction] = field(default_factory=list)
    successors: list[list[int]] = field(default_factory=list)  # successors of each
    roots: list[int] = field(default_factory=list)  # first instructions of sections
    lost_jumps: list[str] = field(default_factory=list)  # names of jumps with unknown targets
    ends: set[int] = field(default_factory=set)  # instructions that end a block
    labels: dict[int, str] = field(default_factory=dict)  # by the instruction that follows

    @property
    def functions(self) -> list[str]:
        """Return the names of the functions in order."""
        return list(dict.fromkeys(each.function for each in self.instructions))


class DisassemblyError(ValueError):
    """An image cannot be disassembled; the message is nvdisasm's reason."""


def disassemble(cubin: bytes, *options: str) -> str:
    """Return SASS with labels, by the nvdisasm of Triton's own wheel.

    Raises OSError where there is none, DisassemblyError where it rejects the image,
    SubprocessError after a minute.
    """
    from triton import knobs

    with temporary_folder() as folder:
        image = folder / "kernel.cubin"
        image.write_bytes(cubin)
        command = [knobs.nvidia.nvdisasm.path, "-c", *options, str(image)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "fatal" in line or "error" in line]
        reason = lines[0].partition(":")[2].strip() if lines else "nvdisasm failed"
        raise DisassemblyError(reason.replace(f"File {image}", "it").replace(str(image), "it"))
    return done.stdout


def read_sass(text: str) -> Listing:
    """Return the listing of nvdisasm's text, with labels (`-c`, `-g` or `-gi`)."""
    return _parse_listing(text, _sass_line, _sass_flow)


def read_amdgcn_listing(text: str) -> Listing:
    """Return the listing of AMD assembly as LLVM writes it."""
    return _parse_listing(text, _amd_line, _amd_flow)


_LABEL = re.compile(r"^\s*([.$\w]+):")
_TYPE = re.compile(r"^\s*\.type\s+([.$\w]+),@function")
_SASS = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*);")
_AMD = re.compile(r"^\s+([a-z]\w+)\b\s*(.*)$")
_TARGET = re.compile(r"`\(([^)]+)\)")
_TARGETS = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_SASS_SOURCE = re.compile(r'(?:File|inlined at) "([^"]*)", line (\d+)')
_AMD_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"')
_AMD_SOURCE = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
_AMD_INLINED = re.compile(r"([^\s@\[\]]+):(\d+):\d+\s*\]*\s*$")


class _Sources:
    """The source line in force, from the lines of a listing that state it."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.names: dict[str, str] = {}  # whole paths by the file's name alone
        self.here: SourceLine | None = None

    def read(self, line: str) -> bool:
        """Read a line. Returns whether it states a source line or file, and nothing else."""
        if "//## File" in line:  # the last place is the one that everything was inlined into
            if places := _SASS_SOURCE.findall(line):
                self.here = SourceLine(places[-1][0], int(places[-1][1]))
            return True
        if known := _AMD_FILE.match(line):
            path = str(Path(known[2] or "") / known[3])
            self.files[known[1]] = self.names[known[3]] = path
            return True
        if place := _AMD_SOURCE.match(line):
            self._amd(line, place[1], int(place[2]))
            return True
        return False

    def _amd(self, line: str, file: str, number: int) -> None:
        inlined = _AMD_INLINED.search(line) if "@[" in line else None
        if inlined:
            name, number = inlined[1], int(inlined[2])
            self.here = SourceLine(self.names.get(name, name), number)
        elif number:  # line 0 belongs to no line; the one before stays in force
            self.here = SourceLine(self.files.get(file, file), number)


def _sass_line(line: str) -> Instruction | None:
    match = _SASS.search(line)
    if match is None:
        return None
    operands = re.sub(r"\s+", " ", match[4].strip())
    return Instruction(match[3], operands, match[2] or "", int(match[1], 16))


def _amd_line(line: str) -> Instruction | None:
    code, _, note = line.partition(";")
    match = _AMD.match(code)
    return Instruction(match[1], match[2].strip(), note=note.strip()) if match else None


def _sass_flow(op: Instruction) -> _Flow:
    name, target = op.opcode.split(".")[0], _TARGET.search(op.operands)
    guarded = bool(op.predicate)
    if name in ("BRA", "CALL") and target:
        always = name == "BRA" and not guarded and op.operands.startswith("`")
        return _Flow((target[1],), falls=not always, ends=True)
    if name in ("BRA", "BRX", "BRXU", "JMP", "JMX", "JMXU"):
        several = _TARGETS.search(op.operands)
        text = re.split(r"[,\s]+", several[1].strip()) if several else []
        return _Flow(tuple(text), falls=guarded, is_lost=not text, ends=True)
    if name == "CALL":
        return _Flow(is_lost=True)
    leaves = name in ("EXIT", "RET", "KILL")
    return _Flow(falls=guarded or not leaves, ends=leaves)


def _amd_flow(op: Instruction) -> _Flow:
    if op.opcode.startswith("s_cbranch_") or op.opcode == "s_branch":
        label = op.operands.split()
        return _Flow(tuple(label[:1]), falls=op.opcode != "s_branch", is_lost=not label, ends=True)
    if op.opcode.startswith(("s_swappc", "s_call")):
        return _Flow(is_lost=True)
    if op.opcode.startswith("s_setpc"):
        return _Flow(falls=False, is_lost=True, ends=True)
    return _Flow(falls=op.opcode != "s_endpgm", ends=op.opcode == "s_endpgm")


def _parse_listing(
    text: str, read: Callable[[str], Instruction | None], flow_of: Callable[[Instruction], _Flow]
) -> Listing:
    result, labels, starts = Listing(), dict[str, int](), {0}
    sources, functions, function = _Sources(), set[str](), ""
    for line in text.splitlines():
        if ".section" in line:
            starts.add(len(result.instructions))
        elif sources.read(line):
            continue
        elif declared := _TYPE.match(line):
            functions.add(declared[1])
        elif label := _LABEL.match(line):
            labels[label[1]] = len(result.instructions)
            result.labels[len(result.instructions)] = label[1]
            function = label[1] if label[1] in functions else function
        else:  # AMD's dual issue is two instructions in a line, `v_dual_a .. :: v_dual_b ..`
            for each in filter(None, map(read, line.split("::"))):
                place = {"source": sources.here, "function": function}
                result.instructions.append(Instruction(**{**vars(each), **place}))
    flows = [flow_of(op) for op in result.instructions]
    result.roots = sorted(i for i in starts if i < len(flows))
    result.ends = {i for i, flow in enumerate(flows) if flow.ends}
    _connect(result, flows, labels, starts)
    return result


def _connect(
    listing: Listing, flows: list[_Flow], labels: dict[str, int], starts: set[int]
) -> None:
    """Set the successors of all instructions, and the names of jumps that have unknown ones."""
    ops = listing.instructions
    listing.lost_jumps = [op.opcode for op, flow in zip(ops, flows, strict=True) if flow.is_lost]
    for i, flow in enumerate(flows):
        targets = [labels.get(label, len(flows)) for label in flow.jumps]
        if len(flows) in targets:
            listing.lost_jumps.append(ops[i].opcode)  # a label that is not in the listing
        leads = [i + 1] if flow.falls and i + 1 not in starts else []
        listing.successors.append([n for n in dict.fromkeys([*leads, *targets]) if n < len(flows)])
